"""Humanoid-v5: walk forward with a robot of human shape."""

from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import clip, sum_of_squares, weighted_sum
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.suite.common import (
    control_interval,
    describe_place,
    load,
    observe_state,
    uniform_state,
    within,
)

CASES = (
    {
        "frame_skip": 3,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.013,
        "contact_cost_weight": 0.003,
        "contact_cost_range": (0.1, 2.0),
        "healthy_reward": 2.7,
        "healthy_z_range": (0.7, 1.5),
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
    },
    {
        "terminate_when_unhealthy": False,
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def mass_center(xipos: Any, params: Any, out: Any) -> None:
    """Write the centre of mass of all bodies."""
    weighted_sum(params.body_mass, xipos, out)
    for k in range(len(out)):
        out[k] = out[k] / params.total_mass


def impact_cost(cfrc_ext: Any, params: Any) -> Any:
    """Return the cost of contact forces, within its range."""
    cost = params.impact_cost_weight * sum_of_squares(cfrc_ext.reshape(-1))
    return clip(cost, params.impact_cost_range[0], params.impact_cost_range[1])


def reward(
    qpos: Any,
    ctrl: Any,
    xipos: Any,
    cfrc_ext: Any,
    before: Any,
    center: Any,
    info: Any,
    params: Any,
) -> Any:
    """Reward the mass's speed along x and health less the costs of control and contact."""
    mass_center(xipos, params, center)
    info.x_velocity = (center[0] - before[0]) / params.dt
    info.y_velocity = (center[1] - before[1]) / params.dt
    forward_reward = params.forward_reward_weight * info.x_velocity
    healthy_reward = within(qpos[2], params.healthy_z_range) * params.healthy_reward
    ctrl_cost = params.ctrl_cost_weight * sum_of_squares(ctrl)
    contact_cost = impact_cost(cfrc_ext, params)
    info.reward_survive = healthy_reward
    info.reward_forward = forward_reward
    info.reward_ctrl = -ctrl_cost
    info.reward_contact = -contact_cost
    return forward_reward + healthy_reward - (ctrl_cost + contact_cost)


def terminated(qpos: Any, params: Any) -> bool:
    """Whether the robot has fallen, or jumped too high."""
    return params.terminate_when_unhealthy and not within(qpos[2], params.healthy_z_range)


def describe_tendons(ten_length: Any, ten_velocity: Any, info: Any) -> None:
    """Tell the tendons' lengths and velocities."""
    info.tendon_length[:] = ten_length
    info.tendon_velocity[:] = ten_velocity


def describe(
    qpos: Any, xipos: Any, ten_length: Any, ten_velocity: Any, before: Any, info: Any, params: Any
) -> None:
    """Tell position and tendons, and keep the centre of mass for the next step."""
    describe_place(qpos, info)
    describe_tendons(ten_length, ten_velocity, info)
    mass_center(xipos, params, before)


def append(obs: Any, start: int, values: Any) -> int:
    """Write the rows of values, one after the other, and return where they end."""
    end: int = start + values.size
    obs[start:end] = values.reshape(-1)
    return end


def observe(
    qpos: Any,
    qvel: Any,
    cinert: Any,
    cvel: Any,
    qfrc_actuator: Any,
    cfrc_ext: Any,
    obs: Any,
    params: Any,
) -> None:
    """Observe positions, velocities, and what is asked for of the bodies and joints."""
    end = len(qpos) - params.skip + len(qvel)
    observe_state(qpos, qvel, obs[:end], params)
    if params.include_cinert:
        end = append(obs, end, cinert[1:])
    if params.include_cvel:
        end = append(obs, end, cvel[1:])
    if params.include_qfrc_actuator:
        end = append(obs, end, qfrc_actuator[6:])
    if params.include_cfrc_ext:
        append(obs, end, cfrc_ext[1:])


def shown(
    model: mujoco.MjModel,
    exclude_positions: bool,
    cinert: bool,
    cvel: bool,
    qfrc_actuator: bool,
    cfrc_ext: bool,
) -> tuple[int, dict[str, Any]]:
    """Return the size of an observation, and the constants that `observe` needs."""
    skip = 2 * int(exclude_positions)
    per_body = 10 * int(cinert) + 6 * int(cvel) + 6 * int(cfrc_ext)
    size = model.nq + model.nv - skip + (model.nbody - 1) * per_body
    size += (model.nv - 6) * int(qfrc_actuator)
    return size, {
        "skip": skip,
        "include_cinert": bool(cinert),
        "include_cvel": bool(cvel),
        "include_qfrc_actuator": bool(qfrc_actuator),
        "include_cfrc_ext": bool(cfrc_ext),
    }


def make(
    xml_file: str = "humanoid.xml",
    frame_skip: int = 5,
    forward_reward_weight: float = 1.25,
    ctrl_cost_weight: float = 0.1,
    contact_cost_weight: float = 5e-7,
    contact_cost_range: tuple[float, float] = (-float("inf"), 10.0),
    healthy_reward: float = 5.0,
    terminate_when_unhealthy: bool = True,
    healthy_z_range: tuple[float, float] = (1.0, 2.0),
    reset_noise_scale: float = 1e-2,
    exclude_current_positions_from_observation: bool = True,
    include_cinert_in_observation: bool = True,
    include_cvel_in_observation: bool = True,
    include_qfrc_actuator_in_observation: bool = True,
    include_cfrc_ext_in_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment."""
    path, model = load(xml_file)
    observations, shows = shown(
        model,
        exclude_current_positions_from_observation,
        include_cinert_in_observation,
        include_cvel_in_observation,
        include_qfrc_actuator_in_observation,
        include_cfrc_ext_in_observation,
    )
    return Task(
        name="Humanoid-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=observations,
        episode_steps=1000,
        params={
            **shows,
            "dt": control_interval(model, frame_skip),
            "body_mass": model.body_mass.copy(),
            "total_mass": model.body_mass.sum(),
            "forward_reward_weight": float(forward_reward_weight),
            "ctrl_cost_weight": float(ctrl_cost_weight),
            "impact_cost_weight": float(contact_cost_weight),
            "impact_cost_range": np.array(contact_cost_range, float),
            "healthy_reward": float(healthy_reward),
            "terminate_when_unhealthy": bool(terminate_when_unhealthy),
            "healthy_z_range": np.array(healthy_z_range, float),
        },
        columns={"before": (float, 3), "center": (float, 3)},
        info={
            "x_position": float,
            "y_position": float,
            "tendon_length": (float, (model.ntendon,)),
            "tendon_velocity": (float, (model.ntendon,)),
            "distance_from_origin": float,
            "x_velocity": float,
            "y_velocity": float,
            "reward_survive": float,
            "reward_forward": float,
            "reward_ctrl": float,
            "reward_contact": float,
        },
        reset_info=(
            "x_position",
            "y_position",
            "tendon_length",
            "tendon_velocity",
            "distance_from_origin",
        ),
        reset=uniform_state(reset_noise_scale),
        compile_reset=True,
        reward=reward,
        terminated=terminated,
        describe=describe,
        observe=observe,
    )


reference = HumanoidEnv

__all__ = ["make", "reference"]
