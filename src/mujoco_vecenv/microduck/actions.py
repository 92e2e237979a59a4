"""The checks every action passes before anything changes."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.microduck.layout import JOINTS

_FLOAT64: Final = np.dtype(np.float64)
_REAL: Final = "fiu"  # numpy's kinds: floating, signed and unsigned integers


class ActionError(ValueError):
    """An action is NaN or infinite. Nothing has moved."""


def as_actions(actions: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return actions as a contiguous float64 array of the given shape.

    Args:
        actions: numbers in any real dtype; values beyond [-1, 1] are clipped later.
        shape: (14,) for one environment, (n, 14) for n.

    Raises:
        TypeError: not real numbers.
        ValueError: another shape.
    """
    try:
        array = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"actions must have shape {shape}: {error}") from error
    if array.dtype is _FLOAT64 and array.shape == shape and array.flags.c_contiguous:
        return array  # the common case, at little cost
    if array.dtype.kind not in _REAL:
        raise TypeError(f"actions must be real numbers, got dtype {array.dtype}")
    if array.shape != shape:
        meaning = "(environments, joints)" if len(shape) == 2 else "(joints,)"
        raise ValueError(f"actions must have shape {shape} {meaning}, got {array.shape}")
    return array.astype(np.float64, order="C", copy=False)


def check_finite(actions: NDArray[np.float64]) -> None:
    """Raise ActionError at the first action that is NaN or infinite, naming its place.

    Args:
        actions: (14,) or (n, 14).
    """
    finite = np.isfinite(actions)
    if not finite.all():
        where = tuple(np.argwhere(~finite)[0])
        environment = f"environment {where[0]}, " if len(where) == 2 else ""
        raise ActionError(
            f"actions must be finite: {environment}joint {where[-1]} ({JOINTS[where[-1]]}) "
            f"is {actions[where]}"
        )
