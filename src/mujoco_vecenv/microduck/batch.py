"""n Microducks on threads: batched physics between compiled kernels."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, overload

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.generators import rng_words, set_rng
from mujoco_vecenv.engine.lean import lean_model
from mujoco_vecenv.engine.simulations import Simulations
from mujoco_vecenv.infos import Info
from mujoco_vecenv.microduck import kernels, layout
from mujoco_vecenv.microduck.actions import check_finite
from mujoco_vecenv.microduck.config import FALL_HEIGHT, STAND_HEIGHT, SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode, draw_episode, draw_sensor_noises
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE, OBS_SCALE, OBSERVATIONS
from mujoco_vecenv.microduck.randomization import DomainRandomizer, DRConfig, Factors
from mujoco_vecenv.microduck.rewards import HEIGHT_WIDTH, REWARDS
from mujoco_vecenv.microduck.robot import ModelError, Robot, scene_path
from mujoco_vecenv.microduck.snapshots import EnvState

# Looked up at every step, as objects: numpy takes a while to see what dtype a type stands for.
_BOOL: Final = np.dtype(np.bool_)
_FLOAT32: Final = np.dtype(np.float32)

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
        path = scene_path(config)
        self._robot = robot = Robot(mujoco.MjModel.from_xml_path(str(path)), path)
        _check_servos(robot)
        self.config = config
        self.n = n
        self.with_terms = with_terms
        lean = lean_model(robot.model, path)
        self._sims = sims = Simulations(lean, n, threads, robot.stand)
        self._all = np.arange(n)
        self._weights = np.array(list(REWARDS[config.reward].values()))
        self._obs_shape = (n, OBSERVATIONS)
        self._facts_shape = (n, len(self._weights) + 4)
        self._rngs = [np.random.default_rng() for _ in range(n)]

        # The running episodes.
        dr = config.dr or DRConfig.none()
        self._episodes: list[Episode] = [_NOT_BEGUN] * n
        self._drawn = np.zeros((n, 6), np.uint64)  # each generator before it drew sensor noise
        self._running = np.zeros(n, kernels.RUNNING)
        latency = max(config.latency, dr.latency[1] if dr.latency else 0)
        self._delayed = np.zeros((n, max(1, latency), ACTIONS))
        pushes = max(1, min(config.n_pushes, config.episode_steps))
        self._push_steps = np.full((n, pushes), -1)
        self._push_velocity = np.zeros((n, pushes, 2))
        noisy = config.sensor_noise or dr.sensor_noise
        self._noise = np.zeros((n, config.episode_steps + 1 if noisy else 1, NOISE))

        # Their physics.
        self._randomizer = DomainRandomizer(lean, dr)
        self._nominal_servos = _servos(robot.model)
        self._servos = np.repeat(self._nominal_servos[None], n, axis=0)
        self._model_fields: dict[str, NDArray[np.float64]] = {}
        self._recomputed = np.zeros(n, np.bool_)

        self._task = _task(robot, config)
        self._qpos, self._qvel = sims.field("qpos"), sims.field("qvel")
        self._bind()
        self.reset(seed)

    def _bind(self) -> None:
        """Gather the kernels' arguments in their order, but for what differs from step to step."""
        ctrl = self._sims.field("ctrl")
        self._begin_inputs = (
            self._task,
            self._running,
            self._delayed,
            self._push_steps,
            self._push_velocity,
            self._qvel,
            ctrl,
        )
        self._observe_inputs = (self._task, self._running, self._noise, self._qpos, self._qvel)
        self._finish_inputs = (*self._observe_inputs, ctrl, self._servos, self._weights)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Seed every environment anew and begin its first episode.

        Returns:
            (n, 48) observations.
        """
        self._rngs = [np.random.default_rng(seed + i) for i in range(self.n)]
        self._begin(self._all)
        return self.observations()

    def observations(self) -> NDArray[np.float32]:
        """Return the (n, 48) observations of the present state."""
        obs = np.empty(self._obs_shape, _FLOAT32)
        kernels.observe(*self._observe_inputs, self._all, obs)
        return obs

    def step(
        self, actions: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], "StepInfos"]:
        """Step every environment and begin a new episode where one ends.

        Args:
            actions: (n, 14) float64.

        Returns:
            (n, 48) observations, (n,) rewards, (n,) done, infos. The arrays are the caller's.

        Raises:
            ValueError: an action is not finite; nothing has moved.
            PhysicsError: MuJoCo raised in some environments.
        """
        n = self.n
        if not kernels.begin_step(*self._begin_inputs, actions):
            check_finite(actions)
        rewards = np.empty(n)
        done = np.empty(n, _BOOL)
        facts = np.empty(self._facts_shape)
        obs = np.empty(self._obs_shape, _FLOAT32)
        self._sims.step(SUBSTEPS)
        infos = StepInfos(self, facts)
        if kernels.finish_step(*self._finish_inputs, rewards, done, facts, obs):
            ended = np.flatnonzero(done)
            infos.terminal_obs = {int(i): obs[i].copy() for i in ended}
            self._begin(ended)
            kernels.observe(*self._observe_inputs, ended, obs)
        return obs, rewards, done, infos

    def close(self) -> None:
        """Nothing to release: the thread pool goes with the object."""

    def record(self) -> list[Episode]:
        """Return what the running episodes drew."""
        return [
            deepcopy(replace(episode, noise=self._noise[i] if episode.sensor_noise else None))
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
            self._rewind(i)
        ids = np.array(sorted(episodes), np.int64)
        self._sims.reset(ids)
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
        for rng, state in zip(self._rngs, states, strict=True):
            set_rng(rng, state.rng)
        self._start(self._all, [deepcopy(state.episode) for state in states])
        for i, state in enumerate(states):
            self._sims.rows[i] = state.physics
            running = self._running[i]
            running["t"] = state.t
            running["previous"] = state.previous
            running["next_push"] = state.next_push
            # A ring: the action that waited longest is in the slot that comes next.
            for k, action in enumerate(state.delayed):
                self._delayed[i, (state.t + k) % len(state.delayed)] = action
        return self.observations()

    @property
    def nstate(self) -> int:
        """Length of an environment's state of physics."""
        return int(self._sims.rows.shape[1])

    def _state(self, i: int) -> EnvState:
        running, episode = self._running[i], self._episodes[i]
        t = int(running["t"])
        order = [(t + k) % episode.latency for k in range(episode.latency)]
        return EnvState(
            deepcopy(episode),
            self._sims.rows[i].copy(),
            t,
            running["previous"].copy(),
            self._delayed[i, order].copy(),
            int(running["next_push"]),
            self._drawn[i].copy() if _draws_noise(episode) else rng_words(self._rngs[i]),
        )

    def _begin(self, ids: NDArray[np.int64]) -> None:
        """Draw new episodes and put the robots in their first state."""
        self._sims.reset(ids)
        self._start(ids, [draw_episode(self._rngs[i], self.config, self._robot) for i in ids])

    def _start(self, ids: NDArray[np.int64], episodes: list[Episode]) -> None:
        """Write episodes into their environments' rows, whose robots are in STAND."""
        robot = self._robot
        self._make_room(episodes)
        for i, episode in zip(ids, episodes, strict=True):
            self._episodes[i] = episode
            self._qpos[i, robot.qpos] = episode.angles
            self._qvel[i, robot.qvel] = episode.velocities
            running = self._running[i]
            running["t"] = 0
            running["previous"] = 0
            running["latency"] = episode.latency
            running["next_push"] = 0
            running["noisy"] = episode.sensor_noise
            self._delayed[i] = 0
            k = len(episode.push_steps)
            self._push_steps[i] = -1
            self._push_steps[i, :k] = episode.push_steps
            self._push_velocity[i, :k] = episode.push_velocity
            if episode.noise is not None:
                self._noise[i] = episode.noise
            elif _draws_noise(episode):
                self._drawn[i] = rng_words(self._rngs[i])
                self._noise[i] = draw_sensor_noises(self._rngs[i], robot, len(self._noise[i]))
            if episode.factors is not None or self._model_fields:
                self._set_physics(i, episode.factors)
        recompute = [i for i in ids if self._recomputed[i]]
        if recompute:
            self._sims.recompute_constants(np.array(recompute))

    def _set_physics(self, i: int, factors: Factors | None) -> None:
        """Give environment i the physics of its episode, whatever it had before."""
        values = {} if factors is None else self._randomizer.values(factors)
        if self._recomputed[i] and not (factors and factors.recompute_constants):
            # Constants follow the masses back before other masses leave them behind.
            for name, field in self._model_fields.items():
                field[i] = getattr(self._randomizer.model, name)
            self._sims.recompute_constants(np.array([i]))
        self._recomputed[i] = factors is not None and factors.recompute_constants
        for name in values:
            if name not in self._model_fields:
                self._model_fields[name] = self._sims.model_field(name)
        for name, field in self._model_fields.items():
            field[i] = values[name] if name in values else getattr(self._randomizer.model, name)
        self._servos[i] = self._nominal_servos
        if factors is not None and factors.servo is not None:
            self._servos[i, :, 1] = values["actuator_gainprm"][:, 0]
            self._servos[i, :, 2:5] = values["actuator_biasprm"][:, :3]
            limited = self._robot.model.actuator_forcelimited.astype(bool)
            self._servos[i, limited, 5:] = values["actuator_forcerange"][limited]

    def _make_room(self, episodes: list[Episode]) -> None:
        """Widen the arrays for injected episodes that hold more than the configuration draws."""
        latency = max(episode.latency for episode in episodes)
        pushes = max(len(episode.push_steps) for episode in episodes)
        noise = len(self._noise[0])
        if any(episode.sensor_noise for episode in episodes):
            noise = self.config.episode_steps + 1
        wider = (
            latency > self._delayed.shape[1],
            pushes > self._push_steps.shape[1],
            noise > self._noise.shape[1],
        )
        if not any(wider):
            return
        if wider[0]:
            # The slots of a ring in use stay where they are: each is as long as its own latency.
            self._delayed = _widen(self._delayed, latency, 0.0)
        if wider[1]:
            self._push_steps = _widen(self._push_steps, pushes, -1)
            self._push_velocity = _widen(self._push_velocity, pushes, 0.0)
        if wider[2]:
            self._noise = _widen(self._noise, noise, 0.0)
        self._bind()

    def _rewind(self, i: int) -> None:
        """Put a generator to where it would be had it drawn the noise of each observation alone."""
        episode = self._episodes[i]
        if _draws_noise(episode):
            set_rng(self._rngs[i], self._drawn[i])
            draw_sensor_noises(self._rngs[i], self._robot, int(self._running[i]["t"]) + 1)


