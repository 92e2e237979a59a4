"""Pusher-v5: push a cylinder to a goal with a seven-joint arm."""

from typing import Any

from gymnasium.envs.mujoco.pusher_v5 import PusherEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import norm, scaled, sum_of_squares
from mujoco_vecenv.engine.task import ACTION, Task
from mujoco_vecenv.suite.common import body_id, load

CASES = (
    {
        "frame_skip": 2,
        "reward_near_weight": 0.77,
        "reward_dist_weight": 1.3,
        "reward_control_weight": 0.17,
    },
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def reset(rng: Any, qpos: Any, qvel: Any) -> None:
    """Draw a place for the cylinder, more than 17 cm from the goal, and the arm's velocities."""
    cylinder = qpos[-4:-2]
    while True:
        cylinder[0] = rng.uniform(-0.3, 0.0)
        cylinder[1] = rng.uniform(-0.2, 0.2)
        if norm(cylinder) > 0.17:
            break
    qpos[-2:] = 0.0
    qvel += rng.uniform(-0.005, 0.005, len(qvel))
    qvel[-4:] = 0.0


def reward(xpos: Any, action: Any, reach: Any, miss: Any, info: Any, params: Any) -> Any:
    """Charge for the cylinder's distance from the arm and from the goal, and for control."""
    for k in range(3):
        reach[k] = xpos[params.cylinder, k] - xpos[params.tip, k]
        miss[k] = xpos[params.cylinder, k] - xpos[params.goal, k]
    info.reward_near = -norm(reach) * params.reward_near_weight
    info.reward_dist = -norm(miss) * params.reward_dist_weight
    reward_ctrl = scaled(params.reward_control_weight, -sum_of_squares(action))
    info.reward_ctrl = reward_ctrl
    return info.reward_dist + reward_ctrl + info.reward_near


def observe(qpos: Any, qvel: Any, xpos: Any, obs: Any, params: Any) -> None:
    """Observe the arm's joints, and where its tip, the cylinder and the goal are."""
    obs[:7] = qpos[:7]
    obs[7:14] = qvel[:7]
    obs[14:17] = xpos[params.tip]
    obs[17:20] = xpos[params.cylinder]
    obs[20:23] = xpos[params.goal]


def make(
    xml_file: str = "pusher_v5.xml",
    frame_skip: int = 5,
    reward_near_weight: float = 0.5,
    reward_dist_weight: float = 1.0,
    reward_control_weight: float = 0.1,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    return Task(
        name="Pusher-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=23,
        episode_steps=100,
        params={
            "tip": body_id(model, "tips_arm"),
            "cylinder": body_id(model, "object"),
            "goal": body_id(model, "goal"),
            "reward_near_weight": float(reward_near_weight),
            "reward_dist_weight": float(reward_dist_weight),
            "reward_control_weight": float(reward_control_weight),
        },
        columns={"reach": (float, 3), "miss": (float, 3)},
        info={"reward_dist": float, "reward_ctrl": ACTION, "reward_near": float},
        reset=reset,
        compile_reset=True,
        reward=reward,
        observe=observe,
    )


reference = PusherEnv

__all__ = ["make", "reference"]
