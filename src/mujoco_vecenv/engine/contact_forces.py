"""`cfrc_ext` out of a batch of simulations, as `mj_rnePostConstraint` leaves it after a step.

MuJoCo computes contact forces on bodies only for sensors that need them, and a Runge-Kutta step
does not compute sensors at its last stage, on which the contacts that remain after the step are
from. But every integrator calls the `advance` function of a model's plugins at its very end, on the
data that a call of `mj_rnePostConstraint` after the step would see. So a plugin without state or
force, whose `advance` is that function itself, adds what is missing to any batch, to the last bit.
"""

import ctypes
from functools import cache
from typing import Any, Final

import mujoco
from numba import cfunc, types

from mujoco_vecenv.engine.models import compile_again
from mujoco_vecenv.engine.native import library_path

FIELD: Final = "cfrc_ext"
"""The field of MjData it is about: (nbody, 6) torque and force on each body, N·m and N."""

_NAME: Final = "mujoco_vecenv.contact_forces"


def _no_state(model: Any, instance: Any) -> int:
    return 0


def _init(model: Any, data: Any, instance: Any) -> int:
    return 0


def _reset(model: Any, state: Any, data: Any, instance: Any) -> None:
    pass


def _compute(model: Any, data: Any, instance: Any, capability: Any) -> None:
    pass


class _Plugin(ctypes.Structure):
    """mjpPlugin of mjplugin.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("nattribute", ctypes.c_int),
        ("attributes", ctypes.c_void_p),
        ("capabilityflags", ctypes.c_int),
        ("needstage", ctypes.c_int),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("nstate", "nsensordata", "init", "destroy", "copy", "reset", "compute"),
                *("advance", "visualize", "actuator_act_dot", "sdf_distance", "sdf_gradient"),
                *("sdf_staticdistance", "sdf_attribute", "sdf_aabb"),
            )
        ),
    )


@cache
def _register() -> tuple[object, ...]:
    """Make the plugin known to MuJoCo, once in a process; return what must live as long."""
    pointer: Any = types.CPointer(types.uint8)
    number, nothing = types.int32, types.void
    no_state = cfunc(number(pointer, number))(_no_state)
    init = cfunc(number(pointer, pointer, number))(_init)
    reset = cfunc(nothing(pointer, pointer, pointer, number))(_reset)
    compute = cfunc(nothing(pointer, pointer, number, number))(_compute)
    library = ctypes.CDLL(str(library_path()))
    plugin = _Plugin()
    library.mjp_defaultPlugin(ctypes.byref(plugin))
    plugin.name = _NAME.encode()
    plugin.capabilityflags = int(mujoco.mjtPluginCapabilityBit.mjPLUGIN_PASSIVE)
    plugin.nstate = no_state.address
    plugin.init = init.address
    plugin.reset = reset.address
    plugin.compute = compute.address
    # It is called with a third argument, which a C function is free to ignore.
    plugin.advance = ctypes.cast(library.mj_rnePostConstraint, ctypes.c_void_p).value
    if library.mjp_registerPlugin(ctypes.byref(plugin)) < 0:
        raise RuntimeError(f"MuJoCo {mujoco.__version__} did not accept the plugin {_NAME}")
    return plugin, no_state, init, reset, compute


_NEEDING: Final = frozenset(
    int(getattr(mujoco.mjtSensor, f"mjSENS_{name}"))
    for name in ("ACCELEROMETER", "FORCE", "TORQUE", "FRAMELINACC", "FRAMEANGACC")
)


def leaves_contact_forces(model: mujoco.MjModel) -> bool:
    """Whether mj_forward computes `cfrc_ext`, for the model's own sensors.

    Where it does not, the field is zero after a reset, as mj_resetData has it.
    """
    return not _NEEDING.isdisjoint(model.sensor_type.tolist())


def model_with_contact_forces(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile a specification so that each step of a batch leaves `cfrc_ext` behind.

    Its physics is that of the plain model to the last bit.
    """
    _register()
    spec.activate_plugin(_NAME)
    instance = spec.add_plugin(name=_NAME, plugin_name=_NAME)
    body = spec.worldbody.first_body()
    body.plugin.active = True
    body.plugin.plugin_name = _NAME
    body.plugin.name = instance.name
    return compile_again(spec)
