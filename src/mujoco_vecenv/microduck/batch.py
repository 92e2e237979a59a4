"""n Microducks on threads: the task on the engine, its episodes recorded and injected."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.actions import ActionError
from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.generators import rng_words, set_rng
from mujoco_vecenv.engine.task import row
from mujoco_vecenv.infos import Info, LazyInfos
from mujoco_vecenv.microduck.actions import check_finite
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode, draw_episode, draw_sensor_noises
from mujoco_vecenv.microduck.randomization import DomainRandomizer, Factors
from mujoco_vecenv.microduck.rewards import REWARDS
from mujoco_vecenv.microduck.snapshots import EnvState
from mujoco_vecenv.microduck.task import load_robot, rewind, servos_of, task_of, write_episode

_NOT_BEGUN: Final = Episode(
    None, 0, np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros((0, 2)), False
)


class BatchEnvs:
    """n Microducks stepped together, each equal to a `MicroduckEnv` of its seed.

    Args:
        n: number of environments.
        seed: environment i draws from `numpy.random.default_rng(seed + i)`.
        config: the environments' configuration.
        with_terms: put the reward's terms into the infos.
        threads: threads for the physics.
    """

    def __init__(self, n: int, seed: int, config: MicroduckConfig, with_terms: bool, threads: int):
        self.config = config
        self.n = n
        self.with_terms = with_terms
        self._robot = robot = load_robot(config)
        # Without randomisation: factors are written here, recorded ones among them.
        task = task_of(replace(config, dr=None), robot)
        self._envs = envs = TaskEnvs(task, n, threads, keep_contacts=True)
        self._columns = envs.columns
        self._qpos, self._qvel = envs.sims.field("qpos"), envs.sims.field("qvel")
        self._aside = envs.task.new_infos(n)  # what a reset tells, which nobody asks here
        self._episodes: list[Episode] = [_NOT_BEGUN] * n
        self._randomizer = DomainRandomizer(envs.sims.model, config.dr)
        self._nominal_servos = servos_of(robot.model, {})
        self._model_fields: dict[str, NDArray[np.float64]] = {}
        self._recomputed = np.zeros(n, np.bool_)
        self.reset(seed)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Seed every environment anew and begin its first episode.

        Returns:
            (n, 48) observations.
        """
        for i in range(self.n):
            self._envs.seed(i, seed + i)
        obs = self._new_obs()
        self._begin(self._envs.all, obs)
        return obs

    def _new_obs(self) -> NDArray[np.float32]:
        return np.empty((self.n, self._envs.task.observations), np.float32)

    def observations(self) -> NDArray[np.float32]:
        """Return the (n, 48) observations of the present state."""
        obs = self._new_obs()
        self._envs.observe(self._envs.all, obs, self._aside)
        return obs

    def step(
        self, actions: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], LazyInfos]:
        """Step every environment and begin a new episode where one ends.

        Args:
            actions: (n, 14) float64.

        Returns:
            (n, 48) observations, (n,) rewards, (n,) done, infos. The arrays are the caller's.

        Raises:
            ActionError: an action is not finite; nothing has moved.
            PhysicsError: MuJoCo raised in some environments.
        """
        try:
            step = self._envs.step(actions)
        except ActionError:
            check_finite(actions)
            raise
        terminal_obs: dict[int, NDArray[np.float32]] = {}
        if step.over:
            ended = np.flatnonzero(step.truncated)
            terminal_obs = {int(i): step.obs[i].copy() for i in ended}
            self._begin(ended, step.obs)
        infos = LazyInfos(self.n, lambda i: self._info(step.infos[i], terminal_obs.get(i)))
        return step.obs, step.rewards, step.truncated, infos

    def _info(self, told: Any, terminal_obs: NDArray[np.float32] | None) -> Info:
        info: Info = {}
        version = self.config.reward
        if self.with_terms:
            info["terms"] = {term: float(told[f"reward_{term}"]) for term in REWARDS[version]}
        info |= {
            "trunk_height": float(told["trunk_height"]),
            "upright_cos": float(told["upright_cos"]),
            "fallen": bool(told["fallen"]),
            "pushed": bool(told["pushed"]),
            "t": int(told["t"]),
            "truncated": terminal_obs is not None,
            "terminated": False,
            "reward": version,
        }
        if terminal_obs is not None:
            info["terminal_obs"] = terminal_obs
        return info

    def close(self) -> None:
        """End the threads."""
        self._envs.close()

    def record(self) -> list[Episode]:
        """Return what the running episodes drew."""
        noise = self._columns["noise"]
        return [
            deepcopy(replace(episode, noise=noise[i] if episode.sensor_noise else None))
            for i, episode in enumerate(self._episodes)
        ]

    def begin(self, episodes: Mapping[int, Episode]) -> NDArray[np.float32]:
        """End some environments' episodes and begin given ones instead.

        Args:
            episodes: environment to an episode that has been checked.

        Returns:
            (n, 48) observations.
        """
        for i in episodes:
            if _draws_noise(self._episodes[i]):
                rng, drawn = self._envs.rngs[i], self._columns["drawn"][i]
                rewind(rng, drawn, self._robot, int(self._envs.elapsed[i]))
        ids = np.array(sorted(episodes), np.int64)
        self._start(ids, [deepcopy(episodes[i]) for i in ids])
        return self.observations()

    def get_states(self) -> list[EnvState]:
        """Return all that decides how each environment goes on."""
        return [self._state(i) for i in range(self.n)]

    def set_states(self, states: list[EnvState]) -> NDArray[np.float32]:
        """Go on from states, as the environments that they were taken from would have.

        Returns:
            (n, 48) the observations last returned there.
        """
        envs = self._envs
        for rng, state in zip(envs.rngs, states, strict=True):
            set_rng(rng, state.rng)
        self._start(envs.all, [deepcopy(state.episode) for state in states])
        for i, state in enumerate(states):
            envs.sims.rows[i] = state.physics
            envs.elapsed[i] = state.t
            running = self._columns["running"][i]
            running["previous"] = state.previous
            running["next_push"] = state.next_push
            # A ring: the action that waited longest is in the slot that comes next.
            for k, action in enumerate(state.delayed):
                self._columns["delayed"][i, (state.t + k) % len(state.delayed)] = action
        return self.observations()

    @property
    def nstate(self) -> int:
        """Length of an environment's state of physics."""
        return int(self._envs.sims.rows.shape[1])

    def _state(self, i: int) -> EnvState:
        columns, episode = self._columns, self._episodes[i]
        running = columns["running"][i]
        t = int(self._envs.elapsed[i])
        order = [(t + k) % episode.latency for k in range(episode.latency)]
        drawn = columns["drawn"][i].copy()
        return EnvState(
            deepcopy(episode),
            self._envs.sims.rows[i].copy(),
            t,
            running["previous"].copy(),
            columns["delayed"][i, order].copy(),
            int(running["next_push"]),
            drawn if _draws_noise(episode) else rng_words(self._envs.rngs[i]),
        )

    def _begin(self, ids: NDArray[np.int64], obs: NDArray[np.float32]) -> None:
        """Draw new episodes, put the robots in their first state and observe it."""
        rngs = self._envs.rngs
        self._start(ids, [draw_episode(rngs[i], self.config, self._robot) for i in ids])
        self._envs.started(ids, obs, self._aside)

    def _start(self, ids: NDArray[np.int64], episodes: list[Episode]) -> None:
        """Write episodes into their environments' rows."""
        robot = self._robot
        self._envs.clear(ids)
        self._make_room(episodes)
        columns = self._columns
        for i, episode in zip(ids, episodes, strict=True):
            self._episodes[i] = episode
            write_episode(
                episode,
                robot,
                self._qpos[i],
                self._qvel[i],
                row(columns["running"], i),
                columns["push_steps"][i],
                columns["push_velocity"][i],
            )
            columns["servos"][i] = self._nominal_servos
            noise = columns["noise"][i]
            if episode.noise is not None:
                noise[:] = episode.noise
            elif _draws_noise(episode):
                columns["drawn"][i] = rng_words(self._envs.rngs[i])
                noise[:] = draw_sensor_noises(self._envs.rngs[i], robot, len(noise))
            if episode.factors is not None or self._model_fields:
                self._set_physics(i, episode.factors)
        recompute = [i for i in ids if self._recomputed[i]]
        if recompute:
            self._envs.sims.recompute_constants(np.array(recompute))

    def _set_physics(self, i: int, factors: Factors | None) -> None:
        """Give environment i the physics of its episode, whatever it had before."""
        sims, nominal = self._envs.sims, self._envs.sims.model
        values = {} if factors is None else self._randomizer.values(factors)
        if self._recomputed[i] and not (factors and factors.recompute_constants):
            # Constants follow the masses back before other masses leave them behind.
            for name, field in self._model_fields.items():
                field[i] = getattr(nominal, name)
            sims.recompute_constants(np.array([i]))
        self._recomputed[i] = factors is not None and factors.recompute_constants
        for name in values:
            if name not in self._model_fields:
                self._model_fields[name] = sims.model_field(name)
        for name, field in self._model_fields.items():
            field[i] = values[name] if name in values else getattr(nominal, name)
        self._columns["servos"][i] = servos_of(self._robot.model, values)

    def _make_room(self, episodes: list[Episode]) -> None:
        """Widen columns for episodes that hold more than the task draws by itself."""
        noisy = any(episode.sensor_noise for episode in episodes)
        pushes = max(len(episode.push_steps) for episode in episodes)
        for name, width, fill in (
            # The slots of a ring in use stay where they are: each is as long as its own latency.
            ("delayed", max(episode.latency for episode in episodes), 0),
            ("push_steps", pushes, -1),
            ("push_velocity", pushes, 0),
            ("noise", self.config.episode_steps + 1 if noisy else 0, 0),
        ):
            if width > self._columns[name].shape[1]:
                self._envs.set_column(name, _widen(self._columns[name], width, fill))


def _draws_noise(episode: Episode) -> bool:
    """Whether an episode's sensor noise comes from the generator, not from a recording."""
    return episode.sensor_noise and episode.noise is None


def _widen(array: NDArray[Any], width: int, fill: float) -> NDArray[Any]:
    """Return a copy with the second axis widened."""
    wide = np.full((len(array), width, *array.shape[2:]), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
