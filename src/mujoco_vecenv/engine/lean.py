"""A model stripped of what its physics never uses, with the same state to the last bit."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

# What the state's path through mj_step depends on. A lean model whose arrays differ from the
# published model's in any of these would not be the same robot.
_PHYSICS = {
    "qpos0 qpos_spring": "positions",
    "body_pos body_quat body_ipos body_iquat body_mass body_inertia body_invweight0": "bodies",
    "jnt_type jnt_qposadr jnt_range jnt_stiffness jnt_solref jnt_solimp": "joints",
    "dof_armature dof_damping dof_frictionloss dof_invweight0 dof_solref dof_solimp": "freedoms",
    "actuator_trntype actuator_trnid actuator_gear actuator_gainprm actuator_biasprm": "servos",
    "actuator_ctrlrange actuator_forcerange": "servo limits",
    "geom_type geom_bodyid geom_size geom_pos geom_quat geom_margin geom_gap": "shapes",
    "geom_contype geom_conaffinity geom_condim geom_priority geom_solmix": "collisions",
    "geom_solref geom_solimp geom_friction": "contacts",
}


def lean_model(full: mujoco.MjModel, path: Path) -> mujoco.MjModel:
    """Compile a model again without the parts that cost time and never touch the state.

    Sensors are dropped, and so are geoms that can touch nothing, where the mass of their body does
    not come from them.

    Args:
        full: the model, compiled from `path`.
        path: its MJCF file.

    Returns:
        The lean model. Bodies, joints, actuators and keyframes keep their ids and addresses.

    Raises:
        RuntimeError: leaving those parts out changed the physics of this model.
    """
    spec = mujoco.MjSpec.from_file(str(path))
    for sensor in list(spec.sensors):
        spec.delete(sensor)
    paired = {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    for body in spec.bodies:
        # Without explicit inertia a body's mass is the sum of its geoms'; the world has none.
        if body != spec.worldbody and not body.explicitinertial:
            continue
        for geom in list(body.geoms):
            if not geom.contype and not geom.conaffinity and geom.name not in paired:
                spec.delete(geom)
    lean = spec.compile()
    for names, what in _PHYSICS.items():
        for name in names.split():
            if not np.array_equal(_touching(lean, name), _touching(full, name)):
                raise RuntimeError(
                    f"{path}: without sensors and visual geoms its {what} differ ({name})"
                )
    return lean


def _touching(model: mujoco.MjModel, name: str) -> NDArray[Any]:
    """Return a model array, of the geoms only those that could touch others."""
    values: NDArray[Any] = getattr(model, name)
    if name.startswith("geom_"):
        values = values[(model.geom_contype | model.geom_conaffinity) != 0]
    return values
