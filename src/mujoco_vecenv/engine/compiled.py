"""How the package compiles its arithmetic."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function with Numba, without fast-math, and keep the result for the next process.

    Where no folder can be written that Numba could keep it in, each process compiles anew.
    """
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # "no locator available"
        return njit(function)
