"""HumanoidStandup-v5: stand up from the ground with a robot of human shape."""

from typing import Any

import numpy as np
from gymnasium.envs.mujoco.humanoidstandup_v5 import HumanoidStandupEnv

from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.numpy_bits import sum_of_squares
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.suite.common import load, uniform_state
from mujoco_vecenv.suite.humanoid import describe_tendons, impact_cost, observe, shown

CASES = (
    {
        "frame_skip": 3,
        "uph_cost_weight": 3.3,
        "ctrl_cost_weight": 0.013,
        "impact_cost_weight": 0.003,
        "impact_cost_range": (0.1, 2.0),
        "reset_noise_scale": 0.05,
        "exclude_current_positions_from_observation": False,
    },
    {
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
)
"""Options beside the defaults for which the contract holds it against Gymnasium's."""


def reward(qpos: Any, ctrl: Any, cfrc_ext: Any, info: Any, params: Any) -> Any:
    """Reward height, and the step itself, less the costs of control and impacts."""
    uph_cost = qpos[2] / params.timestep
    ctrl_cost = params.ctrl_cost_weight * sum_of_squares(ctrl)
    cost = impact_cost(cfrc_ext, params)
    info.reward_linup = uph_cost
    info.reward_quadctrl = -ctrl_cost
    info.reward_impact = -cost
    return uph_cost - ctrl_cost - cost + 1.0


def describe(qpos: Any, ten_length: Any, ten_velocity: Any, info: Any, params: Any) -> None:
    """Tell position, height above the first, and tendons."""
    info.x_position = qpos[0]
    info.y_position = qpos[1]
    info.z_distance_from_origin = qpos[2] - params.first_z
    describe_tendons(ten_length, ten_velocity, info)


def make(
    xml_file: str = "humanoidstandup.xml",
    frame_skip: int = 5,
    uph_cost_weight: float = 1.0,
    ctrl_cost_weight: float = 0.1,
    impact_cost_weight: float = 0.5e-6,
    impact_cost_range: tuple[float, float] = (-float("inf"), 10.0),
    reset_noise_scale: float = 1e-2,
    exclude_current_positions_from_observation: bool = True,
    include_cinert_in_observation: bool = True,
    include_cvel_in_observation: bool = True,
    include_qfrc_actuator_in_observation: bool = True,
    include_cfrc_ext_in_observation: bool = True,
) -> Task:
    """Return the task. The options are those of Gymnasium's environment.

    `uph_cost_weight` changes nothing, as in Gymnasium, which never reads it.
    """
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
        name="HumanoidStandup-v5",
        model=path,
        substeps=check_integer("frame_skip", frame_skip, 1),
        observations=observations,
        episode_steps=1000,
        params={
            **shows,
            "timestep": float(model.opt.timestep),
            "first_z": model.qpos0[2],
            "ctrl_cost_weight": float(ctrl_cost_weight),
            "impact_cost_weight": float(impact_cost_weight),
            "impact_cost_range": np.array(impact_cost_range, float),
        },
        info={
            "x_position": float,
            "y_position": float,
            "z_distance_from_origin": float,
            "tendon_length": (float, (model.ntendon,)),
            "tendon_velocity": (float, (model.ntendon,)),
            "reward_linup": float,
            "reward_quadctrl": float,
            "reward_impact": float,
        },
        reset_info=(
            "x_position",
            "y_position",
            "z_distance_from_origin",
            "tendon_length",
            "tendon_velocity",
        ),
        reset=uniform_state(reset_noise_scale),
        compile_reset=True,
        reward=reward,
        describe=describe,
        observe=observe,
    )


reference = HumanoidStandupEnv

__all__ = ["make", "reference"]
