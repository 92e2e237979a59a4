"""MuJoCo's own functions on quaternions and vectors, in Python and in compiled code.

In compiled code they are the C functions of the very library that the Python bindings run on.
"""

from pathlib import Path

import mujoco
from llvmlite import binding
from numba import types
from numba.extending import overload

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
_normalize4 = types.ExternalFunction("mju_normalize4", types.float64(_pointer))
_neg_quat = types.ExternalFunction("mju_negQuat", _two)
_quat_to_mat = types.ExternalFunction("mju_quat2Mat", _two)
_mul_quat = types.ExternalFunction("mju_mulQuat", _three)
_rot_vec_quat = types.ExternalFunction("mju_rotVecQuat", _three)
_mul_mat_vec3 = types.ExternalFunction("mju_mulMatVec3", _three)
_mul_mat_t_vec3 = types.ExternalFunction("mju_mulMatTVec3", _three)


def normalize4(quat):
    """Normalise a (4,) quaternion in place, unless its length is 1 but for rounding."""
    mujoco.mju_normalize4(quat)


def neg_quat(out, quat):
    """Write the conjugate of a (4,) quaternion."""
    mujoco.mju_negQuat(out, quat)


def quat_to_mat(out, quat):
    """Write the (9,) rotation matrix of a (4,) quaternion."""
    mujoco.mju_quat2Mat(out, quat)


def mul_quat(out, a, b):
    """Write the product of two (4,) quaternions."""
    mujoco.mju_mulQuat(out, a, b)


def rot_vec_quat(out, vector, quat):
    """Write a (3,) vector rotated by a (4,) quaternion."""
    mujoco.mju_rotVecQuat(out, vector, quat)


def mul_mat_vec3(out, matrix, vector):
    """Write the product of a (9,) matrix and a (3,) vector."""
    mujoco.mju_mulMatVec3(out, matrix, vector)


def mul_mat_t_vec3(out, matrix, vector):
    """Write the product of a transposed (9,) matrix and a (3,) vector."""
    mujoco.mju_mulMatTVec3(out, matrix, vector)


@overload(normalize4)
def _(quat):
    return lambda quat: _normalize4(quat.ctypes)


@overload(neg_quat)
def _(out, quat):
    return lambda out, quat: _neg_quat(out.ctypes, quat.ctypes)


@overload(quat_to_mat)
def _(out, quat):
    return lambda out, quat: _quat_to_mat(out.ctypes, quat.ctypes)


@overload(mul_quat)
def _(out, a, b):
    return lambda out, a, b: _mul_quat(out.ctypes, a.ctypes, b.ctypes)


@overload(rot_vec_quat)
def _(out, vector, quat):
    return lambda out, vector, quat: _rot_vec_quat(out.ctypes, vector.ctypes, quat.ctypes)


@overload(mul_mat_vec3)
def _(out, matrix, vector):
    return lambda out, matrix, vector: _mul_mat_vec3(out.ctypes, matrix.ctypes, vector.ctypes)


@overload(mul_mat_t_vec3)
def _(out, matrix, vector):
    return lambda out, matrix, vector: _mul_mat_t_vec3(out.ctypes, matrix.ctypes, vector.ctypes)
