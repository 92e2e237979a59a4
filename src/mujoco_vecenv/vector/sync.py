"""n reference environments, one after another in this process."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.infos import Info
from mujoco_vecenv.microduck.actions import check_finite
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.reference import MicroduckEnv
from mujoco_vecenv.microduck.snapshots import EnvState

StepResult = tuple[NDArray[np.float32], float, bool, Info]


class SyncEnvs:
    """n references in a loop. Parameters and methods as in `BatchEnvs`."""

    def __init__(self, n: int, seed: int, config: MicroduckConfig, with_terms: bool):
        self._envs = [make_env(seed + i, config) for i in range(n)]
        self._with_terms = with_terms
        self.reset(seed)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Seed every environment anew and begin its first episode; return (n, 48)."""
        self._obs = np.stack([env.reset(seed=seed + i) for i, env in enumerate(self._envs)])
        return self._obs.copy()

    def observations(self) -> NDArray[np.float32]:
        """Return the (n, 48) observations of the present state."""
        return self._obs.copy()

    def record(self) -> list[Episode]:
        """Return what the running episodes drew."""
        return [env.record() for env in self._envs]

    def begin(self, episodes: Mapping[int, Episode]) -> NDArray[np.float32]:
        """End some environments' episodes and begin given ones instead; return (n, 48)."""
        for i, episode in episodes.items():
            self._obs[i] = self._envs[i].reset(episode=episode)
        return self._obs.copy()

    def get_states(self) -> list[EnvState]:
        """Return all that decides how each environment goes on."""
        return [env.get_state() for env in self._envs]

    def set_states(self, states: list[EnvState]) -> NDArray[np.float32]:
        """Go on from states; return the (n, 48) observations last returned there."""
        self._obs = np.stack(
            [env.set_state(state) for env, state in zip(self._envs, states, strict=True)]
        )
        return self._obs.copy()

    @property
    def nstate(self) -> int:
        """Length of an environment's state of physics."""
        return len(self._envs[0].get_state().physics)

    def step(self, actions: NDArray[np.float64]) -> tuple[Any, Any, Any, list[Info]]:
        """Step every environment and begin a new episode where one ends."""
        check_finite(actions)
        results = [
            step_and_reset(env, action, self._with_terms)
            for env, action in zip(self._envs, actions, strict=True)
        ]
        obs, rewards, done, infos = collect(results)
        self._obs = obs.copy()
        return obs, rewards, done, infos

    def close(self) -> None:
        """Nothing to release."""


def make_env(seed: int, config: MicroduckConfig) -> MicroduckEnv:
    """Return the reference environment of a configuration."""
    return MicroduckEnv(seed=seed, **vars(config))


def step_and_reset(env: MicroduckEnv, action: NDArray[np.float64], with_terms: bool) -> StepResult:
    """Step a reference; where its episode ends, begin the next and return its observation."""
    obs, reward, done, info = env.step(action)
    if not with_terms:
        del info["terms"]
    if done:
        info["terminal_obs"] = obs
        obs = env.reset()
    return obs, reward, done, info


def collect(results: list[StepResult]) -> tuple[Any, Any, Any, list[Info]]:
    """Stack the results of one step: (n, 48) float32, (n,) float64, (n,) bool and n infos."""
    obs, rewards, done, infos = zip(*results, strict=True)
    return np.stack(obs), np.array(rewards, np.float64), np.array(done, np.bool_), list(infos)
