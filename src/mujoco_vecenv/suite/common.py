"""What the environments of the suite share."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium.envs.mujoco
import mujoco

from mujoco_vecenv.checks import check_integer, check_number, closest
from mujoco_vecenv.engine.models import compile_model
from mujoco_vecenv.engine.numpy_bits import clip, norm, scaled, sum_of_squares


def asset(xml_file: str) -> Path:
    """Return the path of a model: one of Gymnasium's by its name, or another by a path."""
    if xml_file.startswith((".", "/")):
        return Path(xml_file)
    if xml_file.startswith("~"):
        return Path(xml_file).expanduser()
    return Path(gymnasium.envs.mujoco.__file__).parent / "assets" / xml_file


def load(xml_file: str) -> tuple[Path, mujoco.MjModel]:
    """Return the path of a model and the model.

    Raises:
        FileNotFoundError: there is none.
    """
    path = asset(xml_file)
    if not path.is_file():
        raise FileNotFoundError(f"xml_file: there is no model {str(path)!r}")
    return path, compile_model(path)


def body_id(model: mujoco.MjModel, body: int | str, option: str = "xml_file") -> int:
    """Return the id of a body, given by its name or the id itself.

    Raises:
        TypeError: the body is neither an integer nor a name.
        ValueError: the model has no such body. The message names the option that asked for it.
    """
    if not isinstance(body, str):
        return check_integer(option, body, 0, model.nbody - 1)
    number: int = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, body)
    if number < 0:
        names = [name for k in range(model.nbody) if (name := model.body(k).name)]
        raise ValueError(f"{option}: the model has no body {body!r}{closest(body, names)}")
    return number


def control_interval(model: mujoco.MjModel, frame_skip: int) -> float:
    """Return the seconds in a control step."""
    return float(model.opt.timestep * frame_skip)


def uniform_state(reset_noise_scale: float) -> Callable[..., None]:
    """Return a reset with uniform noise on positions and velocities."""
    scale = _noise_scale(reset_noise_scale)

    def reset(rng: Any, qpos: Any, qvel: Any) -> None:
        qpos += rng.uniform(-scale, scale, len(qpos))
        qvel += rng.uniform(-scale, scale, len(qvel))

    return reset


def normal_velocities(reset_noise_scale: float) -> Callable[..., None]:
    """Return a reset with uniform noise on positions and normal noise on velocities."""
    scale = _noise_scale(reset_noise_scale)

    def reset(rng: Any, qpos: Any, qvel: Any) -> None:
        qpos += rng.uniform(-scale, scale, len(qpos))
        qvel += scale * rng.standard_normal(len(qvel))

    return reset


def _noise_scale(scale: float) -> float:
    if check_number("reset_noise_scale", scale) < 0:
        raise ValueError(f"reset_noise_scale must be 0 or more, got {scale!r}")
    return scale


def remember_x(action: Any, qpos: Any, ctrl: Any, before: Any) -> None:
    """Control the actuators by the action, and keep the position along x."""
    for k in range(len(ctrl)):
        ctrl[k] = action[k]
    before[0] = qpos[0]


def observe_state(qpos: Any, qvel: Any, obs: Any, params: Any) -> None:
    """Observe positions, without the first `params.skip`, and velocities."""
    skip = params.skip
    shown = len(qpos) - skip
    for k in range(shown):
        obs[k] = qpos[skip + k]
    for k in range(len(qvel)):
        obs[shown + k] = qvel[k]


def observe_clipped(qpos: Any, qvel: Any, obs: Any, params: Any) -> None:
    """Observe positions, without the first `params.skip`, and velocities within ±10."""
    skip = params.skip
    shown = len(qpos) - skip
    for k in range(shown):
        obs[k] = qpos[skip + k]
    for k in range(len(qvel)):
        obs[shown + k] = clip(qvel[k], -10.0, 10.0)


def reward_run(qpos: Any, action: Any, before: Any, info: Any, params: Any, healthy: bool) -> Any:
    """Reward speed along x and health less the cost of control, for a planar robot."""
    info.x_velocity = (qpos[0] - before[0]) / params.dt
    forward_reward = params.forward_reward_weight * info.x_velocity
    healthy_reward = healthy * params.healthy_reward
    ctrl_cost = scaled(params.ctrl_cost_weight, sum_of_squares(action))
    info.reward_forward = forward_reward
    info.reward_ctrl = -ctrl_cost
    info.reward_survive = healthy_reward
    return forward_reward + healthy_reward - ctrl_cost


def describe_height(qpos: Any, info: Any, params: Any) -> None:
    """Tell a planar robot's position along x and its height above the first."""
    info.x_position = qpos[0]
    info.z_distance_from_origin = qpos[1] - params.first_z


def describe_place(qpos: Any, info: Any) -> None:
    """Tell the position in the plane, and how far it is from the origin."""
    info.x_position = qpos[0]
    info.y_position = qpos[1]
    info.distance_from_origin = norm(qpos[:2])


def within(x: float, limits: Any) -> bool:
    """Whether a number is between two limits, and neither of them."""
    return bool(limits[0] < x < limits[1])


def upright(qpos: Any, params: Any) -> bool:
    """Whether a planar robot's height and angle are within their ranges."""
    return within(qpos[1], params.healthy_z_range) and within(qpos[2], params.healthy_angle_range)


def all_finite(values: Any) -> bool:
    """Whether no number is infinite or NaN."""
    finite = True
    for k in range(len(values)):
        finite = finite and math.isfinite(values[k])
    return finite
