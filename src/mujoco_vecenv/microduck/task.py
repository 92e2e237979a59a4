"""The Microduck as a task of the engine."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import mujoco
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.engine.generators import rng_words, set_rng
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.microduck import kernels
from mujoco_vecenv.microduck.config import SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode, draw_episode, draw_sensor_noises
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE, OBS_SCALE, OBSERVATIONS
from mujoco_vecenv.microduck.randomization import DomainRandomizer, DRConfig
from mujoco_vecenv.microduck.rewards import REWARDS
from mujoco_vecenv.microduck.robot import ModelError, Robot, scene_path

SERVO_FIELDS: Final = (
    *("dof_damping", "dof_frictionloss", "dof_armature"),
    *("actuator_gainprm", "actuator_biasprm", "actuator_forcerange"),
)
"""Model fields that a randomised servo changes."""

CASES: Final[tuple[dict[str, Any], ...]] = (
    {"reward": "v2", "latency": 2, "variant": "walk"},
    {"dr": True, "reward": "v2"},
)
"""Options beside the defaults for which the contract holds it against its reference."""

_REWARDS: Final[dict[str, Callable[..., Any]]] = {"v1": kernels.reward_v1, "v2": kernels.reward_v2}


def make(**keywords: Any) -> Task:
    """Return the task. The keywords are the attributes of `MicroduckConfig`."""
    config = MicroduckConfig.from_keywords(keywords)
    return task_of(config, load_robot(config))


def reference(**keywords: Any) -> Any:
    """Return the reference environment as a gymnasium.Env."""
    from mujoco_vecenv.microduck.gymnasium_env import MicroduckGymnasiumEnv  # an extra

    return MicroduckGymnasiumEnv(**keywords)


def load_robot(config: MicroduckConfig) -> Robot:
    """Return the robot of a configuration."""
    path = scene_path(config)
    return Robot(mujoco.MjModel.from_xml_path(str(path)), path)


def task_of(config: MicroduckConfig, robot: Robot) -> Task:
    """Return the task of a configuration and its robot.

    Raises:
        ModelError: the model has actuators whose force would not be reproduced.
    """
    _check_servos(robot)
    dr = config.dr or DRConfig.none()
    latency = max(config.latency, dr.latency[1] if dr.latency else 0)
    pushes = max(1, min(config.n_pushes, config.episode_steps))
    noisy = config.sensor_noise or dr.sensor_noise
    randomizer = DomainRandomizer(robot.model, dr)
    nominal = servos_of(robot.model, {})

    def reset(
        rng: Generator,
        qpos: NDArray[np.float64],
        qvel: NDArray[np.float64],
        running: Any,
        push_steps: NDArray[np.int64],
        push_velocity: NDArray[np.float64],
        noise: NDArray[np.float64],
        drawn: NDArray[np.uint64],
        servos: NDArray[np.float64],
        fields: Mapping[str, NDArray[np.float64]],
    ) -> None:
        episode = draw_episode(rng, config, robot)
        write_episode(episode, robot, qpos, qvel, running, push_steps, push_velocity)
        servos[:] = nominal
        if episode.sensor_noise:
            drawn[:] = rng_words(rng)
            noise[:] = draw_sensor_noises(rng, robot, len(noise))
        if episode.factors is not None:
            values = randomizer.values(episode.factors)
            for name, value in values.items():
                fields[name][:] = value
            servos[:] = servos_of(robot.model, values)

    def leave(rng: Generator, elapsed: int, running: Any, drawn: NDArray[np.uint64]) -> None:
        if running.noisy:
            rewind(rng, drawn, robot, elapsed)

    return Task(
        name="Microduck-v0",
        model=robot.path,
        substeps=SUBSTEPS,
        observations=OBSERVATIONS,
        observation_dtype=np.float32,
        action_low=np.full(ACTIONS, -1, np.float32),
        action_high=np.full(ACTIONS, 1, np.float32),
        episode_steps=config.episode_steps,
        keyframe="STAND",
        params=_params(robot, config),
        columns={
            "running": kernels.RUNNING,
            "trunk": kernels.TRUNK,
            "delayed": (float, (max(1, latency), ACTIONS)),
            "push_steps": (np.int64, pushes),
            "push_velocity": (float, (pushes, 2)),
            "noise": (float, (config.episode_steps + 1 if noisy else 1, NOISE)),
            "drawn": (np.uint64, 6),
            "servos": (float, nominal.shape),
        },
        info={
            **{f"reward_{term}": float for term in REWARDS[config.reward]},
            "trunk_height": float,
            "upright_cos": float,
            "fallen": bool,
            "pushed": bool,
            "t": int,
        },
        model_fields=_fields(dr),
        recompute_constants=dr.recompute_constants and bool(_fields(dr)),
        reset=reset,
        leave=leave,
        control=kernels.control,
        reward=_REWARDS[config.reward],
        describe=kernels.describe,
        observe=kernels.observe,
    )


def write_episode(
    episode: Episode,
    robot: Robot,
    qpos: NDArray[np.float64],
    qvel: NDArray[np.float64],
    running: Any,
    push_steps: NDArray[np.int64],
    push_velocity: NDArray[np.float64],
) -> None:
    """Write an episode's first state and pushes into zeroed columns of a robot in STAND."""
    qpos[robot.qpos] = episode.angles
    qvel[robot.qvel] = episode.velocities
    running.latency = episode.latency
    running.noisy = episode.sensor_noise
    k = len(episode.push_steps)
    push_steps[:] = -1
    push_steps[:k] = episode.push_steps
    push_velocity[:k] = episode.push_velocity


