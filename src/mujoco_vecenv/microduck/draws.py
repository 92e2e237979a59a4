"""Everything an episode draws, in the order it is drawn."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import PUSH_MARGIN, MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE
from mujoco_vecenv.microduck.robot import Robot


@dataclass(eq=False, slots=True)
class Episode:
    """What one episode drew when it began.

    Attributes:
        latency: control steps between an action and its effect.
        sensor_noise: whether each observation draws sensor noise.
        qpos_noise: (14,) added to the joint angles of STAND, rad; None for no initial noise.
        qvel_noise: (14,) added to the joint velocities of STAND, rad/s; None likewise.
        push_steps: (k,) control steps before which a push comes, ascending.
        push_velocity: (k, 2) what each adds to the trunk's velocity in world x and y, m/s.
    """

    latency: int
    sensor_noise: bool
    qpos_noise: NDArray[np.float64] | None
    qvel_noise: NDArray[np.float64] | None
    push_steps: NDArray[np.int64]
    push_velocity: NDArray[np.float64]


def draw_episode(rng: Generator, config: MicroduckConfig) -> Episode:
    """Draw an episode: first the initial state's noise, then the pushes."""
    noise = config.init_noise
    qpos_noise = qvel_noise = None
    if noise > 0:
        qpos_noise = rng.uniform(-noise, noise, ACTIONS)
        qvel_noise = rng.uniform(-5 * noise, 5 * noise, ACTIONS)
    push_steps, push_velocity = _draw_pushes(rng, config)
    return Episode(
        config.latency, config.sensor_noise, qpos_noise, qvel_noise, push_steps, push_velocity
    )


def _draw_pushes(
    rng: Generator, config: MicroduckConfig
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    first, end = PUSH_MARGIN, config.episode_steps - PUSH_MARGIN
    if config.n_pushes <= 0 or end <= first:
        return np.empty(0, np.int64), np.empty((0, 2))
    k = min(config.n_pushes, end - first)
    steps = rng.choice(np.arange(first, end), size=k, replace=False)
    steps.sort()
    speed = rng.uniform(*config.push_speed, size=k)
    theta = rng.uniform(0, 2 * np.pi, size=k)
    velocity = np.empty((k, 2))
    velocity[:, 0] = speed * np.cos(theta)
    velocity[:, 1] = speed * np.sin(theta)
    return steps, velocity


def draw_sensor_noise(rng: Generator, robot: Robot) -> NDArray[np.float64]:
    """Draw one observation's noise: (7,), gyro (rad/s) then orientation quaternion."""
    gyro = rng.normal(0, robot.gyro_sd, 3)
    orientation = rng.normal(0, robot.orientation_sd, 4)
    return np.concatenate([gyro, orientation])


def draw_sensor_noises(rng: Generator, robot: Robot, observations: int) -> NDArray[np.float64]:
    """Draw the noise of several observations in one call.

    Returns:
        (observations, 7): the same numbers as that many calls of `draw_sensor_noise`, since
        numpy's generator makes one normal deviate after another however they are asked for.
    """
    noise = rng.standard_normal((observations, NOISE))
    noise *= np.repeat([robot.gyro_sd, robot.orientation_sd], [3, 4])
    return noise
