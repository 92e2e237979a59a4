"""NumPy's generators from within: their states as arrays, to be saved and gone on from."""

import ctypes
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_WORD: Final = (1 << 64) - 1
_POINTER: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def address_of(rng: Generator) -> int:
    """Return the address of the bitgen_t that a generator draws from, see numpy/random/bitgen.h.

    It is good for as long as the generator lives.
    """
    address: int = _POINTER(rng.bit_generator.capsule, b"BitGenerator")
    return address


def rng_words(rng: Generator) -> NDArray[np.uint64]:
    """Return a PCG64 generator's state: state and increment, high word first, and its half word."""
    state: Any = rng.bit_generator.state
    pcg = state["state"]
    numbers = [pcg["state"] >> 64, pcg["state"], pcg["inc"] >> 64, pcg["inc"]]
    numbers += [state["has_uint32"], state["uinteger"]]
    return np.array([number & _WORD for number in numbers], np.uint64)


def check_rng(words: NDArray[np.uint64]) -> None:
    """Raise ValueError unless (…, 6) words are states of PCG64 generators."""
    odd, half, word = words[..., 3], words[..., 4], words[..., 5]
    if (odd % 2 == 0).any() or (half > 1).any() or (word >> np.uint64(32)).any():
        raise ValueError("'rng' is no state of a PCG64 generator")


def set_rng(rng: Generator, words: NDArray[np.uint64]) -> None:
    """Put a PCG64 generator into the state that `rng_words` returned."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
