"""Ant-v5: run forward with a four-legged robot."""

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import clip, scaled, sum_of_squares
from mujoco_vecenv.engine.task import ACTION, Task
from mujoco_vecenv.suite.common import (
    all_finite,
    body_id,
    control_interval,
    describe_place,
    load,
    normal_velocities,
    observe_state,
)

CASES = (
    {
        "frame_skip": 3,
        "forward_reward_weight": 1.7,
        "ctrl_cost_weight": 0.013,
        "contact_cost_weight": 0.017,
        "healthy_reward": 0.7,
        "main_body": "back_leg",
        "healthy_z_range": (0.3, 0.9),
        "contact_force_range": (-0.31, 0.57),
        "reset_noise_scale": 0.2,
        "exclude_current_positions_from_observation": False,
    },
    {"terminate_when_unhealthy": False, "include_cfrc_ext_in_observation": False},
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def healthy(qpos: Any, qvel: Any, params: Any) -> bool:
    """Whether the state is finite and the height within its range, limits included."""
    low, high = params.healthy_z_range[0], params.healthy_z_range[1]
    return bool(all_finite(qpos) and all_finite(qvel) and low <= qpos[2] <= high)


def clip_forces(cfrc_ext: Any, params: Any, out: Any) -> None:
    """Write the contact forces on bodies, each within its range, as one row."""
    forces = cfrc_ext.reshape(-1)
    low, high = params.contact_force_range[0], params.contact_force_range[1]
    for k in range(len(forces)):
        out[k] = clip(forces[k], low, high)


def reward(
    qpos: Any,
    qvel: Any,
    xpos: Any,
    cfrc_ext: Any,
    action: Any,
    before: Any,
    forces: Any,
    info: Any,
    params: Any,
) -> Any:
    """Reward the main body's speed along x and health less the costs of control and contact."""
    info.x_velocity = (xpos[params.main_body, 0] - before[0]) / params.dt
    info.y_velocity = (xpos[params.main_body, 1] - before[1]) / params.dt
    forward_reward = info.x_velocity * params.forward_reward_weight
    healthy_reward = healthy(qpos, qvel, params) * params.healthy_reward
    ctrl_cost = scaled(params.ctrl_cost_weight, sum_of_squares(action))
    clip_forces(cfrc_ext, params, forces)
    contact_cost = params.contact_cost_weight * sum_of_squares(forces)
    info.reward_forward = forward_reward
    info.reward_ctrl = -ctrl_cost
    info.reward_contact = -contact_cost
    info.reward_survive = healthy_reward
    return forward_reward + healthy_reward - (ctrl_cost + contact_cost)


def terminated(qpos: Any, qvel: Any, params: Any) -> bool:
    """Whether the robot has left the healthy states."""
    return params.terminate_when_unhealthy and not healthy(qpos, qvel, params)


def describe(qpos: Any, xpos: Any, before: Any, info: Any, params: Any) -> None:
    """Tell the position, and keep the main body's for the next step."""
    describe_place(qpos, info)
    before[:] = xpos[params.main_body, :2]


def observe(qpos: Any, qvel: Any, cfrc_ext: Any, obs: Any, params: Any) -> None:
    """Observe positions, velocities and, if asked for, the contact forces on bodies."""
    end = len(qpos) - params.skip + len(qvel)
    observe_state(qpos, qvel, obs[:end], params)
    if params.include_cfrc_ext:
        clip_forces(cfrc_ext[1:], params, obs[end:])


def make(
    xml_file: str = "ant.xml",
    frame_skip: int = 5,
    forward_reward_weight: float = 1.0,
    ctrl_cost_weight: float = 0.5,
    contact_cost_weight: float = 5e-4,
    healthy_reward: float = 1.0,
    main_body: int | str = 1,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: tuple[float, float] = (0.2, 1.0),
    contact_force_range: tuple[float, float] = (-1.0, 1.0),
    reset_noise_scale: float = 0.1,
    exclude_current_positions_from_observation: bool = True,
    include_cfrc_ext_in_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    skip = 2 * int(exclude_current_positions_from_observation)
    forces = 6 * (model.nbody - 1) * int(include_cfrc_ext_in_observation)
    return Task(
        name="Ant-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=model.nq + model.nv - skip + forces,
        episode_steps=1000,
        params={
            "dt": control_interval(model, frame_skip),
            "skip": skip,
            "main_body": body_id(model, main_body, "main_body"),
            "include_cfrc_ext": bool(include_cfrc_ext_in_observation),
            "forward_reward_weight": float(forward_reward_weight),
            "ctrl_cost_weight": float(ctrl_cost_weight),
            "contact_cost_weight": float(contact_cost_weight),
            "healthy_reward": float(healthy_reward),
            "terminate_when_unhealthy": bool(terminate_when_unhealthy),
            "healthy_z_range": np.array(healthy_z_range, float),
            "contact_force_range": np.array(contact_force_range, float),
        },
        columns={"before": (float, 2), "forces": (float, 6 * model.nbody)},
        info={
            "x_position": float,
            "y_position": float,
            "distance_from_origin": float,
            "x_velocity": float,
            "y_velocity": float,
            "reward_forward": float,
            "reward_ctrl": ACTION,
            "reward_contact": float,
            "reward_survive": float,
        },
        reset_info=("x_position", "y_position", "distance_from_origin"),
        reset=normal_velocities(reset_noise_scale),
        compile_reset=True,
        reward=reward,
        terminated=terminated,
        describe=describe,
        observe=observe,
    )


reference = AntEnv

__all__ = ["make", "reference"]
