"""n Microducks on threads: batched physics between compiled kernels."""

from collections.abc import Iterator, Sequence
from typing import overload

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.lean import lean_model
from mujoco_vecenv.engine.simulations import Simulations
from mujoco_vecenv.infos import Info
from mujoco_vecenv.microduck import kernels
from mujoco_vecenv.microduck.actions import check_finite
from mujoco_vecenv.microduck.config import FALL_HEIGHT, STAND_HEIGHT, SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode, draw_episode, draw_sensor_noises
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE, OBS_SCALE, OBSERVATIONS
from mujoco_vecenv.microduck.rewards import HEIGHT_WIDTH, REWARDS
from mujoco_vecenv.microduck.robot import ModelError, Robot, scene_path


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
        self._sims = sims = Simulations(lean_model(robot.model, path), n, threads, robot.stand)
        self._all = np.arange(n)

        self._weights = np.array(list(REWARDS[config.reward].values()))

        pushes = max(1, config.n_pushes)
        self._running = np.zeros(n, kernels.RUNNING)
        self._delayed = np.zeros((n, max(1, config.latency), ACTIONS))
        self._push_steps = np.full((n, pushes), -1)
        self._push_velocity = np.zeros((n, pushes, 2))
        observations = config.episode_steps + 1 if config.sensor_noise else 1
        self._noise = np.zeros((n, observations, NOISE))
        self._servos = np.repeat(_servos(robot.model)[None], n, axis=0)

        # The kernels' arguments in their order, but for what differs from step to step.
        task = _task(robot, config)
        self._qpos, self._qvel, ctrl = sims.state("qpos"), sims.state("qvel"), sims.state("ctrl")
        self._begin_inputs = (
            task,
            self._running,
            self._delayed,
            self._push_steps,
            self._push_velocity,
            self._qvel,
            ctrl,
        )
        self._observe_inputs = (task, self._running, self._noise, self._qpos, self._qvel)
        self._finish_inputs = (*self._observe_inputs, ctrl, self._servos, self._weights)
        self.reset(seed)

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
        obs = np.empty((self.n, OBSERVATIONS), np.float32)
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
        done = np.empty(n, np.bool_)
        facts = np.empty((n, len(self._weights) + 4))
        obs = np.empty((n, OBSERVATIONS), np.float32)
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

    def _begin(self, ids: NDArray[np.int64]) -> None:
        """Draw new episodes and put the robots in their first state."""
        self._sims.reset(ids)
        for i in ids:
            self._start(i, draw_episode(self._rngs[i], self.config))

    def _start(self, i: int, episode: Episode) -> None:
        """Write one episode's draws into row i, whose robot is in STAND."""
        robot = self._robot
        if episode.qpos_noise is not None:
            angles = robot.default + episode.qpos_noise
            self._qpos[i, robot.qpos] = np.clip(angles, robot.lo, robot.hi)
            self._qvel[i, robot.qvel] += episode.qvel_noise
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
        if episode.sensor_noise:
            self._noise[i] = draw_sensor_noises(self._rngs[i], robot, len(self._noise[i]))


class StepInfos(Sequence[Info]):
    """The infos of one step: a list of dictionaries, each made when it is first looked at.

    Attributes:
        terminal_obs: environment to the last observation of the episode that this step ended.
    """

    def __init__(self, envs: BatchEnvs, facts: NDArray[np.float64]):
        self._reward = envs.config.reward
        self._with_terms = envs.with_terms
        self._facts = facts
        self._made: dict[int, Info] | None = None
        self.terminal_obs: dict[int, NDArray[np.float32]] = {}

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
        if self._with_terms:
            info["terms"] = dict(zip(REWARDS[self._reward], terms, strict=True))
        info |= {
            "trunk_height": height,
            "upright_cos": upright,
            "fallen": height < FALL_HEIGHT,
            "pushed": bool(pushed),
            "t": int(t),
            "truncated": done,
            "terminated": False,
            "reward": self._reward,
        }
        if done:
            info["terminal_obs"] = self.terminal_obs[i]
        return info


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
    task["imu_quat"] = model.site_quat[robot.imu]
    task["imu_turned"] = frame not in body
    task["scale"] = OBS_SCALE
    task["action_scale"] = config.action_scale
    task["stand_height"] = STAND_HEIGHT
    task["height_width"] = HEIGHT_WIDTH
    task["square"] = 2.0
    task["episode_steps"] = config.episode_steps
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
        lo, hi = model.actuator_ctrlrange[i]
        if model.actuator_ctrllimited[i] and (lo > robot.lo[i] or hi < robot.hi[i]):
            raise ModelError(
                f"{robot.path}: actuator {name!r} has ctrlrange ({lo}, {hi}), which must contain "
                f"its joint's range ({robot.lo[i]}, {robot.hi[i]})"
            )
