"""Walker2d-v5: walk forward with a planar two-legged robot."""

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.task import ACTION, Task
from mujoco_vecenv.suite.common import (
    control_interval,
    describe_height,
    load,
    observe_clipped,
    remember_x,
    reward_run,
    uniform_state,
    upright,
)

CASES = (
    {
        "frame_skip": 3,
        "forward_reward_weight": 0.3,
        "ctrl_cost_weight": 0.013,
        "healthy_reward": 2.3,
        "healthy_z_range": (0.9, 1.5),
        "healthy_angle_range": (-0.4, 0.6),
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
    },
    {"terminate_when_unhealthy": False},
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def reward(qpos: Any, action: Any, before: Any, info: Any, params: Any) -> Any:
    """Reward speed along x and health less the cost of control."""
    return reward_run(qpos, action, before, info, params, upright(qpos, params))


def terminated(qpos: Any, params: Any) -> bool:
    """Whether the robot has fallen."""
    return params.terminate_when_unhealthy and not upright(qpos, params)


def make(
    xml_file: str = "walker2d_v5.xml",
    frame_skip: int = 4,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 1e-3,
    healthy_reward: float = 1.0,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: tuple[float, float] = (0.8, 2.0),
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0),
    reset_noise_scale: float = 5e-3,
    exclude_current_positions_from_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    skip = int(exclude_current_positions_from_observation)
    return Task(
        name="Walker2d-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=model.nq + model.nv - skip,
        episode_steps=1000,
        params={
            "dt": control_interval(model, frame_skip),
            "skip": skip,
            "first_z": model.qpos0[1],
            "forward_reward_weight": float(forward_reward_weight),
            "ctrl_cost_weight": float(ctrl_cost_weight),
            "healthy_reward": float(healthy_reward),
            "terminate_when_unhealthy": bool(terminate_when_unhealthy),
            "healthy_z_range": np.array(healthy_z_range, float),
            "healthy_angle_range": np.array(healthy_angle_range, float),
        },
        columns={"before": (float, 1)},
        info={
            "x_position": float,
            "z_distance_from_origin": float,
            "x_velocity": float,
            "reward_forward": float,
            "reward_ctrl": ACTION,
            "reward_survive": float,
        },
        reset_info=("x_position", "z_distance_from_origin"),
        reset=uniform_state(reset_noise_scale),
        compile_reset=True,
        control=remember_x,
        reward=reward,
        terminated=terminated,
        describe=describe_height,
        observe=observe_clipped,
    )


reference = Walker2dEnv

__all__ = ["make", "reference"]
