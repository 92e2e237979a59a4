"""MuJoCo's own C functions for compiled code, so that both sides call the same arithmetic."""

from pathlib import Path

import mujoco
from llvmlite import binding
from numba import types

_pointer = types.CPointer(types.float64)


def library_path() -> Path:
    """Return the file of the MuJoCo library that the Python bindings run on."""
    folder = Path(mujoco.__file__).parent
    for pattern in ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll"):
        for library in folder.glob(pattern):
            return library
    raise ImportError(f"no MuJoCo library in {folder}; reinstall the mujoco package")


# Lets compiled code find the library's symbols.
binding.load_library_permanently(str(library_path()))

_two = types.void(_pointer, _pointer)
_three = types.void(_pointer, _pointer, _pointer)
normalize4 = types.ExternalFunction("mju_normalize4", types.float64(_pointer))
neg_quat = types.ExternalFunction("mju_negQuat", _two)
quat_to_mat = types.ExternalFunction("mju_quat2Mat", _two)
mul_quat = types.ExternalFunction("mju_mulQuat", _three)
rot_vec_quat = types.ExternalFunction("mju_rotVecQuat", _three)
mul_mat_vec3 = types.ExternalFunction("mju_mulMatVec3", _three)
mul_mat_t_vec3 = types.ExternalFunction("mju_mulMatTVec3", _three)
