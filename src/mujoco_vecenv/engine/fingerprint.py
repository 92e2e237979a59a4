"""What compiled code depends on, as a fingerprint under which it can be kept."""

import dis
from collections.abc import Callable, Iterator, Mapping
from enum import EnumMeta
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import mujoco
import numpy as np
from numba import config
from numba.core.dispatcher import Dispatcher

from mujoco_vecenv.engine import native, numpy_bits

_ENGINE: Final = Path(__file__).parent


class _UncoveredError(Exception):
    """Compiled code depends on a value of a kind that no fingerprint covers."""


def fingerprint(source: str, functions: Mapping[str, Callable[..., Any]]) -> str | None:
    """Return the fingerprint of everything that a loop's compiled code depends on, if it can be."""
    digest = sha256(_engine_digest() + source.encode())
    try:
        for name, function in functions.items():
            digest.update(name.encode())
            for part in _parts(function, frozenset(), set()):
                digest.update(part)
    except _UncoveredError:
        return None
    return digest.hexdigest()[:24]


@cache
def _engine_digest() -> bytes:
    """Return the fingerprint of what every loop depends on."""
    versions = (np.__version__, mujoco.__version__)
    options = (numpy_bits.rounding(), config.BOUNDSCHECK)  # type: ignore[attr-defined]
    digest = sha256(repr((versions, options)).encode())
    for engine in sorted(_ENGINE.glob("*.py")):
        digest.update(engine.read_bytes())
    return digest.digest()


def compilable(function: Any) -> bool:
    """Whether Numba knows a plain function as it is."""
    module = function.__module__ or ""
    return module.partition(".")[0] == "numpy" or module in (native.__name__, numpy_bits.__name__)


_PLAIN: Final = (bool, int, float, complex, str, bytes, np.generic, np.dtype, type(None))


def _parts(value: Any, attributes: frozenset[str], seen: set[Any]) -> Iterator[bytes]:
    """Yield everything that compiled code which uses a value depends on.

    Args:
        value: a global, a variable of an enclosing function, or a part of one.
        attributes: the names that the code looks up in any of its values.
        seen: functions, and modules with the names looked up there, that have been looked into.

    Raises:
        _UncoveredError: the value is of another kind than those below.
    """
    yield type(value).__qualname__.encode()
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, tuple | frozenset):
        for part in value:
            yield from _parts(part, attributes, seen)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, FunctionType | Dispatcher):
        yield from _function_parts(value, seen)
    elif isinstance(value, BuiltinFunctionType | np.ufunc):
        yield value.__name__.encode()
    elif isinstance(value, EnumMeta):
        members: Mapping[str, Any] = value.__members__
        for name, member in members.items():
            yield name.encode()
            yield from _parts(member.value, attributes, seen)
    elif isinstance(value, type) and value.__module__ in ("builtins", "numpy"):
        yield value.__qualname__.encode()
    elif isinstance(value, ModuleType):
        yield value.__name__.encode()
        looked_into = (id(value), attributes)
        if value.__name__ not in ("math", "numpy") and looked_into not in seen:
            seen.add(looked_into)
            for name in sorted(attributes & vars(value).keys()):
                yield name.encode()
                yield from _parts(vars(value)[name], attributes, seen)
    else:
        raise _UncoveredError


def _function_parts(value: Any, seen: set[Any]) -> Iterator[bytes]:
    function = getattr(value, "py_func", value)
    yield function.__qualname__.encode()
    if id(value) in seen or compilable(function):
        return
    seen.add(id(value))
    if isinstance(value, Dispatcher):
        yield repr(sorted(value.targetoptions.items())).encode()
    yield from _code(function.__code__)
    known = function.__globals__
    names = sorted(globals_of(function.__code__) & known.keys())
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    for part in (*values, function.__defaults__, *(known[name] for name in names)):
        yield from _parts(part, _names(function.__code__), seen)


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()
    yield repr((code.co_names, code.co_varnames)).encode()


def _names(code: CodeType) -> frozenset[str]:
    """Return the names of globals and attributes that code looks up."""
    return frozenset(code.co_names).union(*map(_names, _inner(code)))


def globals_of(code: CodeType) -> set[str]:
    """Return the names of globals that code looks up."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return names.union(*map(globals_of, _inner(code)))


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
