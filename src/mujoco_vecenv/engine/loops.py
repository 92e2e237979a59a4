"""Compiled loops over all environments around functions over one.

A loop is a few lines of generated source that call the functions with the rows of environment
after environment. It is kept in a file whose name is a fingerprint of all that its compiled code
depends on, so that Numba's own cache finds what it compiled of the very same in another process,
and nothing else. What depends on a value that the fingerprint does not know how to cover is not
kept at all.
"""

import dis
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import EnumMeta
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final
from uuid import uuid4

import mujoco
import numpy as np
from llvmlite import ir
from numba import jit, njit
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.extending import intrinsic

from mujoco_vecenv.engine import native, numpy_bits
from mujoco_vecenv.engine.task import TaskError, arguments, place

_ENGINE: Final = Path(__file__).parent
_REFUSALS: Final = (NumbaError, UnsupportedBytecodeError, KeyError)
"""What Numba raises for what it cannot compile: KeyError for an attribute that a record lacks."""


def compile_loop(
    task: str, source: str, functions: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """Compile a loop.

    Args:
        task: the task's name, for errors.
        source: defines a function `loop`, which calls functions by the names given.
        functions: name to a plain function over one environment.

    Returns:
        The loop. It releases the GIL. Its first call with arguments of new types compiles it, and
        raises TaskError where a function is not what Numba can compile.
    """
    # All that is compiled belongs to a module of the loop's own: Numba imports the module of what
    # it has kept, and would take two things of the same module and name for one.
    digest = _digest(source, functions)
    module = ModuleType(f"loop_{digest or uuid4().hex}")
    sys.modules[module.__name__] = module
    path = None if digest is None else _kept(module.__name__, source)
    namespace: dict[str, Any] = {"__name__": module.__name__, "isfinite": math.isfinite}
    namespace["borrowed"] = borrowed
    made: dict[int, Any] = {}
    namespace |= {n: _compiled(f, module.__name__, made) for n, f in functions.items()}
    exec(compile(source, str(path or "<loop>"), "exec"), namespace)
    try:
        loop = njit(cache=path is not None, nogil=True)(namespace["loop"])
    except RuntimeError:  # the file is there, and Numba can write no other
        loop = njit(nogil=True)(namespace["loop"])

    def call(*values: Any) -> Any:
        try:
            return loop(*values)
        except _REFUSALS as error:
            theirs = [dispatcher.py_func for dispatcher in made.values()]
            raise TaskError(_explain(task, error, theirs)) from error

    return call


@intrinsic
def borrowed(typing: Any, array: Any) -> Any:
    """Return an array without its reference count, whose owner must outlive it.

    Else every row that is sliced from it would be counted, which costs more than most rows do, and
    stops threads that count the same array.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kept = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        kept.meminfo = cgutils.get_null_value(kept.meminfo.type)  # type: ignore[no-untyped-call]
        kept.parent = cgutils.get_null_value(kept.parent.type)  # type: ignore[no-untyped-call]
        return kept._getvalue()

    return array(array), generate


def call_source(name: str, function: Callable[..., Any], rows: Mapping[str, str]) -> str:
    """Return the source of a function's call with its rows."""
    return f"{name}({', '.join(rows[argument] for argument in arguments(function))})"


def _compiled(value: Any, module: str, made: dict[int, Any]) -> Any:
    """Return a function compiled in a module, and its helpers, and theirs; else the value."""
    if not isinstance(value, FunctionType | Dispatcher) or _compilable(value):
        return value
    if id(value) not in made:
        # Division by zero is infinite, as for NumPy's numbers in plain Python, and no error.
        options: dict[str, Any] = {"nopython": True, "error_model": "numpy"}
        function: Any = value
        if isinstance(value, Dispatcher):  # as its own decorator said
            function, options = value.py_func, value.targetoptions
        known = dict(function.__globals__)
        cells = tuple(CellType() for _ in function.__closure__ or ())
        copy = FunctionType(
            function.__code__, known, function.__name__, function.__defaults__, cells
        )
        copy.__module__ = module
        made[id(value)] = jit(**options)(copy)  # before its helpers, which may call it
        for name in _globals(function.__code__) & known.keys():
            known[name] = _compiled(known[name], module, made)
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = _compiled(original.cell_contents, module, made)
    return made[id(value)]


def _compilable(function: Any) -> bool:
    """Whether Numba knows a plain function as it is."""
    module = function.__module__ or ""
    return module.partition(".")[0] == "numpy" or module in (native.__name__, numpy_bits.__name__)


class _UncoveredError(Exception):
    """Compiled code depends on a value of a kind that no fingerprint covers."""


def _digest(source: str, functions: Mapping[str, Callable[..., Any]]) -> str | None:
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
    digest = sha256(f"{np.__version__} {mujoco.__version__} {numpy_bits.rounding()}".encode())
    for engine in sorted(_ENGINE.glob("*.py")):
        digest.update(engine.read_bytes())
    return digest.digest()


def _kept(name: str, source: str) -> Path | None:
    """Write the loop to its file, unless it is there; None where nothing can be written."""
    root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path.home() / ".cache") / "mujoco-vecenv"
    path = folder / f"{name}.py"
    try:
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{path.name}.{os.getpid()}"
            draft.write_text(source)
            draft.replace(path)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return path


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
    if id(value) in seen or _compilable(function):
        return
    seen.add(id(value))
    if isinstance(value, Dispatcher):
        yield repr(sorted(value.targetoptions.items())).encode()
    yield from _code(function.__code__)
    known = function.__globals__
    names = sorted(_globals(function.__code__) & known.keys())
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


def _globals(code: CodeType) -> set[str]:
    """Return the names of globals that code looks up."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return names.union(*map(_globals, _inner(code)))


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _explain(task: str, error: Exception, functions: Collection[Callable[..., Any]]) -> str:
    """Say in which line of which of a task's functions Numba failed, and why."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if isinstance(error, KeyError):
        text = f"there is no attribute {text}"
    said = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in said if not line.startswith(("Failed in", "During", "-"))]
    reason = " ".join(said[: 2 if said and said[0].endswith(":") else 1]).replace(">>> ", "")
    for *files, line in re.findall(r'(?:File "(.+)", line |Raised from (.+) \()(\d+)', text):
        file = Path("".join(files)).name
        for function in functions:  # the first place is the innermost
            code = function.__code__
            lines = {number for *_, number in code.co_lines()}
            if file == Path(code.co_filename).name and int(line) in lines:
                return (
                    f"task {task}: Numba cannot compile {function.__name__}() "
                    f"({code.co_filename}:{line}): {reason}"
                )
    theirs = [f for f in functions if Path(f.__code__.co_filename).parent != _ENGINE]
    names = ", ".join(place(function) for function in theirs)
    return f"task {task}: Numba cannot compile one of {names}: {reason}"
