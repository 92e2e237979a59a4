"""Hopper-v5: hop forward with a planar one-legged robot."""

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

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
        "frame_skip": 2,
        "forward_reward_weight": 0.3,
        "ctrl_cost_weight": 0.013,
        "healthy_reward": 2.3,
        "healthy_state_range": (-3.3, 4.1),
        "healthy_z_range": (0.8, 1.5),
        "healthy_angle_range": (-0.4, 0.1),
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
    },
    {"terminate_when_unhealthy": False},
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def healthy(qpos: Any, qvel: Any, params: Any) -> bool:
    """Whether height, angle and the rest of the state are within their ranges."""
    low, high = params.healthy_state_range[0], params.healthy_state_range[1]
    within_range = True
    for k in range(2, len(qpos)):
        within_range = within_range and low < qpos[k] < high
    for k in range(len(qvel)):
        within_range = within_range and low < qvel[k] < high
    return bool(within_range and upright(qpos, params))


def reward(qpos: Any, qvel: Any, action: Any, before: Any, info: Any, params: Any) -> Any:
    """Reward speed along x and health less the cost of control."""
    return reward_run(qpos, action, before, info, params, healthy(qpos, qvel, params))


def terminated(qpos: Any, qvel: Any, params: Any) -> bool:
    """Whether the robot has left the healthy states."""
    return params.terminate_when_unhealthy and not healthy(qpos, qvel, params)


def make(
    xml_file: str = "hopper.xml",
    frame_skip: int = 4,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 1e-3,
    healthy_reward: float = 1.0,
    terminate_when_unhealthy: bool = True,
    healthy_state_range: tuple[float, float] = (-100.0, 100.0),
    healthy_z_range: tuple[float, float] = (0.7, float("inf")),
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
    reset_noise_scale: float = 5e-3,
    exclude_current_positions_from_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    skip = int(exclude_current_positions_from_observation)
    return Task(
        name="Hopper-v5",
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
            "healthy_state_range": np.array(healthy_state_range, float),
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


reference = HopperEnv

__all__ = ["make", "reference"]
