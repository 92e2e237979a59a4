"""A model stripped of what its physics never uses, with the same state to the last bit."""

from collections.abc import Collection
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
FILTERS: Final = ("geom_contype", "geom_conaffinity", "body_contype", "body_conaffinity", "pair_")
"""Beginnings of the names of arrays that say which geoms may touch, in one way or another."""
_MOST_PAIRS: Final = 128
"""Pairs of geoms up to which a list of them is gone through faster than bodies are sorted."""
_OTHERWISE: Final = sum(
    int(getattr(mujoco.mjtEnableBit, f"mjENBL_{name}"))
    for name in ("OVERRIDE", "IPC", "SPECULATIVE")
)
"""Flags with which contacts are found, or made, in another way."""
_NO_CONTACTS: Final = int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
_NO_TREES: Final = int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
_PARENTS_TOO: Final = int(mujoco.mjtDisableBit.mjDSBL_FILTERPARENT)


def lean_spec(
    full: mujoco.MjModel, path: Path, keep_geoms: bool = False, keep_contacts: bool = False
) -> mujoco.MjSpec:
    """Return the specification of a model without what costs time and never touches the state.

    Sensors are dropped, and so are geoms that can touch nothing, displace no fluid and give their
    body no mass. What may touch is written down as pairs, so that no step has to look for it among
    all bodies. Where the model needs something of it after all, as much is kept as it takes.

    Args:
        full: the model, compiled from `path`.
        path: its MJCF file.
        keep_geoms: keep every geom, with its id and its contacts, as its properties may change.
        keep_contacts: let contacts follow from the geoms that are left, as theirs may change.

    Returns:
        What the lean model is compiled from. Bodies, joints, actuators and keyframes keep their ids
        and addresses.
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
        if _agree(lean, full, _MAY_DIFFER, idle_geoms=False):
            break
    else:
        spec, lean = mujoco.MjSpec.from_file(str(path)), full
    if not (keep_geoms or keep_contacts) and (pairs := _pairs(lean)) is not None:
        paired = spec.copy()
        try:
            _list_pairs(paired, lean, pairs)
            listed = compile_again(paired)
        except ValueError:  # a geom has the name that another is given
            return spec
        if _agree(listed, lean, (*_MAY_DIFFER, *FILTERS)):
            return paired
    return spec


def lean_model(
    full: mujoco.MjModel, path: Path, keep_geoms: bool = False, keep_contacts: bool = False
) -> mujoco.MjModel:
    """Return the model that is compiled from `lean_spec`."""
    return compile_again(lean_spec(full, path, keep_geoms, keep_contacts))


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


def _agree(
    ours: mujoco.MjModel,
    theirs: mujoco.MjModel,
    may_differ: Collection[str],
    idle_geoms: bool = True,
) -> bool:
    """Whether two models agree in all that a state's path could depend on, and in its size.

    Args:
        ours: one.
        theirs: the other.
        may_differ: beginnings of the names of arrays that may differ.
        idle_geoms: whether geoms that can touch nothing must agree, too.
    """
    state = mujoco.mjtState.mjSTATE_INTEGRATION
    if mujoco.mj_stateSize(ours, state) != mujoco.mj_stateSize(theirs, state):
        return False  # a sensor with a delay keeps its history there
    for name in dir(theirs):
        if name.startswith(("_", *may_differ)):
            continue
        mine, its = getattr(ours, name), getattr(theirs, name)
        if not isinstance(its, np.ndarray):
            continue
        if name.startswith("geom_") and not idle_geoms:
            mine, its = _of_active(ours, mine), _of_active(theirs, its)
        if not np.array_equal(mine, its):
            return False
    return True


def _of_active(model: mujoco.MjModel, values: NDArray[Any]) -> NDArray[Any]:
    active: NDArray[Any] = values[(model.geom_contype | model.geom_conaffinity) != 0]
    return active


def _pairs(model: mujoco.MjModel) -> list[tuple[int, int]] | None:
    """Return the geoms that MuJoCo would look for contacts between, in the order in which it would.

    None if they are too many, or if a pair could not say the same of a contact.
    """
    if model.npair or model.nflex or model.opt.enableflags & _OTHERWISE:
        return None
    if model.geom_adhesion.any():
        return None
    body, contype, affinity = model.geom_bodyid, model.geom_contype, model.geom_conaffinity
    moving, parent = model.body_weldid, model.body_weldid[model.body_parentid]
    held = (moving[body] == 0) | (model.body_mocapid[moving[body]] >= 0)
    candidates = (
        (body[:, None] < body[None, :])
        & (moving[body][:, None] != moving[body][None, :])
        & ~(held[:, None] & held[None, :])
        & ((contype[:, None] & affinity[None, :] | contype[None, :] & affinity[:, None]) != 0)
    )
    excluded = set(model.exclude_signature.tolist())
    found: list[tuple[int, int, tuple[int, int], tuple[int, int]]] = []
    for one, other in np.argwhere(candidates).tolist():
        a, b = int(body[one]), int(body[other])
        if a << 16 | b in excluded:
            continue
        related = moving[a] == parent[moving[b]] or moving[b] == parent[moving[a]]
        filters = moving[a] and moving[b] and not model.opt.disableflags & _PARENTS_TOO
        if related and filters:
            continue
        if not _deciding(model, one, other) or len(found) == _MOST_PAIRS:
            return None
        # Among two bodies' contacts their trees of geoms leave those of lower types first.
        trees = not model.opt.disableflags & _NO_TREES
        swapped = trees and model.geom_type[one] > model.geom_type[other]
        found.append((a, b, (other, one) if swapped else (one, other), (one, other)))
    return [pair for *_, pair in sorted(found)]


def _deciding(model: mujoco.MjModel, one: int, other: int) -> list[int]:
    """Return those of two geoms that a contact's properties are of: both have the same softness.

    See "Contact parameters" in the chapter "Modeling" of MuJoCo's documentation. None are returned
    where the softness would be a mixture.
    """
    if model.geom_priority[one] != model.geom_priority[other]:
        return [one if model.geom_priority[one] > model.geom_priority[other] else other]
    for values in (model.geom_solmix, model.geom_solref, model.geom_solimp):
        if not np.array_equal(values[one], values[other]):
            return []
    return [one, other]


def _list_pairs(
    spec: mujoco.MjSpec, model: mujoco.MjModel, pairs: Collection[tuple[int, int]]
) -> None:
    """Write pairs into a specification in place of what geoms say of what they may touch.

    Args:
        spec: the specification.
        model: what is compiled from it.
        pairs: the geoms' ids.
    """
    if not pairs:
        spec.option.disableflags |= _NO_CONTACTS
        return
    for k, geom in enumerate(spec.geoms):
        geom.name = geom.name or f"geom {k}"
    named = compile_again(spec)
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0
    for one, other in pairs:
        deciding = _deciding(model, one, other)
        slide, spin, roll = model.geom_friction[deciding].max(0)
        # All of it, as the model may have defaults for pairs.
        spec.add_pair(
            geomname1=named.geom(one).name,
            geomname2=named.geom(other).name,
            condim=int(model.geom_condim[deciding].max()),
            friction=[slide, slide, spin, roll, roll],
            solref=model.geom_solref[deciding[0]],
            solreffriction=[0.0, 0.0],
            solimp=model.geom_solimp[deciding[0]],
            margin=model.geom_margin[one] + model.geom_margin[other],
            gap=model.geom_gap[one] + model.geom_gap[other],
            adhesion=0.0,
        )
