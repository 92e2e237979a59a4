"""Run a script that was written for another vector environment on this one, unedited.

The script finds this package's `VecEnv`, and a number `MAX_WORKERS`, in the module from which it
imports its own. Environment variables choose the rest:

- MUJOCO_VECENV_BACKEND: `batch` (the default), `process` or `sync`;
- MUJOCO_VECENV_THREADS: threads of the batch backend;
- MUJOCO_VECENV_MAX_WORKERS: the MAX_WORKERS that the script sees (8).
"""

import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType
from typing import Any, Final

from mujoco_vecenv.checks import check_choice
from mujoco_vecenv.vector import vec_env

BACKEND_VARIABLE: Final = "MUJOCO_VECENV_BACKEND"
THREADS_VARIABLE: Final = "MUJOCO_VECENV_THREADS"
WORKERS_VARIABLE: Final = "MUJOCO_VECENV_MAX_WORKERS"


class ScriptError(Exception):
    """The script failed; `__cause__` is what it raised."""


class VecEnv(vec_env.VecEnv):
    """The `VecEnv` that a script finds: its keywords, and the variables' backend and threads."""

    def __init__(self, n: int = 4, seed: int = 0, with_terms: bool = False, **keywords: Any):
        keywords.setdefault("backend", _backend())
        keywords.setdefault("threads", _positive(THREADS_VARIABLE, None))
        super().__init__(n, seed, with_terms, **keywords)


def fill(names: dict[str, Any]) -> None:
    """Put what a script imports, VecEnv and MAX_WORKERS, into a module's names."""
    names["VecEnv"] = VecEnv
    names["MAX_WORKERS"] = _positive(WORKERS_VARIABLE, 8)


def run_as(module: str, script: Path, arguments: Sequence[str]) -> None:
    """Run a script as `__main__` while `module` is this package's.

    Args:
        module: the name from which the script imports VecEnv, as `vec_env` or `package.vec_env`.
        script: the script.
        arguments: its command line.

    Raises:
        FileNotFoundError: there is no such script.
        ValueError: no such module can be, or a variable has no good value.
        ScriptError: the script raised an exception.
    """
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {script}")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{module!r} is no name of a module")
    replacement = ModuleType(module, __doc__)
    fill(vars(replacement))
    _positive(THREADS_VARIABLE, None)
    check_choice(BACKEND_VARIABLE, _backend(), vec_env.BACKENDS)
    package, _, last = module.rpartition(".")
    with TemporaryDirectory(prefix="mjvec-") as folder:
        # As `python SCRIPT` would have it; the folder in front is for worker processes, which
        # import the script anew.
        sys.argv = [str(script), *arguments]
        sys.path[0] = str(script.resolve().parent)
        if package:
            setattr(importlib.import_module(package), last, replacement)
        else:
            source = "from mujoco_vecenv.run_as import fill\n\nfill(globals())\n"
            Path(folder, f"{module}.py").write_text(source)
            sys.path.insert(0, folder)
        sys.modules[module] = replacement
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Exception as error:
            raise ScriptError(str(script)) from error.with_traceback(_own(error, script))


def _own(error: Exception, script: Path) -> TracebackType | None:
    """Return an exception's traceback from where the script itself begins."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    return trace or error.__traceback__


def _backend() -> str:
    return os.environ.get(BACKEND_VARIABLE) or "batch"


def _positive(variable: str, default: Any) -> Any:
    text = os.environ.get(variable)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{variable} must be an integer of 1 or more, got {text!r}")
    return int(text)
