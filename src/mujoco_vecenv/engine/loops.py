"""Compiled loops over all environments around functions over one.

A loop is a few lines of generated source that call the functions with the rows of environment
after environment. It is kept in a file whose name is a fingerprint of all that its compiled code
depends on, so that Numba's own cache finds what it compiled of the very same in another process,
and nothing else. What depends on a value that the fingerprint does not know how to cover is not
kept at all.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, Final
from uuid import uuid4

import numpy as np
from numba import jit, njit, typeof, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numpy.typing import NDArray

from mujoco_vecenv.engine.fingerprint import compilable, fingerprint, globals_of
from mujoco_vecenv.engine.intrinsics import array_at, borrowed, generator_at
from mujoco_vecenv.engine.task import Task, TaskError, arguments, place

_ENGINE: Final = Path(__file__).parent
_REFUSALS: Final = (NumbaError, UnsupportedBytecodeError, KeyError)
"""What Numba raises for what it cannot compile: KeyError for an attribute that a record lacks."""

PARALLEL_ROWS: Final = 4096
"""Environments from which on a loop is shared between threads: before, asking them takes longer."""
_FINITE: Final = """\
    for k in range(action.shape[0]):
        for j in range(action.shape[1]):
            if not isfinite(action[k, j]):
                return -1
"""
"""How a loop begins that refuses actions before anything changes: all of them, whoever steps."""


Line = str | tuple[str, Callable[..., Any]]


class Loop:
    """A compiled loop with its arrays at hand.

    Arrays that are the same in every call are looked up in a table of addresses: to hand over each
    of them anew would take longer than what many loops do.

    Args:
        task: whose functions it calls.
        rows: argument to the source of its value for environment i.
        arrays: the arrays by name, those that `rows` and whole lines mention.
        lines: what to do for environment i: functions, each with what comes before its call, and
            whole lines.
        given: the names of what each call passes, in order. The other arrays are fixed.
    """

    def __init__(
        self,
        task: Task,
        rows: Mapping[str, str],
        arrays: Mapping[str, NDArray[Any]],
        lines: Sequence[Line],
        given: tuple[str, ...],
    ):
        functions = {f"do_{k}": line[1] for k, line in enumerate(lines) if isinstance(line, tuple)}
        text = "\n        ".join(
            line if isinstance(line, str) else line[0] + call_source(f"do_{k}", line[1], rows)
            for k, line in enumerate(lines)
        )
        used = dict.fromkeys(re.findall(r"\w+", text))
        self._fixed = {name: arrays[name] for name in used if name in arrays and name not in given}
        self._places: dict[str, int] = {}
        words: list[int] = []
        taking = ""
        for name, array in self._fixed.items():
            taking += (
                f"    {name} = array_at(table, {len(words)}, kind_{name})  # {typeof(array)}\n"
            )
            self._places[name] = len(words)
            words += _whereabouts(array)
        self._table = np.array(words, np.int64)
        counted = [name for name in ("ids", *given) if name != "limit"]
        borrowing = "".join(f"    {name} = borrowed({name})\n" for name in counted)
        source = (
            f"def loop(ids, {', '.join((*given, 'table'))}):\n"
            f"{borrowing}{taking}"
            f"{_FINITE if 'action' in given and 'obs' not in given else ''}"
            "    over = 0\n"
            "    for k in range(len(ids)):\n"
            "        i = ids[k]\n"
            f"        {text}\n"
            "    return over\n"
        )
        kinds = {f"kind_{name}": typeof(array) for name, array in self._fixed.items()}
        self._loop = compile_loop(task.name, source, functions, kinds)
        self.share(None, 1)

    def replace(self, name: str, other: NDArray[Any]) -> None:
        """Give the loop another array of the same kind in place of a fixed one, if it has that."""
        if name in self._fixed:
            assert typeof(other) == typeof(self._fixed[name]), name
            self._fixed[name] = other  # which keeps it alive
            words = _whereabouts(other)
            self._table[self._places[name] : self._places[name] + len(words)] = words

    def share(self, pool: ThreadPoolExecutor | None, threads: int) -> None:
        """Share long calls between the caller's thread and a pool's."""
        self._pool = pool
        self._threads = threads

    def __call__(self, ids: NDArray[np.int64], *values: Any) -> int:
        """Run the loop and return how many times it counted something."""
        if self._pool is None or len(ids) < PARALLEL_ROWS:
            return self._loop(ids, *values, self._table)  # type: ignore[no-any-return]
        mine, *others = np.array_split(ids, self._threads)
        running = [self._pool.submit(self._loop, o, *values, self._table) for o in others]
        count = self._loop(mine, *values, self._table)
        return count + sum(share.result() for share in running)  # type: ignore[no-any-return]


def _whereabouts(array: NDArray[Any]) -> list[int]:
    """Return what `array_at` makes an array from."""
    return [array.ctypes.data, *array.shape, *array.strides]


def compile_loop(
    task: str,
    source: str,
    functions: Mapping[str, Callable[..., Any]],
    kinds: Mapping[str, types.Array] | None = None,
) -> Callable[..., Any]:
    """Compile a loop.

    Args:
        task: the task's name, for errors.
        source: defines a function `loop`, which calls functions by the names given.
        functions: name to a plain function over one environment.
        kinds: name to a type that the source uses, and also spells out.

    Returns:
        The loop. It releases the GIL. Its first call with arguments of new types compiles it, and
        raises TaskError where a function is not what Numba can compile.
    """
    # All that is compiled belongs to a module of the loop's own: Numba imports the module of what
    # it has kept, and would take two things of the same module and name for one.
    digest = fingerprint(source, functions)
    module = ModuleType(f"loop_{digest or uuid4().hex}")
    sys.modules[module.__name__] = module
    path = None if digest is None else _kept(module.__name__, source)
    namespace: dict[str, Any] = {"__name__": module.__name__, "isfinite": math.isfinite}
    namespace |= {"borrowed": borrowed, "array_at": array_at, "generator_at": generator_at}
    made: dict[int, Any] = {}
    namespace |= {n: _compiled(f, module.__name__, made) for n, f in functions.items()}
    namespace |= kinds or {}
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
        except Exception as error:  # compiled code does not know its lines
            named = ", ".join(map(place, functions.values()))
            raise TaskError(
                f"task {task}: one of {named} failed: {type(error).__name__}: {error}"
            ) from error

    return call


def call_source(name: str, function: Callable[..., Any], rows: Mapping[str, str]) -> str:
    """Return the source of a function's call with its rows."""
    return f"{name}({', '.join(rows[argument] for argument in arguments(function))})"


def _compiled(value: Any, module: str, made: dict[int, Any]) -> Any:
    """Return a function compiled in a module, and its helpers, and theirs; else the value."""
    if not isinstance(value, FunctionType | Dispatcher) or compilable(value):
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
        for name in globals_of(function.__code__) & known.keys():
            known[name] = _compiled(known[name], module, made)
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = _compiled(original.cell_contents, module, made)
    return made[id(value)]


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
