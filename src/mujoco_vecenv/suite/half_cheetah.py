"""HalfCheetah-v5: run forward with a planar two-legged robot."""

from typing import Any

from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import scaled, sum_of_squares
from mujoco_vecenv.engine.task import ACTION, Task
from mujoco_vecenv.suite.common import (
    control_interval,
    load,
    normal_velocities,
    observe_state,
    remember_x,
)

CASES = (
    {
        "frame_skip": 3,
        "forward_reward_weight": 1.7,
        "ctrl_cost_weight": 0.37,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
    },
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def reward(qpos: Any, action: Any, before: Any, info: Any, params: Any) -> Any:
    """Reward speed along x less the cost of control."""
    info.x_velocity = (qpos[0] - before[0]) / params.dt
    forward_reward = params.forward_reward_weight * info.x_velocity
    ctrl_cost = scaled(params.ctrl_cost_weight, sum_of_squares(action))
    info.reward_forward = forward_reward
    info.reward_ctrl = -ctrl_cost
    return forward_reward - ctrl_cost


def describe(qpos: Any, info: Any) -> None:
    """Tell the position along x."""
    info.x_position = qpos[0]


def make(
    xml_file: str = "half_cheetah.xml",
    frame_skip: int = 5,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 0.1,
    reset_noise_scale: float = 0.1,
    exclude_current_positions_from_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    skip = int(exclude_current_positions_from_observation)
    return Task(
        name="HalfCheetah-v5",
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
        columns={"before": (float, 1)},
        info={
            "x_position": float,
            "x_velocity": float,
            "reward_forward": float,
            "reward_ctrl": ACTION,
        },
        reset_info=("x_position",),
        reset=normal_velocities(reset_noise_scale),
        compile_reset=True,
        control=remember_x,
        reward=reward,
        describe=describe,
        observe=observe_state,
    )


reference = HalfCheetahEnv

__all__ = ["make", "reference"]