class StepInfos(Sequence[Info]):
    """The infos of one step: a list of dictionaries, each made when it is first looked at.

    Attributes:
        terminal_obs: environment to the last observation of the episode that this step ended.
    """

    # Set only where there is something to say: most steps' infos are never looked at.
    terminal_obs: Mapping[int, NDArray[np.float32]] = MappingProxyType({})
    _made: dict[int, Info] | None = None

    def __init__(self, envs: BatchEnvs, facts: NDArray[np.float64]):
        self._envs = envs
        self._facts = facts

    def __len__(self) -> int:
        return len(self._facts)

    @overload
    def __getitem__(self, index: int) -> Info: ...
    @overload
    def __getitem__(self, index: slice) -> list[Info]: ...
    def __getitem__(self, index: int | slice) -> Info | list[Info]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]  # negative indices, and IndexError
        if self._made is None:
            self._made = {}
        if i not in self._made:
            self._made[i] = self._make(i)
        return self._made[i]

    def __iter__(self) -> Iterator[Info]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return repr(list(self))

    def _make(self, i: int) -> Info:
        *terms, height, upright, pushed, t = self._facts[i].tolist()
        done = i in self.terminal_obs
        info: Info = {}
        reward = self._envs.config.reward
        if self._envs.with_terms:
            info["terms"] = dict(zip(REWARDS[reward], terms, strict=True))
        info |= {
            "trunk_height": height,
            "upright_cos": upright,
            "fallen": height < FALL_HEIGHT,
            "pushed": bool(pushed),
            "t": int(t),
            "truncated": done,
            "terminated": False,
            "reward": reward,
        }
        if done:
            info["terminal_obs"] = self.terminal_obs[i]
        return info