def rewind(rng: Generator, drawn: NDArray[np.uint64], robot: Robot, elapsed: int) -> None:
    """Put a generator to where it would be had it drawn the noise of each observation alone."""
    set_rng(rng, drawn)
    draw_sensor_noises(rng, robot, elapsed + 1)


def servos_of(
    model: mujoco.MjModel, values: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return (14, 7): each servo's gear, gain, bias coefficients and force limits, N·m.

    Args:
        model: the untouched model.
        values: model fields in their place, as DomainRandomizer.values returns them.
    """
    gain = values.get("actuator_gainprm", model.actuator_gainprm)
    bias = values.get("actuator_biasprm", model.actuator_biasprm)
    force = values.get("actuator_forcerange", model.actuator_forcerange)
    limited = model.actuator_forcelimited.astype(bool)[:, None]
    limits = np.where(limited, force, [-np.inf, np.inf])
    return np.hstack([model.actuator_gear[:, :1], gain[:, :1], bias[:, :3], limits])


def _fields(dr: DRConfig) -> tuple[str, ...]:
    """Return the model fields that an episode's factors change."""
    return (
        *(SERVO_FIELDS if dr.actuator else ()),
        *(("body_mass", "body_inertia") if dr.mass_scale is not None else ()),
        *(("geom_friction",) if dr.floor_friction is not None else ()),
    )


def _params(robot: Robot, config: MicroduckConfig) -> dict[str, Any]:
    """Return what is the same in all environments and all episodes."""
    model = robot.model
    # How MuJoCo orients a site depends on where it lies: by its own quaternion, or as its body.
    frame = int(model.site_sameframe[robot.imu])
    body = (mujoco.mjtSameFrame.mjSAMEFRAME_BODY, mujoco.mjtSameFrame.mjSAMEFRAME_BODYROT)
    if frame != mujoco.mjtSameFrame.mjSAMEFRAME_NONE and frame not in body:
        raise ModelError(f"{robot.path}: the IMU's site must not lie in its body's inertial frame")
    return {
        "default": robot.default,
        "lo": robot.lo,
        "hi": robot.hi,
        "qpos_ids": robot.qpos,
        "qvel_ids": robot.qvel,
        # MuJoCo takes a site for unturned that is turned by less than it can tell.
        "imu_quat": np.array([1.0, 0, 0, 0]) if frame in body else model.site_quat[robot.imu],
        "imu_turned": frame not in body,
        "scale": OBS_SCALE,
        "action_scale": config.action_scale,
        "weights": np.array(list(REWARDS[config.reward].values())),
    }


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
