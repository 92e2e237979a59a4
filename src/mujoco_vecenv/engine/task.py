"""What a task is: a model, and plain functions over one environment, bound by argument names.

A task's functions say what they read and write by the names of their arguments:

- `qpos`, `qvel`, `ctrl`, `xpos`, … are the fields of MjData, as arrays of one environment. Those of
  the state (STATE) can be written. The others are what the physics derived from it, and only
  functions that run after the physics can read them;
- `action` is what the caller wants, `obs` takes the observation;
- `params` has the task's constants as attributes, the same in every environment;
- `info` takes by attribute what the environment tells about itself;
- `elapsed` is the number of control steps done in the episode;
- further names are the task's own columns: arrays, or records with attributes, of one environment,
  zero when an episode begins, and otherwise as the task left them.

They are run in this order: `reset` begins an episode, then `describe` and `observe`; `control`
comes before the physics of a step, `reward`, `terminated`, `describe` and `observe` after it.

`TaskEnvs` compiles them and loops them over all environments; `TaskEnv` runs the very same
functions in plain Python on one MjData.
"""

import difflib
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import mujoco
import numpy as np
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS
from numpy.typing import DTypeLike, NDArray

from mujoco_vecenv.checks import check_integer, closest
from mujoco_vecenv.engine.models import compile_model

STATE: Final = (
    *("time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied"),
    *("mocap_pos", "mocap_quat", "userdata"),
)
"""Fields of MjData that a simulation consists of, and that functions can write."""

_UNREADABLE: Final = (
    *("eq_active", "history", "plastic", "plugin_state"),
    *("cacc", "cfrc_int", "energy", "qfrc_inverse", "solver_fwdinv"),
    *("subtree_angmom", "subtree_linvel", "qH", "qHDiagInv", "qLU", "qDeriv"),
)
"""Fields of MjData that a step, or mj_forward after a reset, does not compute, or not always."""

DERIVED: Final = tuple(sorted(DATA_FIELDS - {*STATE, *_UNREADABLE}))
"""Fields of MjData that follow from the state."""

ACTION: Final = "action"
"""Stands in `Task.info` for the dtype of the actions that were passed."""

MOST_STEPS: Final = 2**62
"""What stands for no limit of steps."""

_RUNNING: Final = ("params", "info", "elapsed")


class TaskError(ValueError):
    """A task is not as it must be. The message names the task, the function and the line."""


def pass_on(action: Any, ctrl: Any) -> None:
    """Control the actuators by the action itself."""
    for k in range(len(ctrl)):
        ctrl[k] = action[k]


def never() -> bool:
    """Terminate no episode."""
    return False


