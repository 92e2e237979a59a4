"""Swimmer-v5: swim forward with a planar three-link robot."""

from typing import Any

from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import scaled, sum_of_squares
from mujoco_vecenv.engine.task import ACTION, Task
from mujoco_vecenv.suite.common import (
    control_interval,
    describe_place,
    load,
    observe_state,
    uniform_state,
)

CASES = (
    {
        "frame_skip": 7,
        "forward_reward_weight": 1.9,
        "ctrl_cost_weight": 0.0123,
        "reset_noise_scale": 0.7,
        "exclude_current_positions_from_observation": False,
    },
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def control(action: Any, qpos: Any, ctrl: Any, before: Any) -> None:
    """Control the actuators by the action, and keep the position in the plane."""
    ctrl[:] = action
    before[:] = qpos[:2]


def reward(qpos: Any, action: Any, before: Any, info: Any, params: Any) -> Any:
    """Reward speed along x less the cost of control."""
    info.x_velocity = (qpos[0] - before[0]) / params.dt
    info.y_velocity = (qpos[1] - before[1]) / params.dt
    forward_reward = params.forward_reward_weight * info.x_velocity
    ctrl_cost = scaled(params.ctrl_cost_weight, sum_of_squares(action))
    info.reward_forward = forward_reward
    info.reward_ctrl = -ctrl_cost
    return forward_reward - ctrl_cost


def make(
    xml_file: str = "swimmer.xml",
    frame_skip: int = 4,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 1e-4,
    reset_noise_scale: float = 0.1,
    exclude_current_positions_from_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    skip = 2 * int(exclude_current_positions_from_observation)
    return Task(
        name="Swimmer-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=model.nq + model.nv - skip,
        episode_steps=1000,
        params={
            "dt": control_interval(model, frame_skip),
            "skip": skip,
            "forward_reward_weight": float(forward_reward_weight),
            "ctrl_cost_weight": float(ctrl_cost_weight),
        },
        columns={"before": (float, 2)},
        info={
            "x_position": float,
            "y_position": float,
            "distance_from_origin": float,
            "x_velocity": float,
            "y_velocity": float,
            "reward_forward": float,
            "reward_ctrl": ACTION,
        },
        reset_info=("x_position", "y_position", "distance_from_origin"),
        reset=uniform_state(reset_noise_scale),
        compile_reset=True,
        control=control,
        reward=reward,
        describe=describe_place,
        observe=observe_state,
    )


reference = SwimmerEnv

__all__ = ["make", "reference"]
