"""The checks every action passes before anything changes."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float64))
_REAL: Final = "fiu"  # numpy's kinds: floating, signed and unsigned integers


class ActionError(ValueError):
    """An action is NaN or infinite. Nothing has moved."""


def as_actions(actions: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return actions as a contiguous array of the given shape, float64 unless they are float32.

    Args:
        actions: numbers in any real dtype.
        shape: (actions,) for one environment, (n, actions) for n.

    Raises:
        TypeError: not real numbers.
        ValueError: another shape.
    """
    try:
        array = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"actions must have shape {shape}: {error}") from error
    if array.dtype in _DTYPES and array.shape == shape and array.flags.c_contiguous:
        return array  # the common case, at little cost
    if array.dtype.kind not in _REAL:
        raise TypeError(f"actions must be real numbers, got dtype {array.dtype}")
    if array.shape != shape:
        meaning = "(environments, actions)" if len(shape) == 2 else "(actions,)"
        raise ValueError(f"actions must have shape {shape} {meaning}, got {array.shape}")
    dtype = array.dtype if array.dtype in _DTYPES else np.float64
    return np.ascontiguousarray(array, dtype)


def check_finite(actions: NDArray[Any], names: Sequence[str] = ()) -> None:
    """Raise ActionError at the first action that is NaN or infinite, naming its place.

    Args:
        actions: (actions,) or (n, actions).
        names: what each number moves, for the message.
    """
    finite = np.isfinite(actions)
    if not finite.all():
        where = tuple(int(k) for k in np.argwhere(~finite)[0])
        environment = f"environment {where[0]}, " if len(where) == 2 else ""
        name = f" ({names[where[-1]]})" if names else ""
        raise ActionError(
            f"actions must be finite: {environment}action {where[-1]}{name} is {actions[where]}"
        )
