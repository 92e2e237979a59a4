"""Everything an episode draws, in the order it is drawn, and the draws as a value."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mujoco_vecenv.microduck.config import PUSH_MARGIN, MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS, NOISE
from mujoco_vecenv.microduck.randomization import Factors, draw_factors
from mujoco_vecenv.microduck.robot import Robot


@dataclass(eq=False, slots=True)
class Episode:
    """What one episode drew: with the actions taken, all that it was.

    Attributes:
        factors: the episode's physics, or None for the model as it is.
        latency: control steps between an action and its effect.
        angles: (14,) joint angles of the first state, rad.
        velocities: (14,) joint velocities of the first state, rad/s.
        push_steps: (k,) int64, control steps before which a push comes, ascending.
        push_velocity: (k, 2) what each adds to the trunk's velocity in world x and y, m/s.
        sensor_noise: whether the observations are noisy.
        noise: (episode_steps + 1, 7) the noise of every observation, gyro (rad/s) then quaternion;
            None where there is none, or where it is still to be drawn from the generator.
    """

    factors: Factors | None
    latency: int
    angles: NDArray[np.float64]
    velocities: NDArray[np.float64]
    push_steps: NDArray[np.int64]
    push_velocity: NDArray[np.float64]
    sensor_noise: bool
    noise: NDArray[np.float64] | None = None


def draw_episode(rng: Generator, config: MicroduckConfig, robot: Robot) -> Episode:
    """Draw an episode: its randomised physics, its first state, its pushes.

    The sensors' noise comes after these from the same generator, observation by observation.
    """
    factors = None
    latency, init_noise, sensor_noise = config.latency, config.init_noise, config.sensor_noise
    dr = config.dr
    if dr is not None:
        factors = draw_factors(rng, dr)
        if dr.latency is not None:
            latency = int(rng.integers(dr.latency[0], dr.latency[1] + 1))
        if dr.init_noise is not None:
            init_noise = float(rng.uniform(*dr.init_noise))
        sensor_noise = sensor_noise or dr.sensor_noise
    angles, velocities = robot.default.copy(), robot.default_velocity.copy()
    if init_noise > 0:
        angles = angles + rng.uniform(-init_noise, init_noise, ACTIONS)
        velocities = velocities + rng.uniform(-5 * init_noise, 5 * init_noise, ACTIONS)
        angles = np.minimum(np.maximum(angles, robot.lo), robot.hi)
    push_steps, push_velocity = _draw_pushes(rng, config)
    return Episode(factors, latency, angles, velocities, push_steps, push_velocity, sensor_noise)


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
    noise *= robot.noise_sd
    noise += 0.0  # as numpy's normal adds its mean, which turns -0.0 into 0.0
    return noise
