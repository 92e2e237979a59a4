"""Checks of values that users pass in: each error names the value, the place and the mend."""

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

MOST: Final = 1e6
"""Larger than any quantity of a robot, and small enough that nothing overflows on the way."""


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ValueError unless value is one of the choices, naming the closest."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"unknown {name} {value!r}{closest(str(value), choices)}")


def check_integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return value as an int.

    Raises:
        TypeError: value is no integer.
        ValueError: value is below `least` or above `most`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if least is not None and number < least:
        raise ValueError(f"{name} must be {least} or more, got {value!r}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be {most} or less, got {value!r}")
    return number


def check_number(name: str, value: Any) -> float:
    """Return value as a finite float.

    Raises:
        TypeError: value is no number.
        ValueError: value is NaN or infinite.
    """
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number


def check_switch(name: str, value: Any) -> bool:
    """Return value as a bool.

    Raises:
        TypeError: value is neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_range(name: str, value: Any, least: float) -> tuple[float, float]:
    """Return value as two finite floats, the lower first.

    Raises:
        TypeError: value is no pair of numbers.
        ValueError: they are not in order, below `least`, absurdly large, NaN or infinite.
    """
    pair = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    if len(pair) != 2:
        raise TypeError(f"{name} must be two numbers (lowest, highest), got {value!r}")
    low, high = (check_number(name, number) for number in pair)
    if not least <= low <= high <= MOST:
        raise ValueError(f"{name} must be {least} <= lowest <= highest <= {MOST:g}, got {pair!r}")
    return low, high


def closest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the name closest to one that is unknown, or at all there are."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; choose from {', '.join(names)}"
