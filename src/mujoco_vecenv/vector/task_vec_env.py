"""`TaskVecEnv`: many environments of any task behind one call, as `VecEnv` is for the Microduck."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mujoco_vecenv.archive import Arrays
from mujoco_vecenv.checks import check_choice, check_integer
from mujoco_vecenv.engine.actions import as_actions, check_finite
from mujoco_vecenv.engine.budget import choose_threads
from mujoco_vecenv.engine.envs import TaskEnvs
from mujoco_vecenv.engine.generators import check_rng, rng_words, set_rng
from mujoco_vecenv.engine.models import model_digest
from mujoco_vecenv.engine.task import Task
from mujoco_vecenv.engine.twin import TaskEnv, told
from mujoco_vecenv.infos import Info, LazyInfos
from mujoco_vecenv.tasks import make_task
from mujoco_vecenv.vector.facade import Facade
from mujoco_vecenv.vector.process import Workers

BACKENDS: Final = ("batch", "process", "sync")
_PHYSICS: Final = mujoco.mjtState.mjSTATE_INTEGRATION
_VERSION: Final = 1

StepResult = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], Sequence[Info]]


class Backend(Protocol):
    """What runs the environments."""

    def reset(self, seed: int) -> NDArray[Any]:
        """Seed environment i with seed + i and begin its first episode; return observations."""

    def step(self, actions: NDArray[Any]) -> StepResult:
        """Step every environment and begin a new episode where one ends."""

    def get_state(self) -> Arrays:
        """Return all that decides how the environments go on, but for the observations."""

    def set_state(self, state: Arrays) -> None:
        """Go on from a state."""

    def close(self) -> object:
        """Release what the garbage collector does not."""


class TaskVecEnv(Facade[Backend]):
    """n environments of a task stepped together, each seeded with `seed + i`.

    They are the same to the last bit on every backend and any number of threads. The constructor
    performs the first reset.

    Args:
        task: a name in `mujoco_vecenv.tasks.TASKS`, the path of a Python file, or a module.
        n: number of environments.
        seed: seed of environment 0, not negative.
        backend: "batch" steps all of them on threads in compiled code; "process" runs the task's
            functions in plain Python, in a worker process for each environment; "sync" runs those
            one after another.
        threads: threads of the batch backend; None for the smaller of n and what the machine and
            MUJOCO_VECENV_MAX_THREADS allow.
        allow_overcommit: accept more threads than that.
        **options: the task's own.

    Attributes:
        task: the task.
        low, high: (actions,) float32 limits that the task announces for actions.

    Raises:
        TypeError, ValueError: a value is of the wrong type or outside its range, or an option is
            unknown. The message names it.
    """

    def __init__(
        self,
        task: str,
        n: int = 4,
        seed: int = 0,
        *,
        backend: str = "batch",
        threads: int | None = None,
        allow_overcommit: bool = False,
        **options: Any,
    ):
        check_choice("backend", backend, BACKENDS)
        self.n = check_integer("n", n, 1)
        seed = check_integer("seed", seed, 0)
        self.backend = backend
        self.threads = choose_threads(self.n, threads, allow_overcommit)
        self.task = make_task(task, **options)
        self._model = self.task.compiled_model
        self.low, self.high = self.task.limits(self._model)
        self._nstate = mujoco.mj_stateSize(self._model, _PHYSICS)
        self._header = {
            "task": self.task.name,
            "options": repr(sorted(options.items())),
            "model": model_digest(self._model),
            "version": _VERSION,
        }
        self._shape = (self.n, len(self.low))
        envs: Backend
        if backend == "batch":
            envs = _Batch(self.task, self.n, self.threads)
        elif backend == "process":
            envs = _Processes(task, options, self.task, self.n)
        else:
            envs = _Loop([TaskEnv(self.task) for _ in range(self.n)])
        self._obs = envs.reset(seed)
        super().__init__(envs)

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Return the present observations, or begin anew from a seed.

        Args:
            seed: seeds environment i with `seed + i` and begins its first episode. None draws
                nothing and changes nothing.

        Returns:
            (n, observations) in the task's dtype.
        """
        envs = self._open()
        if seed is not None:
            seed = check_integer("seed", seed, 0)
            with self._closing_on_failure():
                self._obs = envs.reset(seed)
        return self._obs.copy()

    def step(self, actions: ArrayLike) -> StepResult:
        """Step every environment by one control step.

        Where an episode ends, the next one begins at once: the returned observation is its first.

        Args:
            actions: (n, actions) real numbers. Those that are not float32 are taken as float64.

        Returns:
            observations: (n, observations) in the task's dtype.
            rewards: (n,) float64.
            done: (n,) bool.
            infos: a mapping per environment: the task's own infos, terminated, truncated, and
                where an episode ended terminal_obs, its last observation. A learner must bootstrap
                from the value of that where the end was not a termination.

        Raises:
            RuntimeError: the environments are closed, as they are after a call that failed.
            TypeError, ValueError: the actions are not (n, actions) finite real numbers; nothing
                moved.
        """
        envs = self._open()
        array = as_actions(actions, self._shape)
        with self._closing_on_failure():
            obs, rewards, done, infos = envs.step(array)
            self._obs = obs.copy()
            return obs, rewards, done, infos

    def get_state(self) -> Arrays:
        """Return everything that decides how the environments go on, as plain arrays.

        It is the same on every backend, and any backend goes on from it.
        """
        envs = self._open()
        with self._closing_on_failure():
            state = envs.get_state()
        header = np.frombuffer(json.dumps(self._header).encode(), np.uint8)
        return {"header": header, **state, "obs": self._obs.copy()}

    def set_state(self, state: Mapping[str, Any]) -> NDArray[Any]:
        """Go on from what `get_state` returned.

        Returns:
            The observations last returned there.

        Raises:
            TypeError, ValueError: it is of other environments, or damaged. The message names what
                does not fit, and nothing has changed.
        """
        envs = self._open()
        arrays = self._check_state(state)
        with self._closing_on_failure():
            envs.set_state(arrays)
        self._obs = arrays["obs"].copy()
        return self._obs.copy()

    def _check_state(self, state: Mapping[str, Any]) -> Arrays:
        try:
            header = json.loads(bytes(np.asarray(state["header"], np.uint8)))
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError("state: its header is missing or damaged") from error
        for key, ours in self._header.items():
            theirs = header.get(key) if isinstance(header, dict) else None
            if theirs != ours:
                raise ValueError(f"state: its {key} is {theirs!r}, not {ours!r}")
        arrays: Arrays = {}
        shapes = self._layout()
        for name, (dtype, shape) in shapes.items():
            if name not in state:
                raise ValueError(f"state: {name!r} is missing")
            array = np.asarray(state[name])
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(
                    f"state: {name!r} is {array.dtype} {array.shape}, expected {dtype} {shape}"
                )
            arrays[name] = array
        check_rng(arrays["rng"])
        if (arrays["elapsed"] < 0).any():
            raise ValueError("state: 'elapsed' is negative")
        return arrays

    def _layout(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        n, task = self.n, self.task
        layout = {
            "physics": (np.dtype(np.float64), (n, self._nstate)),
            "elapsed": (np.dtype(np.int64), (n,)),
            "rng": (np.dtype(np.uint64), (n, 6)),
            "obs": (np.dtype(task.observation_dtype), (n, task.observations)),
        }
        fields = {name: np.stack([getattr(self._model, name)] * n) for name in task.model_fields}
        for name, array in _as_bytes(task.new_columns(n) | fields).items():
            layout[name] = (array.dtype, array.shape)
        return layout


class _Batch:
    """The environments on threads."""

    def __init__(self, task: Task, n: int, threads: int):
        self._envs = TaskEnvs(task, n, threads)

    def reset(self, seed: int) -> NDArray[Any]:
        envs, task = self._envs, self._envs.task
        for i in range(envs.n):
            envs.seed(i, seed + i)
        obs: NDArray[Any] = np.empty((envs.n, task.observations), task.observation_dtype)
        envs.begin(envs.all, obs, task.new_infos(envs.n))
        return obs

    def step(self, actions: NDArray[Any]) -> StepResult:
        step = self._envs.step(actions)
        done = step.terminated | step.truncated
        terminal_obs: dict[int, NDArray[Any]] = {}
        records = step.infos
        if step.over:
            ended = np.flatnonzero(done)
            terminal_obs = {int(i): step.obs[i].copy() for i in ended}
            records = step.infos.copy()  # what the reset tells is not for the ended episode
            self._envs.begin(ended, step.obs, step.infos)

        def info(i: int) -> Info:
            ends = {"terminated": bool(step.terminated[i]), "truncated": bool(step.truncated[i])}
            last = {"terminal_obs": terminal_obs[i]} if i in terminal_obs else {}
            return told(self._envs.task, records[i], actions.dtype) | ends | last

        infos = LazyInfos(self._envs.n, info)
        return step.obs, step.rewards, done, infos

    def get_state(self) -> Arrays:
        envs = self._envs
        return {
            "physics": envs.sims.rows.copy(),
            "elapsed": envs.elapsed.copy(),
            "rng": np.stack([rng_words(rng) for rng in envs.rngs]),
            **_as_bytes(envs.columns | envs.model_fields),
        }

    def set_state(self, state: Arrays) -> None:
        envs = self._envs
        envs.sims.rows[:] = state["physics"]
        envs.elapsed[:] = state["elapsed"]
        for rng, words in zip(envs.rngs, state["rng"], strict=True):
            set_rng(rng, words)
        _from_bytes(envs.columns | envs.model_fields, state)
        if envs.task.recompute_constants:
            envs.sims.recompute_constants(envs.all)

    def close(self) -> None:
        self._envs.close()


class _Loop:
    """The environments one after another, in plain Python."""

    def __init__(self, envs: list[TaskEnv]):
        self._envs = envs

    def reset(self, seed: int) -> NDArray[Any]:
        return np.stack([env.reset(seed + i)[0] for i, env in enumerate(self._envs)])

    def step(self, actions: NDArray[Any]) -> StepResult:
        check_finite(actions)
        return _collect([step_and_reset(e, a) for e, a in zip(self._envs, actions, strict=True)])

    def get_state(self) -> Arrays:
        return _stack([get_state(env) for env in self._envs])

    def set_state(self, state: Arrays) -> None:
        for i, env in enumerate(self._envs):
            set_state(env, {name: array[i] for name, array in state.items()})

    def close(self) -> None:
        """Nothing to release."""


class _Processes:
    """The environments in a worker process each, in plain Python."""

    def __init__(self, name: str, options: Mapping[str, Any], task: Task, n: int):
        self._workers = Workers(_serve, [(name, dict(options))] * n, ("reset", 0))
        self.close: Callable[[], object] = self._workers.close
        self.abandon = self._workers.abandon
        self._n = n

    def reset(self, seed: int) -> NDArray[Any]:
        return np.stack(self._workers.ask("reset", [seed + i for i in range(self._n)]))

    def step(self, actions: NDArray[Any]) -> StepResult:
        check_finite(actions)
        return _collect(self._workers.ask("step", list(actions)))

    def get_state(self) -> Arrays:
        return _stack(self._workers.ask("get_state", [None] * self._n))

    def set_state(self, state: Arrays) -> None:
        rows = [{name: a[i] for name, a in state.items()} for i in range(self._n)]
        self._workers.ask("set_state", rows)


def _serve(name: str, options: dict[str, Any]) -> Mapping[str, Callable[[Any], Any]]:
    env = TaskEnv(make_task(name, **options))
    return {
        "reset": lambda seed: env.reset(seed)[0],
        "step": lambda action: step_and_reset(env, action),
        "get_state": lambda _: get_state(env),
        "set_state": lambda state: set_state(env, state),
    }


def step_and_reset(env: TaskEnv, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, Info]:
    """Step an environment; where its episode ends, begin the next and return its observation."""
    obs, reward, terminated, truncated, info = env.step(action)
    info |= {"terminated": terminated, "truncated": truncated}
    if terminated or truncated:
        info["terminal_obs"] = obs
        obs, _ = env.reset()
    return obs, reward, terminated or truncated, info


def get_state(env: TaskEnv) -> Arrays:
    """Return all that decides how one environment goes on."""
    assert env.rng is not None, "the first reset is behind it"
    physics = np.empty(mujoco.mj_stateSize(env.model, _PHYSICS))
    mujoco.mj_getState(env.model, env.data, physics, _PHYSICS)
    columns = {name: array[0] for name, array in _as_bytes(env.columns | env.model_fields).items()}
    return {
        "physics": physics,
        "elapsed": np.array(env.elapsed),
        "rng": rng_words(env.rng),
        **columns,
    }


def set_state(env: TaskEnv, state: Arrays) -> None:
    """Go on from what `get_state` returned."""
    assert env.rng is not None, "the first reset is behind it"
    mujoco.mj_setState(env.model, env.data, state["physics"], _PHYSICS)
    env.elapsed = int(state["elapsed"])
    set_rng(env.rng, state["rng"])
    rows = {name: array[None] for name, array in state.items()}
    _from_bytes(env.columns | env.model_fields, rows)
    env.recompute_constants()


def _as_bytes(columns: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return columns and model fields as arrays of bytes, which hold records and numbers alike."""
    return {
        f"column.{name}": np.ascontiguousarray(column)
        .view(np.uint8)
        .reshape(len(column), -1)
        .copy()
        for name, column in columns.items()
    }


def _from_bytes(columns: Mapping[str, NDArray[Any]], state: Arrays) -> None:
    for name, column in columns.items():
        held = np.ascontiguousarray(state[f"column.{name}"])
        column[:] = held.reshape(-1).view(column.dtype).reshape(column.shape)


def _stack(states: list[Arrays]) -> Arrays:
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


def _collect(results: list[Any]) -> StepResult:
    obs, rewards, done, infos = zip(*results, strict=True)
    return np.stack(obs), np.array(rewards, np.float64), np.array(done, np.bool_), list(infos)
