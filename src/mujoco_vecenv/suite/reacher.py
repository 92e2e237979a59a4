"""Reacher-v5: bring the fingertip of a planar two-joint arm to a target."""

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import norm, scaled, sum_of_squares
from mujoco_vecenv.engine.task import ACTION, Task
from mujoco_vecenv.suite.common import body_id, load

CASES = ({"frame_skip": 5, "reward_dist_weight": 1.3, "reward_control_weight": 0.17},)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def reset(rng: Any, qpos: Any, qvel: Any) -> None:
    """Draw a state near the default, and a target within 20 cm of the base."""
    qpos += rng.uniform(-0.1, 0.1, len(qpos))
    while True:
        target = rng.uniform(-0.2, 0.2, 2)
        if norm(target) < 0.2:
            break
    qpos[-2:] = target
    qvel += rng.uniform(-0.005, 0.005, len(qvel))
    qvel[-2:] = 0.0


def reward(xpos: Any, action: Any, miss: Any, info: Any, params: Any) -> Any:
    """Charge for the distance from fingertip to target and for control."""
    for k in range(3):
        miss[k] = xpos[params.fingertip, k] - xpos[params.target, k]
    info.reward_dist = -norm(miss) * params.reward_dist_weight
    reward_ctrl = scaled(params.reward_control_weight, -sum_of_squares(action))
    info.reward_ctrl = reward_ctrl
    return info.reward_dist + reward_ctrl


def observe(qpos: Any, qvel: Any, xpos: Any, obs: Any, params: Any) -> None:
    """Observe the joints, the target, and where the fingertip is from the target."""
    for k in range(2):
        obs[k] = np.cos(qpos[k])
        obs[2 + k] = np.sin(qpos[k])
    end = len(qpos) + 2
    obs[4:end] = qpos[2:]
    for k in range(2):
        obs[end + k] = qvel[k]
        obs[end + 2 + k] = xpos[params.fingertip, k] - xpos[params.target, k]


def make(
    xml_file: str = "reacher.xml",
    frame_skip: int = 2,
    reward_dist_weight: float = 1.0,
    reward_control_weight: float = 1.0,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    return Task(
        name="Reacher-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=model.nq + 6,
        episode_steps=50,
        params={
            "fingertip": body_id(model, "fingertip"),
            "target": body_id(model, "target"),
            "reward_dist_weight": float(reward_dist_weight),
            "reward_control_weight": float(reward_control_weight),
        },
        columns={"miss": (float, 3)},
        info={"reward_dist": float, "reward_ctrl": ACTION},
        reset=reset,
        compile_reset=True,
        reward=reward,
        observe=observe,
    )


reference = ReacherEnv

__all__ = ["make", "reference"]
