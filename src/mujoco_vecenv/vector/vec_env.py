"""The vector environment that training scripts use, whatever runs behind it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.checks import check_choice, check_integer, check_switch
from mujoco_vecenv.engine.actions import ActionError
from mujoco_vecenv.engine.budget import choose_threads
from mujoco_vecenv.engine.models import model_digest
from mujoco_vecenv.infos import Info
from mujoco_vecenv.microduck.actions import as_actions
from mujoco_vecenv.microduck.batch import BatchEnvs
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.episodes import check_episode
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.microduck.snapshots import EnvState, Snapshot, pack, unpack
from mujoco_vecenv.microduck.task import load_robot
from mujoco_vecenv.vector.facade import Facade
from mujoco_vecenv.vector.process import ProcessEnvs
from mujoco_vecenv.vector.sync import SyncEnvs

BACKENDS: Final = ("batch", "process", "sync")

Observations = NDArray[np.float32]
Rewards = NDArray[np.float64]
Dones = NDArray[np.bool_]


class Backend(Protocol):
    """What runs the environments."""

    def reset(self, seed: int) -> Observations:
        """Seed environment i with seed + i and begin its first episode."""

    def observations(self) -> Observations:
        """Return the present observations."""

    def step(
        self, actions: NDArray[np.float64]
    ) -> tuple[Observations, Rewards, Dones, Sequence[Info]]:
        """Step every environment and begin a new episode where one ends."""

    def record(self) -> list[Episode]:
        """Return what the running episodes drew."""

    def begin(self, episodes: Mapping[int, Episode]) -> Observations:
        """End some environments' episodes and begin given ones instead."""

    def get_states(self) -> list[EnvState]:
        """Return all that decides how each environment goes on."""

    def set_states(self, states: list[EnvState]) -> Observations:
        """Go on from states."""

    @property
    def nstate(self) -> int:
        """Length of an environment's state of physics."""

    def close(self) -> object:
        """Release what the garbage collector does not."""


