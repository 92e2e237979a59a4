"""Compiled loops over all environments around functions over one.

A loop is a few lines of generated source that call the functions with the rows of environment
after environment. It is kept in a file whose name is a fingerprint of all the source it stands on,
so that Numba's own cache finds what it compiled for the very same source in another process, and
nothing else.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import mujoco
import numpy as np
from llvmlite import ir
from numba import njit
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
    module = ModuleType(f"loop_{_digest(source, functions)}")
    sys.modules[module.__name__] = module
    path = _kept(module.__name__, source)
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
    """Return a plain function compiled, and its plain helpers, and theirs; else the value."""
    if not isinstance(value, FunctionType) or _compilable(value):
        return value
    if id(value) not in made:
        known = dict(value.__globals__)
        cells = tuple(CellType() for _ in value.__closure__ or ())
        copy = FunctionType(value.__code__, known, value.__name__, value.__defaults__, cells)
        copy.__module__ = module
        # Division by zero is infinite, as for NumPy's numbers in plain Python, and no error.
        made[id(value)] = njit(error_model="numpy")(copy)  # before its helpers, which may call it
        for name in _names(value.__code__) & known.keys():
            known[name] = _compiled(known[name], module, made)
        for cell, original in zip(cells, value.__closure__ or (), strict=True):
            cell.cell_contents = _compiled(original.cell_contents, module, made)
    return made[id(value)]


def _compilable(function: FunctionType) -> bool:
    """Whether Numba knows a plain function as it is."""
    module = function.__module__
    return module.partition(".")[0] == "numpy" or module in (native.__name__, numpy_bits.__name__)


def _digest(source: str, functions: Mapping[str, Callable[..., Any]]) -> str:
    """Return the fingerprint of everything that a loop's compiled code depends on."""
    digest = sha256(f"{source} {np.__version__} {mujoco.__version__}".encode())
    for engine in sorted(_ENGINE.glob("*.py")):
        digest.update(engine.read_bytes())
    for name, function in functions.items():
        digest.update(name.encode())
        for part in _fingerprint(function, set()):
            digest.update(part)
    return digest.hexdigest()[:24]


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


def _fingerprint(function: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield everything that the compiled code of a function depends on."""
    function = getattr(function, "py_func", function)
    if id(function) in seen or not isinstance(function, FunctionType):
        return
    seen.add(id(function))
    if _compilable(function):
        yield f"{function.__module__}.{function.__qualname__}".encode()
        return
    yield from _code(function.__code__)
    names = sorted(_names(function.__code__))
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [function.__defaults__, *(function.__globals__.get(name) for name in names)]
    for value in list(values):
        if isinstance(value, ModuleType) and value.__name__ not in ("math", "numpy"):
            values += [vars(value).get(name) for name in names]
    for value in values:
        if isinstance(value, ModuleType | type) or value is None:
            continue
        if isinstance(value, FunctionType | Dispatcher):
            yield from _fingerprint(value, seen)
        elif isinstance(value, np.ndarray):
            yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
        else:
            yield repr(value).encode()


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()
    yield repr((code.co_names, code.co_varnames)).encode()


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code looks up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


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
