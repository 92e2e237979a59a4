"""Sums, products and limits with numpy's bits, in Python and in compiled code.

numpy adds up in an order of its own, and compiled code that adds from left to right differs from it
in the last bit. In Python these functions are numpy's own; in compiled code they round as it does.
"""

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from mujoco_vecenv.engine.compiled import compiled


def dot(x, y):
    """Return the product of two (2,) or (3,) float64 vectors."""
    return np.dot(x, y)


def norm(x):
    """Return the length of a (2,) or (3,) float64 vector."""
    return np.linalg.norm(x)


def sum_of_squares(x):
    """Return the sum of x * x over a (k,) array, in x's own dtype."""
    return np.sum(np.square(x))


def weighted_sum(weights, rows, out):
    """Write the sum of weights[k] * rows[k], of float64 (k,) and (k, 3) arrays, to (3,) out."""
    np.einsum("b,bj->j", weights, rows, out=out)


def scaled(factor, x):
    """Return factor * x in x's own dtype, as numpy multiplies by a Python number."""
    return float(factor) * x


def clip(x, low, high):
    """Return the number x, or the limit it is beyond. NaN stays NaN."""
    return np.clip(x, low, high)


def square(x):
    """Return x ** 2 as Python computes it between floats: the C library's pow(x, 2).

    It is not x * x, which is what numpy computes for arrays and a compiler for numbers: the two
    differ in about one of 1,200 doubles.
    """
    return x**2


@intrinsic
def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """A * b + c, rounded once."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@compiled
def _fused_dot(x, y):
    total = 0.0
    for k in range(len(x)):
        total = _fma(y[k], x[k], total)  # type: ignore[call-arg]
    return total


@compiled
def _plain_dot(x, y):
    total = 0.0
    for k in range(len(x)):
        total += y[k] * x[k]
    return total


@cache
def _numpy_fuses() -> bool:
    """Whether numpy's dot of short vectors, which its BLAS computes, rounds products or not.

    Raises:
        ImportError: neither order of rounding gives its bits.
    """
    vectors = np.random.default_rng(0).normal(size=(2, 500, 3))
    for fused, dot in ((True, _fused_dot), (False, _plain_dot)):
        if all(
            dot(x[:size], y[:size]) == np.dot(x[:size], y[:size])
            for size in (2, 3)
            for x, y in zip(*vectors, strict=True)
        ):
            return fused
    raise ImportError(
        f"numpy {np.__version__} multiplies short vectors in a way that is not known here, so "
        "tasks that measure distances could differ from their references in the last bit"
    )


@overload(dot)
def _dot(x, y):
    return (lambda x, y: _fused_dot(x, y)) if _numpy_fuses() else (lambda x, y: _plain_dot(x, y))


@compiled
def _fused_sum(weights, rows, out):
    for j in range(len(out)):
        total = 0.0
        for k in range(len(weights)):
            total = _fma(weights[k], rows[k, j], total)  # type: ignore[call-arg]
        out[j] = total


@compiled
def _plain_sum(weights, rows, out):
    for j in range(len(out)):
        total = 0.0
        for k in range(len(weights)):
            total += weights[k] * rows[k, j]
        out[j] = total


@cache
def _einsum_fuses() -> bool:
    """Whether numpy's einsum rounds products or not.

    Raises:
        ImportError: neither order of rounding gives its bits.
    """
    rng = np.random.default_rng(0)
    weights, rows, ours, theirs = (rng.normal(size=s) for s in (14, (100, 14, 3), 3, 3))
    for fused, add in ((True, _fused_sum), (False, _plain_sum)):
        for points in rows:
            add(weights, points, ours)
            weighted_sum(weights, points, theirs)
            if not np.array_equal(ours, theirs):
                break
        else:
            return fused
    raise ImportError(
        f"numpy {np.__version__} adds up weighted rows in a way that is not known here, so tasks "
        "that use centres of mass could differ from their references in the last bit"
    )


def rounding() -> tuple[bool, bool]:
    """Return how numpy rounds in this process; another BLAS, or another CPU, may do otherwise.

    Raises:
        ImportError: it rounds in a way that is not known here.
    """
    return _numpy_fuses(), _einsum_fuses()


@overload(weighted_sum)
def _weighted_sum(weights, rows, out):
    if _einsum_fuses():
        return lambda weights, rows, out: _fused_sum(weights, rows, out)
    return lambda weights, rows, out: _plain_sum(weights, rows, out)


@overload(norm)
def _norm(x):
    return lambda x: np.sqrt(dot(x, x))


@overload(sum_of_squares)
def _sum_of_squares(x):
    return lambda x: _pairwise(x)


@overload(clip)
def _clip(x, low, high):
    return _limited


@overload(square)
def _square(x):
    # The exponent is not a constant the compiler could see: it turns x ** 2.0 into x * x.
    return lambda x: x ** (2.0 if x == x else x)


@compiled
def _pairwise(x):
    # Fewer than eight numbers numpy adds one by one. From there on, it keeps eight partial sums,
    # joins them as a tree and adds the rest. Beyond 128 it adds the sums of two halves, of which
    # the first is a multiple of eight.
    count = len(x)
    if count > 128:
        half = count // 2
        half -= half % 8
        return _pairwise(x[:half]) + _pairwise(x[half:])
    if count < 8:
        total = x.dtype.type(0)
        for k in range(count):
            total += x[k] * x[k]
        return total
    a, b, c, d = x[0] * x[0], x[1] * x[1], x[2] * x[2], x[3] * x[3]
    e, f, g, h = x[4] * x[4], x[5] * x[5], x[6] * x[6], x[7] * x[7]
    whole = count - count % 8
    for k in range(8, whole, 8):
        a += x[k] * x[k]
        b += x[k + 1] * x[k + 1]
        c += x[k + 2] * x[k + 2]
        d += x[k + 3] * x[k + 3]
        e += x[k + 4] * x[k + 4]
        f += x[k + 5] * x[k + 5]
        g += x[k + 6] * x[k + 6]
        h += x[k + 7] * x[k + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for k in range(whole, count):
        total += x[k] * x[k]
    return total


def _limited(x, low, high):
    if x < low:
        x = low
    if x > high:
        x = high
    return x


@overload(scaled)
def _scaled(factor, x):
    return lambda factor, x: type(x)(factor) * x
