"""InvertedDoublePendulum-v5: balance two poles, one atop the other, on a cart."""

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.inverted_double_pendulum_v5 import InvertedDoublePendulumEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import clip, square
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.suite.common import load, normal_velocities

CASES = ({"frame_skip": 2, "healthy_reward": 3.7, "reset_noise_scale": 0.25},)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def terminated(site_xpos: Any) -> bool:
    """Whether the upper pole's tip is no higher than one metre."""
    return bool(site_xpos[0, 2] <= 1.0)


def reward(qvel: Any, site_xpos: Any, info: Any, params: Any) -> Any:
    """Reward survival less how far the tip is from its best place, and how fast the poles turn."""
    x, z = site_xpos[0, 0], site_xpos[0, 2]
    distance_penalty = 0.01 * square(x) + square(z - 2.0)
    velocity_penalty = 1e-3 * square(qvel[1]) + 5e-3 * square(qvel[2])
    alive_bonus = params.healthy_reward * (not terminated(site_xpos))
    info.reward_survive = alive_bonus
    info.distance_penalty = -distance_penalty
    info.velocity_penalty = -velocity_penalty
    return alive_bonus - distance_penalty - velocity_penalty


def observe(qpos: Any, qvel: Any, qfrc_constraint: Any, obs: Any) -> None:
    """Observe the cart's place, the poles' angles, velocities and the force on the cart."""
    poles = len(qpos) - 1
    obs[0] = qpos[0]
    for k in range(1, len(qpos)):
        obs[k] = np.sin(qpos[k])
        obs[poles + k] = np.cos(qpos[k])
    start = 1 + 2 * poles
    for k in range(len(qvel)):
        obs[start + k] = clip(qvel[k], -10.0, 10.0)
    obs[start + len(qvel)] = clip(qfrc_constraint[0], -10.0, 10.0)


def make(
    xml_file: str = "inverted_double_pendulum.xml",
    frame_skip: int = 5,
    healthy_reward: float = 10.0,
    reset_noise_scale: float = 0.1,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    return Task(
        name="InvertedDoublePendulum-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=2 * model.nq + model.nv,
        episode_steps=1000,
        params={"healthy_reward": float(healthy_reward)},
        info={"reward_survive": float, "distance_penalty": float, "velocity_penalty": float},
        reset=normal_velocities(reset_noise_scale),
        compile_reset=True,
        reward=reward,
        terminated=terminated,
        observe=observe,
    )


reference = InvertedDoublePendulumEnv

__all__ = ["make", "reference"]