def _draws_noise(episode: Episode) -> bool:
    """Whether an episode's sensor noise comes from the generator, not from a recording."""
    return episode.sensor_noise and episode.noise is None


def _widen(array: NDArray[Any], width: int, fill: float) -> NDArray[Any]:
    """Return a copy with the second axis widened."""
    wide = np.full((len(array), width, *array.shape[2:]), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide


def _servos(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Return (14, 7): each servo's gear, gain, bias coefficients and force limits, N·m."""
    limited = model.actuator_forcelimited.astype(bool)[:, None]
    return np.hstack(
        [
            model.actuator_gear[:, :1],
            model.actuator_gainprm[:, :1],
            model.actuator_biasprm[:, :3],
            np.where(limited, model.actuator_forcerange, [-np.inf, np.inf]),
        ]
    )


def _task(robot: Robot, config: MicroduckConfig) -> NDArray[np.void]:
    """Return the (1,) TASK of a robot and a configuration."""
    model = robot.model
    # How MuJoCo orients a site depends on where it lies: by its own quaternion, or as its body.
    frame = int(model.site_sameframe[robot.imu])
    body = (mujoco.mjtSameFrame.mjSAMEFRAME_BODY, mujoco.mjtSameFrame.mjSAMEFRAME_BODYROT)
    if frame != mujoco.mjtSameFrame.mjSAMEFRAME_NONE and frame not in body:
        raise ModelError(f"{robot.path}: the IMU's site must not lie in its body's inertial frame")
    task = np.zeros(1, kernels.TASK)
    task["default"] = robot.default
    task["lo"] = robot.lo
    task["hi"] = robot.hi
    task["qpos"] = robot.qpos
    task["qvel"] = robot.qvel
    # MuJoCo takes a site for unturned that is turned by less than it can tell.
    task["imu_quat"] = (1, 0, 0, 0) if frame in body else model.site_quat[robot.imu]
    task["imu_turned"] = frame not in body
    task["scale"] = OBS_SCALE
    task["action_scale"] = config.action_scale
    task["stand_height"] = STAND_HEIGHT
    task["height_width"] = HEIGHT_WIDTH
    task["square"] = 2.0
    task["episode_steps"] = config.episode_steps
    for part in ("angles", "velocities", "previous_action", "gyro", "gravity"):
        task[part] = getattr(layout, part.upper())
    return task


def _check_servos(robot: Robot) -> None:
    """Refuse actuators whose force the effort term's kernel would not reproduce.

    The kernel computes a position servo's force: gain·ctrl + b0 + b1·length + b2·velocity.

    Raises:
        ModelError: an actuator of another kind, or one that clamps targets within the joint's
            range.
    """
    model = robot.model
    for i in range(model.nu):
        name = model.actuator(i).name
        if (
            model.actuator_gaintype[i] != mujoco.mjtGain.mjGAIN_FIXED
            or model.actuator_biastype[i] != mujoco.mjtBias.mjBIAS_AFFINE
            or model.actuator_dyntype[i] != mujoco.mjtDyn.mjDYN_NONE
        ):
            raise ModelError(f"{robot.path}: actuator {name!r} must be a position servo")
        if model.actuator_delay[i]:
            raise ModelError(f"{robot.path}: actuator {name!r} must have no delay")
        if model.opt.disableactuator & (1 << int(model.actuator_group[i])):
            raise ModelError(f"{robot.path}: the group of actuator {name!r} must not be disabled")
        lo, hi = model.actuator_ctrlrange[i]
        if model.actuator_ctrllimited[i] and (lo > robot.lo[i] or hi < robot.hi[i]):
            raise ModelError(
                f"{robot.path}: actuator {name!r} has ctrlrange ({lo}, {hi}), which must contain "
                f"its joint's range ({robot.lo[i]}, {robot.hi[i]})"
            )