class VecEnv(Facade[Backend]):
    """n Microducks stepped together.

    Environment i is seeded with `seed + i` and is, to the last bit, the `MicroduckEnv` of that
    seed, on every backend and any number of threads. The constructor performs the first reset.

    Args:
        n: number of environments.
        seed: seed of environment 0, not negative.
        with_terms: put the reward's weighted terms into the infos, as `terms`.
        backend: "batch" steps all of them on threads in compiled code; "process" runs a reference
            in a worker process each, which imports your script, so guard its entry with
            `if __name__ == "__main__":`; "sync" runs references one after another.
        threads: threads of the batch backend; None for the smaller of n and what the machine and
            MUJOCO_VECENV_MAX_THREADS allow. The other backends check it and have no use for it.
        allow_overcommit: accept more threads than that.
        **env_keywords: attributes of `mujoco_vecenv.MicroduckConfig`: variant, episode_steps,
            action_scale, n_pushes, push_speed, init_noise, reward, latency, sensor_noise, dr,
            assets_dir.

    Raises:
        TypeError, ValueError: a value is of the wrong type or outside its range, or a keyword is
            unknown. The message names it.
        FileNotFoundError: the assets folder lacks the variant's file.
        ModelError: the model lacks something the task needs.

    Example:
        >>> import numpy as np
        >>> from mujoco_vecenv import VecEnv
        >>> with VecEnv(n=8, seed=0, reward="v2") as envs:
        ...     obs = envs.reset()
        ...     obs, rewards, done, infos = envs.step(np.zeros((8, 14)))
        >>> obs.shape, obs.dtype, rewards.dtype
        ((8, 48), dtype('float32'), dtype('float64'))
    """

    def __init__(
        self,
        n: int = 4,
        seed: int = 0,
        with_terms: bool = False,
        *,
        backend: str = "batch",
        threads: int | None = None,
        allow_overcommit: bool = False,
        **env_keywords: Any,
    ):
        check_choice("backend", backend, BACKENDS)
        self.n = check_integer("n", n, 1)
        seed = check_integer("seed", seed, 0)
        with_terms = check_switch("with_terms", with_terms)
        self.backend = backend
        self.threads = choose_threads(self.n, threads, allow_overcommit)
        self.config = MicroduckConfig.from_keywords(
            env_keywords,
            also=("n", "seed", "with_terms", "backend", "threads", "allow_overcommit"),
        )
        self._shape = (self.n, ACTIONS)
        envs: Backend
        if backend == "batch":
            envs = BatchEnvs(self.n, seed, self.config, with_terms, self.threads)
        elif backend == "process":
            envs = ProcessEnvs(self.n, seed, self.config, with_terms)
        else:
            envs = SyncEnvs(self.n, seed, self.config, with_terms)
        super().__init__(envs)

    def reset(
        self,
        seed: int | None = None,
        episodes: Sequence[Episode] | Mapping[int, Episode] | None = None,
    ) -> Observations:
        """Return the present observations, begin anew from a seed, or run recorded episodes.

        Args:
            seed: seeds environment i with `seed + i` and begins its first episode. None draws
                nothing and changes nothing.
            episodes: recorded episodes to begin instead, one for each environment, or a mapping
                from some environments to theirs. Once they end, drawing goes on as usual.

        Returns:
            (n, 48) float32 observations.

        Raises:
            RuntimeError: the environments are closed.
            TypeError, ValueError: an argument does not fit; nothing has changed.
        """
        envs = self._open()
        if seed is not None:
            seed = check_integer("seed", seed, 0)
        checked = self._check_episodes(episodes) if episodes is not None else {}
        with self._closing_on_failure():
            if seed is not None:
                envs.reset(seed)
            return envs.begin(checked) if checked else envs.observations()

    def _check_episodes(
        self, episodes: Sequence[Episode] | Mapping[int, Episode]
    ) -> dict[int, Episode]:
        if not isinstance(episodes, Mapping):
            episodes = dict(enumerate(episodes))
            if len(episodes) != self.n:
                raise ValueError(
                    f"episodes: {len(episodes)} given for {self.n} environments; pass a mapping "
                    "from environment to episode to begin only some"
                )
        for i, episode in episodes.items():
            if not 0 <= check_integer("episodes: environment", i) < self.n:
                raise ValueError(f"episodes: environment {i} is not within 0 … {self.n - 1}")
            check_episode(episode, self.config, f"episodes[{i}]")
        return {int(i): episode for i, episode in episodes.items()}

    def record(self) -> list[Episode]:
        """Return what the running episode of each environment drew.

        An episode is a value: `reset(episodes=…)` runs it again on any backend, and
        `mujoco_vecenv.save_recording` writes it to a file together with the actions taken.

        Raises:
            RuntimeError: the environments are closed.
        """
        envs = self._open()
        with self._closing_on_failure():
            return envs.record()

    def get_state(self) -> Snapshot:
        """Return everything that decides how the environments go on.

        Returns:
            Arrays by name, with a row per environment, and a header. `numpy.savez(file, **state)`
            writes it, and what `numpy.load(file)` returns goes back into `set_state`.

        Raises:
            RuntimeError: the environments are closed.
        """
        envs = self._open()
        with self._closing_on_failure():
            return pack(envs.get_states(), self.config, self._model)

    def set_state(self, state: Mapping[str, Any]) -> Observations:
        """Go on from a snapshot, taken from any backend, to the last bit.

        Args:
            state: what `get_state` returned.

        Returns:
            (n, 48) float32, the observations last returned there.

        Raises:
            RuntimeError: the environments are closed.
            TypeError, ValueError: the snapshot is of other environments, of another version, or
                damaged. The message names what does not fit, and nothing has changed.
        """
        envs = self._open()
        states = unpack(state, self.n, self.config, self._model, envs.nstate)
        with self._closing_on_failure():
            return envs.set_states(states)

    def step(self, actions: ArrayLike) -> tuple[Observations, Rewards, Dones, Sequence[Info]]:
        """Step every environment for one control step of 0.02 s.

        Where an episode ends, the next one begins at once: the returned observation is its first,
        and `infos[i]["terminal_obs"]` is the ended one's last. Every end is a truncation, so a
        learner must bootstrap from the value of `terminal_obs`.

        Args:
            actions: (n, 14) real numbers, clipped to [-1, 1].

        Returns:
            observations: (n, 48) float32.
            rewards: (n,) float64.
            done: (n,) bool.
            infos: a mapping per environment: trunk_height (m), upright_cos, fallen (trunk below
                4 cm, which a robot lying on its battery is not), pushed, t, truncated,
                terminated, reward (its version), with_terms also terms, and where the episode
                ended terminal_obs. The batch backend builds a mapping when it is read.

        Raises:
            RuntimeError: the environments are closed, as they are after a call that failed.
            TypeError, ValueError: the actions are not (n, 14) finite real numbers; nothing moved.
            WorkerError: a worker of the process backend failed or died.
            PhysicsError: MuJoCo raised in some environments of the batch backend.
        """
        envs = self._envs or self._open()
        array = as_actions(actions, self._shape)
        try:
            return envs.step(array)
        except ActionError:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    @cached_property
    def _model(self) -> str:
        return model_digest(load_robot(self.config).model)
