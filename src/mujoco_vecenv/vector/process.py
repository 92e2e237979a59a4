"""n environments in n worker processes behind pipes: what most people use today."""

import multiprocessing
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.infos import Info
from mujoco_vecenv.microduck.actions import check_finite
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode
from mujoco_vecenv.microduck.snapshots import EnvState, physics_of
from mujoco_vecenv.vector.sync import collect, make_env, step_and_reset

_GRACE: Final = 2.0  # seconds a worker has to end by itself


class WorkerError(RuntimeError):
    """A worker process failed or died; the others have been ended too."""


class Workers:
    """n processes that each serve one environment.

    Args:
        serve: called in each worker with its arguments; returns what it answers requests with.
            A function of a module, since workers import it.
        arguments: a worker's arguments, for each of them.
        first: a request that tells whether a worker could start at all.

    Raises:
        WorkerError: a worker failed or died. The message names it and the cause.
    """

    def __init__(
        self,
        serve: Callable[..., Mapping[str, Callable[[Any], Any]]],
        arguments: Sequence[tuple[Any, ...]],
        first: tuple[str, Any],
    ):
        # Not fork: a process with threads must not be copied in mid-flight.
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        if "forkserver" in methods:
            context.set_forkserver_preload([__name__])
        self._pipes: list[Connection] = []
        self._workers: list[BaseProcess] = []
        # Also ends the workers when this object is dropped without close().
        self.close = weakref.finalize(self, _end, self._pipes, self._workers)
        try:
            for i, values in enumerate(arguments):
                here, there = context.Pipe()
                worker = context.Process(
                    target=_work,
                    args=(there, serve, values),
                    name=f"mujoco-vecenv worker {i}",
                    daemon=True,
                )
                self._pipes.append(here)
                self._workers.append(worker)
                worker.start()
                there.close()
                if i == 0:  # a script that workers cannot import fails here once, not n times
                    self.ask_some({0: first})
        except BaseException:
            self.close()
            raise

    def ask(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Send every worker a request with its argument, then gather the answers."""
        return list(self.ask_some({i: (name, a) for i, a in enumerate(arguments)}).values())

    def ask_some(self, requests: Mapping[int, tuple[str, Any]]) -> dict[int, Any]:
        """Send some workers their requests, then gather the answers."""
        i = 0
        try:
            for i, request in requests.items():
                self._pipes[i].send(request)
            answers = {}
            for i in requests:
                ok, answer = self._pipes[i].recv()
                if not ok:
                    raise WorkerError(f"worker {i} (environment {i}) failed:\n{answer}")
                answers[i] = answer
            return answers
        except (EOFError, OSError) as error:
            last_words = _last_words(self._pipes[i])
            cause = f"failed:\n{last_words}" if last_words else _cause_of_death(self._workers[i])
            self.close()
            raise WorkerError(f"worker {i} (environment {i}) {cause}") from error
        except BaseException:  # answers may be on their way: the pipes are no longer in step
            self.close()
            raise

    def abandon(self) -> None:
        """Leave the workers to the process that this one was forked from."""
        self.close.detach()
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            # Or this process would end them when it ends itself.
            multiprocessing.process._children.discard(worker)  # type: ignore[attr-defined]


class ProcessEnvs:
    """n references in n processes. Parameters and methods as in `BatchEnvs`.

    Raises:
        WorkerError: a worker failed or died. The message names it and the cause.
    """

    def __init__(self, n: int, seed: int, config: MicroduckConfig, with_terms: bool):
        env = make_env(seed, config)  # what no worker could make is refused here, in its own words
        self._nstate = len(physics_of(env.model, env.data))
        self._n = n
        arguments = [(seed + i, config, with_terms) for i in range(n)]
        self._workers = Workers(_serve, arguments, ("reset", seed))
        self.close, self.abandon = self._workers.close, self._workers.abandon
        self.reset(seed)

    def reset(self, seed: int) -> NDArray[np.float32]:
        """Seed every environment anew and begin its first episode; return (n, 48)."""
        seeds = [seed + i for i in range(self._n)]
        self._obs = np.stack(self._workers.ask("reset", seeds))
        return self._obs.copy()

    def observations(self) -> NDArray[np.float32]:
        """Return the (n, 48) observations of the present state."""
        return self._obs.copy()

    def record(self) -> list[Episode]:
        """Return what the running episodes drew."""
        return self._workers.ask("record", [None] * self._n)

    def begin(self, episodes: Mapping[int, Episode]) -> NDArray[np.float32]:
        """End some environments' episodes and begin given ones instead; return (n, 48)."""
        answers = self._workers.ask_some({i: ("begin", e) for i, e in episodes.items()})
        for i, obs in answers.items():
            self._obs[i] = obs
        return self._obs.copy()

    def get_states(self) -> list[EnvState]:
        """Return all that decides how each environment goes on."""
        return self._workers.ask("get_state", [None] * self._n)

    def set_states(self, states: list[EnvState]) -> NDArray[np.float32]:
        """Go on from states; return the (n, 48) observations last returned there."""
        self._obs = np.stack(self._workers.ask("set_state", states))
        return self._obs.copy()

    @property
    def nstate(self) -> int:
        """Length of an environment's state of physics."""
        return self._nstate

    def step(self, actions: NDArray[np.float64]) -> tuple[Any, Any, Any, list[Info]]:
        """Step every environment and begin a new episode where one ends."""
        check_finite(actions)
        obs, rewards, done, infos = collect(self._workers.ask("step", list(actions)))
        self._obs = obs.copy()
        return obs, rewards, done, infos


def _serve(
    seed: int, config: MicroduckConfig, with_terms: bool
) -> Mapping[str, Callable[[Any], Any]]:
    env = make_env(seed, config)
    return {
        "step": lambda action: step_and_reset(env, action, with_terms),
        "reset": lambda seed: env.reset(seed=seed),
        "begin": lambda episode: env.reset(episode=episode),
        "record": lambda _: env.record(),
        "get_state": lambda _: env.get_state(),
        "set_state": env.set_state,
    }


def _work(
    pipe: Connection,
    serve: Callable[..., Mapping[str, Callable[[Any], Any]]],
    arguments: tuple[Any, ...],
) -> None:
    """Serve one environment until the pipe closes."""
    for which in (signal.SIGINT, signal.SIGTERM):  # sent to the group, they are the parent's
        signal.signal(which, signal.SIG_IGN)
    try:
        answers = serve(*arguments)
        while True:
            try:
                request, argument = pipe.recv()
            except (EOFError, OSError):  # the parent closed the pipe, or is gone
                return
            pipe.send((True, answers[request](argument)))
    except Exception:
        with suppress(OSError):
            pipe.send((False, traceback.format_exc()))
        sys.exit(1)


def _last_words(pipe: Connection) -> str:
    """Return the error that a worker sent before it ended, or "" if it sent none."""
    with suppress(EOFError, OSError):
        while pipe.poll():
            ok, answer = pipe.recv()
            if not ok:
                return str(answer)
    return ""


def _cause_of_death(worker: BaseProcess) -> str:
    worker.join(_GRACE)
    code = worker.exitcode
    if code is None:
        return "closed its pipe and still runs"
    if code < 0:
        return f"died: killed by {signal.Signals(-code).name}"
    return (
        f"died: exited with code {code}. If this happened while the environments were made: "
        "workers import your script, so it must be a file with its entry guarded by "
        "`if __name__ == '__main__':`"
    )


def _end(pipes: list[Connection], workers: list[BaseProcess]) -> None:
    """Close the pipes, which ends the workers, and reap every one of them."""
    for pipe in pipes:
        pipe.close()
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        if worker.pid is None:  # never started
            continue
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()
        worker.close()
