"""n environments of a task, stepped together: batched physics between compiled loops."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import mujoco
import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.engine.actions import check_finite
from mujoco_vecenv.engine.contact_forces import (
    FIELD,
    leaves_contact_forces,
    model_with_contact_forces,
)
from mujoco_vecenv.engine.generators import address_of
from mujoco_vecenv.engine.lean import FILTERS, lean_spec
from mujoco_vecenv.engine.loops import PARALLEL_ROWS, Line, Loop
from mujoco_vecenv.engine.models import compile_again
from mujoco_vecenv.engine.simulations import Simulations
from mujoco_vecenv.engine.task import (
    DERIVED,
    MOST_STEPS,
    STATE,
    Task,
    arguments,
    row,
    run,
    with_attributes,
)
from mujoco_vecenv.engine.twin import rehearse

_NEEDS_ALL: Final = ("sensor", "geom_", "cam_", "light_", "bvh_", "ncon")
"""Beginnings of the names of fields that a lean model has fewer of."""


@dataclass(slots=True)
class Step:
    """What a step returns, each with a row per environment.

    Attributes:
        obs: observations, float32 or float64.
        rewards: float64.
        terminated: whether the task ended the episode.
        truncated: whether its time did.
        infos: a structured array with the fields of `Task.info`.
        over: how many episodes ended.
    """

    obs: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: NDArray[Any]
    over: int


class TaskEnvs:
    """n environments of a task, each equal to a `TaskEnv` of the same generator.

    An episode that ends stays ended until `begin`; who steps it on gets what the physics gives.

    Args:
        task: the task.
        n: number of environments.
        threads: threads for the physics. Results do not depend on it.
        keep_contacts: whether the friction or softness of geoms may be written later on, beside
            what the task announces as `model_fields`.

    Attributes:
        rngs: a generator for each environment, from which `begin` draws; see `seed`.
        elapsed: (n,) control steps done in each episode.
        columns: the task's columns, a row per environment.
        model_fields: the model fields that environments have of their own, a row per environment.
        low, high: the actions' limits, float32.
        clear: called with ids, puts environments back to where episodes begin, their columns and
            time to zero.

    Raises:
        TaskError: the task does not fit its model, or does not compile.
    """

    def __init__(self, task: Task, n: int, threads: int, keep_contacts: bool = False):
        rehearse(task)
        self.task = task
        self.n = n
        full = task.compiled_model
        self.low, self.high = task.limits(full)
        fields = [name for name in task.model_fields if not name.startswith("geom_")]
        forces = FIELD in task.reads
        own_forces = forces and leaves_contact_forces(full)
        if own_forces or any(name.startswith(_NEEDS_ALL) for name in (*task.reads, *fields)):
            spec = mujoco.MjSpec.from_file(str(task.model))
        else:
            keep = any(name.startswith("geom_") for name in task.model_fields)
            filters = any(name.startswith(FILTERS) for name in task.model_fields)
            spec = lean_spec(full, task.model, keep, keep_contacts or filters)
        model = model_with_contact_forces(spec) if forces else compile_again(spec)
        self.sims = Simulations(model, n, threads, task.keyframe_id(model), task.stage)
        self.rngs: list[np.random.Generator] = [np.random.default_rng() for _ in range(n)]
        self._addresses = np.array([address_of(rng) for rng in self.rngs])
        self._begun = np.zeros(n, np.bool_)  # whether an episode drawn from its generator runs
        self.elapsed = np.zeros(n, np.int64)
        self.columns = task.new_columns(n)
        self.all = np.arange(n)
        self._limit = MOST_STEPS if task.episode_steps is None else task.episode_steps
        self._params = task.params_record()
        self.model_fields = {name: self.sims.model_field(name) for name in task.model_fields}
        self._nominal = {name: getattr(model, name).copy() for name in task.model_fields}
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 and n >= PARALLEL_ROWS else None
        self._threads = threads
        self._compile()
        self._bind_plain()

    def _compile(self) -> None:
        task, sims = self.task, self.sims
        rows = {"action": "action[i]", "obs": "obs[i]", "elapsed": "elapsed[i]"}
        rows |= {"params": "params[0]", "info": "info[i]", "rng": "generator_at(addresses[i])"}
        rows |= {name: f"{name}[i]" for name in (*DERIVED, *self.model_fields)}
        rows |= {name: f"column_{name}[i]" for name in self.columns}  # any name will do
        rows |= {name: sims.row_source(name) for name in STATE}
        arrays: dict[str, NDArray[Any]] = {n: sims.field(n) for n in (*task.reads, *STATE)}
        arrays |= self.model_fields
        arrays |= {"state": sims.rows, "first": sims.first, "addresses": self._addresses}
        arrays |= {"params": self._params, "elapsed": self.elapsed, "no_info": task.new_infos(1)}
        arrays |= {f"column_{name}": column for name, column in self.columns.items()}
        arrays |= {f"bytes_{name}": _bytes(column) for name, column in self.columns.items()}
        self._control = Loop(task, rows, arrays, [("", task.control)], ("action", "info"))
        finish: list[Line] = [
            ("rewards[i] = ", task.reward),
            ("terminated[i] = ", task.terminated),
            "elapsed[i] += 1",
            "truncated[i] = elapsed[i] >= limit",
            "over += terminated[i] or truncated[i]",
            ("", task.describe),
            ("", task.observe),
        ]
        given = ("action", "info", "obs", "rewards", "terminated", "truncated", "limit")
        self._finish = Loop(task, rows, arrays, finish, given)
        clear: list[Line] = ["state[i] = first", "elapsed[i] = 0"]
        clear += [f"bytes_{name}[i] = 0" for name in self.columns]
        self.clear = Loop(task, rows, arrays, clear, ())
        draw = [("", task.reset)] if task.compile_reset else []
        self._draw = Loop(task, rows, arrays, draw, ()) if draw else None
        if FIELD in task.reads and not leaves_contact_forces(task.compiled_model):
            arrays[FIELD] = np.zeros_like(arrays[FIELD])
        # What describe() leaves unwritten would be that of the episode before.
        tell: list[Line] = ["info[i] = no_info[0]"] if task.info else []
        tell += [("", task.describe), ("", task.observe)]
        self._tell = Loop(task, rows, arrays, tell, ("info", "obs"))
        for loop in (self._control, self._finish):
            loop.share(self._pool, self._threads)
        # Compiled now, for the dtype that actions are announced in.
        none = self.all[:0]
        actions = np.zeros((self.n, len(self.low)), np.float32)
        step = self._new_step(np.empty)
        self.clear(none)
        if self._draw is not None:
            self._draw(none)
        self._tell(none, step.infos, step.obs)
        self._control(none, actions, step.infos)
        self._finish_step(none, actions, step)

    def _new_step(self, make: Callable[..., NDArray[Any]]) -> Step:
        n, task = self.n, self.task
        return Step(
            make((n, task.observations), task.observation_dtype),
            make(n),
            make(n, np.bool_),
            make(n, np.bool_),
            np.zeros(n, task.info_dtype),  # a function may leave some unwritten
            0,
        )

    def seed(self, i: int, seed: int | None) -> None:
        """Give environment i a new generator, seeded by the system for None."""
        self.rngs[i] = np.random.default_rng(seed)
        self._addresses[i] = address_of(self.rngs[i])
        self._begun[i] = False

    def set_column(self, name: str, column: NDArray[Any]) -> None:
        """Put another array of the same dtype and dimensions in a column's place."""
        self.columns[name] = column
        for loop in (self._control, self._finish, self.clear, self._draw, self._tell):
            if loop is not None:
                loop.replace(f"column_{name}", column)
                loop.replace(f"bytes_{name}", _bytes(column))
        self._bind_plain()

    def _bind_plain(self) -> None:
        """Gather what the functions that stay plain Python are called with."""
        self._reset = self._plain(self.task.reset)
        self._leave = None if self.task.leave is None else self._plain(self.task.leave)

    def begin(self, ids: NDArray[np.int64], obs: NDArray[Any], infos: NDArray[Any]) -> None:
        """Draw new episodes for some environments.

        Args:
            ids: the environments, ascending.
            obs: takes their first observations, in their rows.
            infos: takes what a reset tells, in their rows.
        """
        if self._leave is not None:
            for i in ids[self._begun[ids]].tolist():
                self._leave(i)
        self.clear(ids)
        for name, field in self.model_fields.items():
            field[ids] = self._nominal[name]
        if self._draw is not None:
            self._draw(ids)
        else:
            for i in ids.tolist():
                self._reset(i)
        if self.task.recompute_constants:
            self.sims.recompute_constants(ids)
        self._begun[ids] = True
        self.started(ids, obs, infos)

    def _plain(self, function: Callable[..., Any]) -> Callable[[int], None]:
        """Return a function that is plain Python, to be called for environment i."""
        arrays: dict[str, Any] = {}
        same: dict[str, Any] = {}
        for name in arguments(function):
            if name == "rng":
                arrays[name] = self.rngs
            elif name == "elapsed":
                arrays[name] = self.elapsed
            elif name == "params":
                same[name] = row(self._params, 0)
            elif name in self.columns:
                arrays[name] = with_attributes(self.columns[name])
            elif name in self.model_fields:
                arrays[name] = self.model_fields[name]
            elif name != "fields":
                arrays[name] = self.sims.field(name)
        fields = self.model_fields if "fields" in arguments(function) else None

        def call(i: int) -> None:
            values = {name: array[i] for name, array in arrays.items()}
            if fields is not None:
                values["fields"] = {name: array[i] for name, array in fields.items()}
            run(self.task, function, values | same)

        return call

    def started(self, ids: NDArray[np.int64], obs: NDArray[Any], infos: NDArray[Any]) -> None:
        """Observe episodes whose first states have been written; see `begin`."""
        if self.task.reads:
            self.sims.forward(ids)
        self.observe(ids, obs, infos)

    def observe(self, ids: NDArray[np.int64], obs: NDArray[Any], infos: NDArray[Any]) -> None:
        """Write what some environments tell and observe in their present states.

        Args:
            ids: the environments, ascending.
            obs: takes their observations, in their rows.
            infos: takes what `describe` tells, in their rows.
        """
        self._tell(ids, infos, obs)

    def step(self, actions: NDArray[Any], ids: NDArray[np.int64] | None = None) -> Step:
        """Step environments by one control step.

        Args:
            actions: (n, actions) contiguous float32 or float64.
            ids: the environments to step, ascending; None for all.

        Returns:
            The step, in arrays of its own. Rows of environments that were not stepped are zero.

        Raises:
            ActionError: an action is not finite; nothing has moved.
            PhysicsError: MuJoCo raised in some environments.
        """
        step = self._new_step(np.empty if ids is None else np.zeros)
        rows = self.all if ids is None else ids
        if self._control(rows, actions, step.infos) < 0:
            check_finite(actions)
        self.sims.step(self.task.substeps, ids)
        step.over = self._finish_step(rows, actions, step)
        return step

    def _finish_step(self, rows: NDArray[np.int64], actions: NDArray[Any], step: Step) -> int:
        return int(
            self._finish(
                rows,
                actions,
                step.infos,
                step.obs,
                step.rewards,
                step.terminated,
                step.truncated,
                self._limit,
            )
        )

    def close(self) -> None:
        """End the threads of the loops; those of the physics go with the object."""
        if self._pool is not None:
            self._pool.shutdown()


def _bytes(column: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of a column as (n, bytes)."""
    return column.view(np.uint8).reshape(len(column), -1)
