"""What is timed of a task: the same control steps for all, with or without the task.

Every window resets its environments from the same seeds and steps them `STEPS` times with the same
uniform random actions, within the limits that the task announces. Where an episode ends, the next
one begins. Contestants that have no task replay what it did to its simulations, its resets among
it, and so step the very same states to the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.bench.windows import Window, in_threads
from mujoco_vecenv.engine.contact_forces import FIELD
from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.models import compile_model
from mujoco_vecenv.engine.simulations import Simulations
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv

STEPS: Final = 250
"""Control steps in a window."""

_PHYSICS: Final = mujoco.mjtState.mjSTATE_INTEGRATION


def random_actions(
    task: Task, low: NDArray[np.float32], high: NDArray[np.float32], steps: int, n: int
) -> NDArray[np.float32]:
    """Return (steps, n, actions) uniform random actions, the same at every call.

    Raises:
        ValueError: the task announces no limits to draw them from.
    """
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise ValueError(
            f"task {task.name}: random actions need limits, and it announces {low} and {high}: "
            "give its actuators a ctrlrange, or the task action_low and action_high"
        )
    rng = np.random.default_rng(0)
    return rng.uniform(low, high, (steps, n, len(low))).astype(np.float32)


def mode_window(
    mode: str, n: int, threads: int, task: str, allow_overcommit: bool = False
) -> Window:
    """Return the window of one of the three layers.

    Args:
        mode: "bare" is a loop of mj_step on the published model for each environment in `threads`
            Python threads; "engine" is mujoco.batch on the model that the batch backend steps,
            without the task; "env" is the batch backend.
        n: environments.
        threads: threads.
        task: the task.
        allow_overcommit: accept more threads than the machine has CPUs.
    """
    envs = TaskVecEnv(task, n, threads=threads, allow_overcommit=allow_overcommit)
    window = episodes_window(envs)
    if mode == "env":
        return window
    engine = engine_of(envs)
    cues = record(engine, window)
    if mode == "bare":
        return BareLoop(engine.task, n, threads, cues)
    return EngineLoop(engine, threads, cues)


def episodes_window(envs: TaskVecEnv) -> Window:
    """Return the window of a TaskVecEnv."""
    actions = random_actions(envs.task, envs.low, envs.high, STEPS, envs.n)
    return vector_window(lambda: envs.reset(seed=0), envs.step, actions)


def vector_window(
    reset: Callable[[], object],
    step: Callable[[NDArray[np.float32]], object],
    actions: NDArray[np.float32],
) -> Window:
    """Return the window of whatever resets and steps all its environments in one call."""

    def window() -> int:
        reset()
        for action in actions:
            step(action)
        return int(actions.shape[0] * actions.shape[1])

    return window


def engine_of(envs: Any) -> TaskEnvs:
    """Return the engine under a VecEnv or TaskVecEnv on the batch backend, or a TaskVectorEnv."""
    inside = envs._envs
    engine: TaskEnvs = inside if isinstance(inside, TaskEnvs) else inside._envs
    return engine


@dataclass(frozen=True, slots=True)
class Cue:
    """What a task did to its simulations between the physics of two steps.

    Attributes:
        ids: the simulations that were stepped then, ascending; None for all.
        ctrl: (n, actuators) their controls.
        written: (m,) the simulations that it wrote anything else into, to begin an episode or to
            push a robot.
        states: (m, nstate) the states that it left them in.
    """

    ids: NDArray[np.int64] | None
    ctrl: NDArray[np.float64]
    written: NDArray[np.int64]
    states: NDArray[np.float64]


def record(envs: TaskEnvs, window: Window) -> list[Cue]:
    """Run a window once and return what the task did to its simulations before each step.

    Raises:
        ValueError: the task gives environments physics of their own, which are not recorded.
    """
    task, sims = envs.task, envs.sims
    if task.model_fields:
        raise ValueError(
            f"task {task.name}: its episodes have physics of their own "
            f"({', '.join(task.model_fields)}), which a loop without the task does not have"
        )
    cues: list[Cue] = []
    ctrl, physics = sims.field("ctrl"), sims.step
    # A state is the fields of mjtState one after the other, in the order of their bits.
    first = mujoco.mj_stateSize(sims.model, int(_PHYSICS) & (int(mujoco.mjtState.mjSTATE_CTRL) - 1))
    controls = slice(first, first + sims.model.nu)
    left = np.full_like(sims.rows, np.nan)

    def step(substeps: int, ids: NDArray[np.int64] | None = None) -> None:
        left[:, controls] = ctrl
        written = np.flatnonzero((sims.rows != left).any(axis=1))
        cues.append(Cue(ids, ctrl.copy(), written, sims.rows[written]))
        physics(substeps, ids)
        left[:] = sims.rows

    sims.step = step  # type: ignore[method-assign]
    try:
        window()
    finally:
        del sims.step
    return cues


class EngineLoop:
    """A window of mujoco.batch alone, which copies out the fields that the task reads.

    Args:
        envs: what recorded the cues.
        threads: threads.
        cues: the window.
        model: the model to step, None for the lean one of `envs`.

    Attributes:
        sims: the simulations.
    """

    def __init__(
        self,
        envs: TaskEnvs,
        threads: int,
        cues: Sequence[Cue],
        model: mujoco.MjModel | None = None,
    ):
        self.sims = Simulations(model or envs.sims.model, envs.n, threads, -1, envs.task.stage)
        for name in envs.task.reads:
            self.sims.field(name)
        self._substeps = envs.task.substeps
        self._cues = cues

    def __call__(self) -> int:
        """Step through the window; return the environment steps done."""
        rows, ctrl = self.sims.rows, self.sims.field("ctrl")
        for cue in self._cues:
            if len(cue.written):
                rows[cue.written] = cue.states
            ctrl[:] = cue.ctrl
            self.sims.step(self._substeps, cue.ids)
        return len(self._cues) * len(rows)


class BareLoop:
    """A window of plain mj_step on the task's published model, in Python threads.

    Where the task reads contact forces on bodies, mj_rnePostConstraint follows each step.

    Args:
        task: the task.
        n: simulations.
        threads: threads.
        cues: the window.

    Attributes:
        model: the model.
        datas: the simulations.
    """

    def __init__(self, task: Task, n: int, threads: int, cues: Sequence[Cue]):
        self.model = compile_model(task.model)
        self.datas = [mujoco.MjData(self.model) for _ in range(n)]
        self._task = task
        self._threads = threads
        self._cues = [
            (
                range(n) if cue.ids is None else frozenset(cue.ids.tolist()),
                cue.ctrl,
                dict(zip(cue.written.tolist(), cue.states, strict=True)),
            )
            for cue in cues
        ]

    def __call__(self) -> int:
        """Step through the window; return the environment steps done."""
        in_threads(self._loop, len(self.datas), self._threads)
        return len(self._cues) * len(self.datas)

    def _loop(self, mine: range) -> None:
        model, datas, substeps = self.model, self.datas, self._task.substeps
        contact_forces = FIELD in self._task.reads
        for stepped, ctrl, states in self._cues:
            for i in mine:
                if i in states:
                    mujoco.mj_setState(model, datas[i], states[i], _PHYSICS)
                if i in stepped:
                    datas[i].ctrl[:] = ctrl[i]
                    mujoco.mj_step(model, datas[i], substeps)
                    if contact_forces:
                        mujoco.mj_rnePostConstraint(model, datas[i])
