"""The tasks by name, and how to get one: adding a task to the package adds one line here.

A task's module has a function `make`, whose keywords are the task's options and which returns a
`Task`. It may have a function `reference` with the same keywords, which returns what the task is
held against: an object that resets and steps like a `gymnasium.Env`. Without one, that is the
task's own functions in plain Python.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from mujoco_vecenv.checks import check_integer, check_switch, closest
from mujoco_vecenv.engine.task import Task, TaskError
from mujoco_vecenv.engine.twin import TaskEnv

MICRODUCK: Final = "Microduck-v0"
RESERVED: Final = (
    *("task", "n", "num_envs", "seed", "backend", "threads", "allow_overcommit"),
    *("autoreset_mode", "max_episode_steps", "render_mode"),
)
"""What the environments of every task are told themselves: no names for a task's options."""

TASKS: Final = {
    MICRODUCK: "mujoco_vecenv.microduck.task",
    "HalfCheetah-v5": "mujoco_vecenv.suite.half_cheetah",
    "Hopper-v5": "mujoco_vecenv.suite.hopper",
    "Walker2d-v5": "mujoco_vecenv.suite.walker2d",
    "Swimmer-v5": "mujoco_vecenv.suite.swimmer",
    "Reacher-v5": "mujoco_vecenv.suite.reacher",
    "Pusher-v5": "mujoco_vecenv.suite.pusher",
    "InvertedPendulum-v5": "mujoco_vecenv.suite.inverted_pendulum",
    "InvertedDoublePendulum-v5": "mujoco_vecenv.suite.inverted_double_pendulum",
    "Ant-v5": "mujoco_vecenv.suite.ant",
    "Humanoid-v5": "mujoco_vecenv.suite.humanoid",
    "HumanoidStandup-v5": "mujoco_vecenv.suite.humanoid_standup",
}
"""Name to the module of each task."""


def make_task(name: str, /, **options: Any) -> Task:
    """Return a task.

    Args:
        name: a key of TASKS, the path of a Python file, or a module that can be imported.
        **options: the task's own.

    Raises:
        ValueError: there is no such task.
        TypeError: an option is unknown.
        TaskError: the task is not as it must be.
    """
    task = _call(name, "make", options)
    if not isinstance(task, Task):
        raise TaskError(f"task {name}: make() must return a Task, got {task!r}")
    return task


def make_reference(name: str, /, **options: Any) -> Any:
    """Return one environment of what a task is held against; see `make_task`."""
    if hasattr(task_module(name), "reference"):
        return _call(name, "reference", options)
    return TaskEnv(make_task(name, **options))


def task_module(name: str) -> ModuleType:
    """Return a task's module.

    Raises:
        ValueError: there is no such task.
        ImportError: it needs a package that is not installed.
    """
    if name.endswith(".py"):
        return _load_file(Path(name).resolve())
    if name not in TASKS and not importable(name):
        raise ValueError(
            f"unknown task {name!r}{closest(name, TASKS)}; a file such as my_task.py or an "
            "importable module will do, too"
        )
    try:
        module = importlib.import_module(TASKS.get(name, name))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("gymnasium", "imageio"):
            raise ImportError(
                f"task {name} needs Gymnasium: pip install 'mujoco-vecenv[gymnasium]'"
            ) from error
        raise
    if not callable(getattr(module, "make", None)):
        raise ValueError(f"{name!r} is no task: its module has no function make()")
    return module


_FOLDERS: Final[set[Path]] = set()
"""Of the task files that were imported."""


def importable(name: str) -> bool:
    """Whether there is a module of that name."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _load_file(path: Path) -> ModuleType:
    """Import a task from its file, once."""
    if not path.is_file():
        raise ValueError(f"unknown task: there is no file {str(path)!r}")
    # The same in every process: compiled code is kept with the names of modules.
    name = f"mujoco_vecenv_task_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    _make_way(path.parent)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # as for a script: it may import what lies beside it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    if not callable(getattr(module, "make", None)):
        del sys.modules[name]
        raise ValueError(f"{str(path)!r} is no task: it has no function make()")
    return module


def _make_way(folder: Path) -> None:
    """Forget what lies beside another task's file and has the name of something in this folder."""
    here = {path.stem for path in folder.glob("*.py")}
    here |= {path.parent.name for path in folder.glob("*/__init__.py")}
    for name in here & sys.modules.keys():
        file = Path(getattr(sys.modules[name], "__file__", None) or "")
        beside = file.parent.parent if file.name == "__init__.py" else file.parent
        if beside in _FOLDERS - {folder}:
            for other in list(sys.modules):
                if other.partition(".")[0] == name:
                    del sys.modules[other]
    _FOLDERS.add(folder)


def _call(name: str, function: str, options: dict[str, Any]) -> Any:
    call = getattr(task_module(name), function)
    known = inspect.signature(call).parameters
    if function == "make" and (taken := known.keys() & set(RESERVED)):
        raise TaskError(
            f"task {name}: make() has an option {min(taken)!r}, a name that belongs to the "
            "environments: choose another"
        )
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        for option in options:
            if option not in known:
                raise TypeError(f"task {name}: unknown option {option!r}{closest(option, known)}")
    checked = {
        option: _of_kind(f"task {name}: {option}", value, known[option])
        if option in known
        else value
        for option, value in options.items()
    }
    try:
        return call(**checked)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError) or str(error).startswith("task "):
            raise
        raise type(error)(f"task {name}: {error}") from error


def _of_kind(option: str, value: Any, known: inspect.Parameter) -> Any:
    """Return an option as it is announced, or as its default is: a number, a switch or a text.

    NumPy's numbers become Python's: next to a float32 action they would count for more than those.

    Raises:
        TypeError: it is of another kind.
    """
    number = int | float | np.integer | np.floating
    default = known.default
    if known.annotation is int:
        return check_integer(option, value)
    if known.annotation is str:
        if not isinstance(value, str | os.PathLike):
            raise TypeError(f"{option} must be a text, got {value!r}")
        return os.fspath(value)
    if isinstance(default, bool):
        return check_switch(option, value)
    if isinstance(default, float):
        if not isinstance(value, number) or isinstance(value, bool):
            raise TypeError(f"{option} must be a number, got {value!r}")
        return float(value)
    if isinstance(default, tuple) and default and all(isinstance(end, float) for end in default):
        pair = value if isinstance(value, tuple | list | np.ndarray) else ()
        numbers = all(isinstance(end, number) and not isinstance(end, bool) for end in pair)
        if len(pair) != len(default) or not numbers:
            raise TypeError(f"{option} must be {len(default)} numbers, got {value!r}")
        return tuple(float(end) for end in pair)
    return value
