"""A model stripped of what its physics never uses, with the same state to the last bit."""

from pathlib import Path
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.models import compile_again

# Arrays of a model that a lean one need not share: what was dropped, what things look like,
# bookkeeping of bounding volumes, which only decide how fast a collision is found, and dof_length,
# which only sleeping reads, and a batch of simulations does not sleep.
_MAY_DIFFER: Final = (
    "bvh_",
    "body_bvh",
    "body_geomadr",
    "body_geomnum",
    "body_plugin",
    "cam_",
    "dof_length",
    "geom_bodyid",
    "geom_dataid",
    "geom_group",
    "geom_matid",
    "geom_plugin",
    "geom_rgba",
    "geom_user",
    "light_",
    "mat_",
    "mesh",
    "name",
    "numeric_",
    "paths",
    "sensor_",
    "skin_",
    "tex_",
    "text_",
    "tuple_",
    "user_sensor",
)


def lean_model(full: mujoco.MjModel, path: Path, keep_geoms: bool = False) -> mujoco.MjModel:
    """Compile a model again without the parts that cost time and never touch the state.

    Sensors are dropped, and so are geoms that can touch nothing, displace no fluid and give their
    body no mass. Where the model needs one of them after all, as much is kept as it takes.

    Args:
        full: the model, compiled from `path`.
        path: its MJCF file.
        keep_geoms: keep every geom, so that geoms keep their ids, too.

    Returns:
        The lean model. Bodies, joints, actuators and keyframes keep their ids and addresses.
    """
    for without_geoms in (False,) if keep_geoms else (True, False):
        spec = mujoco.MjSpec.from_file(str(path))
        for sensor in list(spec.sensors):
            spec.delete(sensor)
        if without_geoms:
            _delete_idle_geoms(spec)
        try:
            lean = compile_again(spec)
        except ValueError:  # something refers to what was dropped, such as a tendon to a geom
            continue
        if _same_physics(lean, full):
            return lean
    return full


def _delete_idle_geoms(spec: mujoco.MjSpec) -> None:
    paired = {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    for body in spec.bodies:
        # Without explicit inertia a body's mass is the sum of its geoms'; the world has none.
        if body != spec.worldbody and not body.explicitinertial:
            continue
        for geom in list(body.geoms):
            if (
                not geom.contype
                and not geom.conaffinity
                and not geom.fluid_ellipsoid
                and geom.name not in paired
            ):
                spec.delete(geom)


def _same_physics(lean: mujoco.MjModel, full: mujoco.MjModel) -> bool:
    """Whether all arrays agree that a state's path could depend on, and the state's size."""
    state = mujoco.mjtState.mjSTATE_INTEGRATION
    if mujoco.mj_stateSize(lean, state) != mujoco.mj_stateSize(full, state):
        return False  # a sensor with a delay keeps its history there
    for name in dir(full):
        if name.startswith(("_", *_MAY_DIFFER)):
            continue
        ours, theirs = getattr(lean, name), getattr(full, name)
        if isinstance(theirs, np.ndarray) and not np.array_equal(
            _idle_geoms_left_out(lean, name, ours), _idle_geoms_left_out(full, name, theirs)
        ):
            return False
    return True


def _idle_geoms_left_out(model: mujoco.MjModel, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if name.startswith("geom_"):
        kept: NDArray[Any] = values[(model.geom_contype | model.geom_conaffinity) != 0]
        return kept
    return values
