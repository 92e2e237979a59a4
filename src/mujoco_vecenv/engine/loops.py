"""Compiled loops over all environments around functions over one.

A loop is a few lines of generated source that call the functions with the rows of environment
after environment. It is kept in a file whose name is a fingerprint of all the source it stands on,
so that Numba's own cache finds what it compiled for the very same source in another process, and
nothing else.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from mujoco_vecenv.engine.task import TaskError, arguments, place

_ENGINE: Final = Path(__file__).parent
_COMPILABLE: Final = ("numpy", "mujoco_vecenv.engine.numpy_bits")
"""Modules whose plain functions Numba knows as they are."""


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
    path = _kept(source, functions)
    namespace: dict[str, Any] = {"__name__": __name__}
    namespace |= {name: njit(_with_helpers(f, {})) for name, f in functions.items()}
    exec(compile(source, str(path or "<loop>"), "exec"), namespace)
    loop = njit(cache=path is not None, nogil=True)(namespace["loop"])

    def call(*values: Any) -> Any:
        try:
            return loop(*values)
        except NumbaError as error:
            raise TaskError(_explain(task, error, functions.values())) from error

    # What is called at every step is the loop itself: `call` only explains a first call's failure.
    call.loop = loop  # type: ignore[attr-defined]
    return call


def call_source(name: str, function: Callable[..., Any], rows: Mapping[str, str]) -> str:
    """Return the source of a function's call with its rows."""
    return f"{name}({', '.join(rows[argument] for argument in arguments(function))})"


def _with_helpers(function: Any, made: dict[int, Any]) -> FunctionType:
    """Return a copy of a function whose plain helpers, and theirs, are compiled too."""
    known = dict(function.__globals__)
    for name in _names(function.__code__):
        value = known.get(name)
        if isinstance(value, FunctionType) and value.__module__ not in _COMPILABLE:
            if id(value) not in made:
                made[id(value)] = njit(_with_helpers(value, made))
            known[name] = made[id(value)]
    copy = FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__ = function.__module__
    return copy


def _kept(source: str, functions: Mapping[str, Callable[..., Any]]) -> Path | None:
    """Write the loop to its file, unless it is there; None where nothing can be written."""
    digest = sha256(source.encode())
    for engine in sorted(_ENGINE.glob("*.py")):
        digest.update(engine.read_bytes())
    for name, function in functions.items():
        digest.update(name.encode())
        for part in _fingerprint(function, set()):
            digest.update(part)
    root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path.home() / ".cache") / "mujoco-vecenv"
    path = folder / f"loop_{digest.hexdigest()[:24]}.py"
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
    yield from _code(function.__code__)
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [function.__globals__.get(name) for name in _names(function.__code__)]
    for value in values:
        if isinstance(value, ModuleType | type) or value is None:
            continue
        if isinstance(value, FunctionType | Dispatcher):
            yield from _fingerprint(value, seen)
        elif isinstance(value, np.ndarray):
            yield value.tobytes()
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


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _explain(task: str, error: Exception, functions: Any) -> str:
    """Say in which line of which of a task's functions Numba failed, and why."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    places = re.findall(r'File "([^"]+)", line (\d+)', text)
    said = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in said if not line.startswith(("Failed in", "During", "-"))), "")
    for function in functions:
        code = function.__code__
        lines = {line for *_, line in code.co_lines() if line}
        for file, line in reversed(places):
            if Path(file).name == Path(code.co_filename).name and int(line) in lines:
                return (
                    f"task {task}: Numba cannot compile {function.__name__}() "
                    f"({code.co_filename}:{line}): {reason}"
                )
    names = ", ".join(place(function) for function in functions)
    return f"task {task}: Numba cannot compile one of {names}: {reason}"