def nothing() -> None:
    """Describe nothing."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task for one robot.

    Attributes:
        name: what errors call it.
        model: its MJCF file.
        substeps: physics steps in a control step.
        observations: numbers in an observation.
        observe: writes `obs`.
        reward: returns the step's reward.
        reset: writes the first state of an episode, which is the model's default or `keyframe`
            before. It may also read `rng`, the environment's own numpy.random.Generator, and write
            the model fields in `model_fields`. It is plain Python, unless `compile_reset`.
        control: writes `ctrl`, and whatever must be kept of the state before the step.
        terminated: returns whether the task has ended the episode.
        describe: writes the infos that a reset reports too, and what the next step needs to know.
        episode_steps: control steps after which an episode is truncated, or None.
        params: the constants: numbers, or arrays of them.
        columns: the task's own columns, as numpy dtypes such as `(float, 14)` or a structured one.
        info: what it tells, by name, as numpy dtypes or ACTION.
        reset_info: the names that a reset tells, too.
        action_low, action_high: limits of an action; None for the actuators' control ranges.
            They are announced, not enforced: a task that wants its actions clipped does so.
        observation_dtype: float64 or float32.
        keyframe: name of the keyframe that `reset` starts from, or None.
        stage: stages to compute at the new state after the physics. None leaves derived fields as
            mj_step does, one physics step behind the state.
        compile_reset: compile `reset` like the other functions, which matters where episodes are
            short. Of `rng` it may then use what Numba knows, such as random, uniform, normal,
            standard_normal and integers, which draw what NumPy's draw.
        model_fields: fields of MjModel that `reset` gives each environment values of its own, as
            arguments of their names, or all of them in the mapping `fields`. They are the model's
            own before. What MuJoCo derives from them when it compiles a model stays as it is,
            unless `recompute_constants`.
        recompute_constants: derive it anew for each episode, as mj_setConst does.
        leave: called before a running episode is given up for a new one from the same generator,
            in plain Python, with any of `rng`, `elapsed`, `params` and the columns.

    Raises:
        TaskError: something does not fit. The message names the task and the place.
    """

    name: str
    model: Path
    substeps: int
    observations: int
    observe: Callable[..., None]
    reward: Callable[..., Any]
    reset: Callable[..., None]
    control: Callable[..., None] = pass_on
    terminated: Callable[..., Any] = never
    describe: Callable[..., None] = nothing
    episode_steps: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, DTypeLike] = field(default_factory=dict)
    info: Mapping[str, DTypeLike] = field(default_factory=dict)
    reset_info: tuple[str, ...] = ()
    action_low: NDArray[np.float32] | None = None
    action_high: NDArray[np.float32] | None = None
    observation_dtype: type = np.float64
    keyframe: str | None = None
    stage: mujoco.mjtStage | None = None
    compile_reset: bool = False
    model_fields: tuple[str, ...] = ()
    recompute_constants: bool = False
    leave: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        for name in ("substeps", "observations"):
            check_integer(f"task {self.name}: {name}", getattr(self, name), 1)
        if self.episode_steps is not None:
            check_integer(f"task {self.name}: episode_steps", self.episode_steps, 1, MOST_STEPS)
        if self.observation_dtype not in (np.float32, np.float64):
            raise TaskError(
                f"task {self.name}: observation_dtype must be np.float64 or np.float32, got "
                f"{self.observation_dtype!r}"
            )
        if not isinstance(self.stage, mujoco.mjtStage | None):
            raise TaskError(
                f"task {self.name}: stage must be a mujoco.mjtStage or None, got {self.stage!r}"
            )
        if not Path(self.model).is_file():
            raise TaskError(f"task {self.name}: there is no model {str(self.model)!r}")
        for name in self.model_fields:
            if name not in MODEL_FIELDS or "." in name:
                raise TaskError(
                    f"task {self.name}: {name!r} in model_fields is no field of MjModel that an "
                    f"environment can have of its own{_hint(name, MODEL_FIELDS)}"
                )
        taken = {*DATA_FIELDS, *self.model_fields, *_RUNNING, "action", "obs", "rng", "fields"}
        for name in self.columns:
            if name in taken:
                raise TaskError(
                    f"task {self.name}: column {name!r} needs another name: it is taken"
                )
            for key in self._dtype(f"column {name!r}", self.columns[name]).names or ():
                self._check_attribute(f"field {key!r} of column {name!r}", key)
        for name in self.params:
            self._check_attribute(f"param {name!r}", name)
        for name, spec in self.info.items():
            self._check_attribute(f"info {name!r}", name)
            self._dtype(f"info {name!r}", spec)
        for name in ("terminated", "truncated", "terminal_obs"):
            if name in self.info:
                raise TaskError(f"task {self.name}: the name of info {name!r} is taken")
        for name in self.reset_info:
            if name not in self.info:
                raise TaskError(f"task {self.name}: reset_info {name!r} is no key of info")
        before = (*STATE, *_RUNNING, *self.columns)
        after = (*before, *DERIVED)
        self._check("control", (*before, "action"))
        self._check("reward", (*after, "action"))
        self._check("terminated", (*after, "action"))
        self._check("describe", after)
        self._check("observe", (*after, "obs"))
        kept = (*self.columns, "params", "rng")
        fields = () if self.compile_reset else ("fields",)
        self._check("reset", (*STATE, *kept, *self.model_fields, *fields))
        if self.leave is not None:
            self._check("leave", (*kept, "elapsed"))

    def _dtype(self, what: str, spec: DTypeLike) -> np.dtype[Any]:
        if isinstance(spec, str) and spec == ACTION:
            return np.dtype(np.float64)
        try:
            return np.dtype(spec)
        except TypeError as error:
            raise TaskError(f"task {self.name}: {what} is {spec!r}, no numpy dtype") from error

    def _check_attribute(self, what: str, name: str) -> None:
        if hasattr(np.record, name):
            raise TaskError(
                f"task {self.name}: {what} needs another name: NumPy's records have an attribute "
                "of that name"
            )

    def _check(self, role: str, known: Iterable[str]) -> None:
        function = getattr(self, role)
        if not inspect.isfunction(function):
            raise TaskError(f"task {self.name}: {role} must be a plain function, got {function!r}")
        known = set(known)
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or (
                parameter.default is not inspect.Parameter.empty
            ):
                raise TaskError(
                    f"task {self.name}: {place(function)} must have plain arguments, "
                    f"not {parameter}"
                )
            if name in known:
                continue
            if name in DERIVED:
                why = (
                    "follows from the state, which has yet to change: read it in describe() and "
                    "keep what you need in a column"
                )
            elif name in _UNREADABLE:
                why = "a step does not compute: a sensor in the model might"
            elif name in (*_RUNNING, "action", "obs", "rng", "fields", *self.model_fields):
                why = f"is not for {role}()"
                if name == "fields" and role == "reset":
                    why = "a compiled reset() cannot take: name the model fields themselves"
            else:
                why = f"is neither a field of MjData nor a column{_hint(name, known)}"
            raise TaskError(
                f"task {self.name}: {place(function)} has the argument {name!r}, which {why}"
            )

    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Return the functions that run in every step."""
        return (self.control, self.reward, self.terminated, self.describe, self.observe)

    @cached_property
    def compiled_model(self) -> mujoco.MjModel:
        """The model, compiled once for all that are made of the task: who changes it copies it."""
        return compile_model(self.model)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The derived fields that some function reads."""
        names = {name for function in self.functions() for name in arguments(function)}
        return frozenset(names & set(DERIVED))

    def params_record(self) -> NDArray[Any]:
        """Return (1,) the constants, as fields of a structured array.

        Raises:
            TaskError: one is neither a number nor an array of numbers.
        """
        arrays = {name: np.asarray(value) for name, value in self.params.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise TaskError(
                    f"task {self.name}: param {name!r} must be a number or an array of numbers, "
                    f"got {self.params[name]!r}"
                )
        dtype = [(name, array.dtype, array.shape) for name, array in arrays.items()]
        record = np.zeros(1, np.dtype(dtype, align=True))
        for name, array in arrays.items():
            record[name] = array
        return record

    def new_columns(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the task's columns for n environments."""
        columns = {}
        for name, spec in self.columns.items():
            if np.dtype(spec).itemsize == 0:
                raise TaskError(f"task {self.name}: column {name!r} holds nothing, got {spec!r}")
            columns[name] = np.zeros(n, np.dtype(spec))
            if columns[name].ndim == 1 and columns[name].dtype.names is None:
                raise TaskError(
                    f"task {self.name}: column {name!r} would be a number, which functions could "
                    f"not write: make it an array, such as ({np.dtype(spec)}, 1), or a field of a "
                    "record"
                )
        return columns

    def new_infos(self, n: int) -> NDArray[Any]:
        """Return (n,) what environments tell, as a structured array of zeros."""
        return np.zeros(n, self.info_dtype)

    @cached_property
    def info_dtype(self) -> np.dtype[Any]:
        """The record of what an environment tells; what has the action's dtype is float64 here."""
        fields = [(name, self._dtype(f"info {name!r}", spec)) for name, spec in self.info.items()]
        return np.dtype(fields, align=True)

    def limits(self, model: mujoco.MjModel) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the actions' lower and upper limits, float32."""
        low, high = model.actuator_ctrlrange.astype(np.float32).T.copy()
        if self.action_low is not None:
            low = np.asarray(self.action_low, np.float32)
        if self.action_high is not None:
            high = np.asarray(self.action_high, np.float32)
        if low.ndim != 1 or low.shape != high.shape:
            raise TaskError(
                f"task {self.name}: action_low and action_high must be as long as each other, got "
                f"shapes {low.shape} and {high.shape}"
            )
        return low, high

    def keyframe_id(self, model: mujoco.MjModel) -> int:
        """Return the id of the keyframe that episodes start from, -1 for the model's default."""
        if self.keyframe is None:
            return -1
        number: int = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, self.keyframe)
        if number < 0:
            names = [model.key(k).name for k in range(model.nkey)]
            hint = closest(self.keyframe, names) if names else "; it has none"
            raise TaskError(
                f"task {self.name}: {self.model} has no keyframe {self.keyframe!r}{hint}"
            )
        return number


def _hint(name: str, names: Iterable[str]) -> str:
    """Return a hint at the closest of many names, if there is a close one."""
    close = difflib.get_close_matches(name, sorted(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def place(function: Callable[..., Any]) -> str:
    """Return a function's name and where it is defined, for messages."""
    code = function.__code__
    return f"{function.__name__}() ({code.co_filename}:{code.co_firstlineno})"


def run(task: Task, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a task's function in plain Python.

    Raises:
        TaskError: it failed. The message names the function and the line.
    """
    try:
        return function(**values)
    except (TaskError, mujoco.FatalError):
        raise
    except Exception as error:
        ours = {f.__code__.co_filename for f in (*task.functions(), task.reset, function)}
        frame = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in ours][-1:]
        where = f"{frame[0].name}() ({frame[0].filename}:{frame[0].lineno})" if frame else "a step"
        raise TaskError(
            f"task {task.name}: {where} failed: {type(error).__name__}: {error}"
        ) from error


def row(array: NDArray[Any], i: int) -> Any:
    """Return row i for plain Python: a view, with attributes if the array is structured."""
    return with_attributes(array)[i]


def with_attributes(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view whose rows have their fields as attributes, if they have any."""
    return array.view(np.recarray) if array.dtype.names is not None else array
