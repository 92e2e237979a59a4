"""The benchmarks: which contestants run when, and what a row of each record holds."""

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psutil

from mujoco_vecenv.archive import digest
from mujoco_vecenv.bench import task_windows
from mujoco_vecenv.bench.profile import profile_step
from mujoco_vecenv.bench.record import Run
from mujoco_vecenv.bench.subjects import (
    Subject,
    episodes_window,
    make_envs,
    mode_window,
    random_actions,
)
from mujoco_vecenv.bench.windows import MODES, Window, carried_window
from mujoco_vecenv.engine.budget import usable_cpus
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.vector.vec_env import VecEnv


def sweep(
    run: Run,
    subject: Subject,
    *,
    threads: Sequence[int],
    n: Sequence[int],
    mode: str,
    seconds: float,
    ref_seconds: float,
    allow_overcommit: bool,
) -> None:
    """Time one mode over numbers of environments and threads, a reference between all rows.

    The reference is the same mode on one thread with the first number of environments.
    """
    references: list[dict[str, float]] = []
    run.record["reference"] = references
    pairs = [(size, count) for size in n for count in threads]
    run.progress.expect(2 * len(pairs) + 1)
    reference = mode_window(mode, n[0], 1, subject)
    reference()  # not counted: it compiles and warms up
    references.append(run.timed(reference, ref_seconds))
    for size, count in pairs:
        window = mode_window(mode, size, count, subject, allow_overcommit)
        window()
        row: dict[str, Any] = {"n": size, "threads": count, "windows": {mode: []}}
        run.rows.append(row)
        row["windows"][mode].append(run.timed(window, seconds))
        references.append(run.timed(reference, ref_seconds))


def layers(
    run: Run,
    subject: Subject,
    *,
    threads: Sequence[int],
    n: Sequence[int],
    rounds: int,
    seconds: float,
    allow_overcommit: bool,
) -> None:
    """Time bare physics, batched physics and the whole environment in turns."""
    run.progress.expect(len(n) * len(threads) * len(MODES) * (rounds + 1))
    for size in n:
        for count in threads:
            contestants = {
                mode: mode_window(mode, size, count, subject, allow_overcommit) for mode in MODES
            }
            run.take_turns({"n": size, "threads": count}, contestants, rounds, seconds)


def sustained(
    run: Run,
    subject: Subject,
    *,
    threads: int,
    n: int,
    windows: int,
    seconds: float,
    allow_overcommit: bool,
) -> None:
    """Time the whole environment window after window, without a pause."""
    run.progress.expect(windows)
    window = mode_window("env", n, threads, subject, allow_overcommit)
    window()
    row: dict[str, Any] = {"n": n, "threads": threads, "windows": {"env": []}}
    run.rows.append(row)
    for _ in range(windows):
        row["windows"]["env"].append(run.timed(window, seconds))


def compare(
    run: Run, subject: Subject, *, workers: Sequence[int], rounds: int, seconds: float
) -> None:
    """Time the backends process, batch and sync in turns."""
    backends = ("process", "batch", "sync")
    run.progress.expect(len(workers) * len(backends) * (rounds + 1))
    for n in workers:
        with ExitStack() as stack:
            contestants: dict[str, Window] = {}
            for backend in backends:
                envs = make_envs(subject, n, backend=backend)
                stack.callback(envs.close)
                contestants[backend] = episodes_window(envs)
            run.take_turns({"n": n, "threads": min(n, usable_cpus())}, contestants, rounds, seconds)


def suite(
    run: Run,
    tasks: Sequence[str],
    *,
    n: int,
    threads: int,
    rounds: int,
    seconds: float,
    async_workers: int | None,
) -> None:
    """Time each task beside Gymnasium's vector environments, EnvPool and physics alone, in turns.

    A row's contestants are ours, sync, async, batch, engine, and envpool where EnvPool has it.
    """
    from mujoco_vecenv.bench import rivals  # needs Gymnasium

    workers = async_workers or n
    pool = rivals.describe_envpool(tasks, n, threads)
    in_pool = pool["tasks"] if pool else ()
    run.record["gymnasium"] = version("gymnasium")
    run.record["envpool"] = pool
    run.progress.expect((5 * len(tasks) + len(in_pool)) * (rounds + 1))
    for task in tasks:
        row = {"task": task, "n": n, "threads": threads, "async_workers": workers}
        with ExitStack() as stack:
            # Not kept under a name: the next task's processes are forked when these are gone.
            run.take_turns(
                row,
                rivals.contestants(task, n, threads, workers, task in in_pool, stack),
                rounds,
                seconds,
            )


def train(run: Run, config: MicroduckConfig, *, rounds: int) -> None:
    """Train the default policy on each backend in turns, evaluations and checkpoints included.

    One more contestant has PyTorch use its own threads, one a core, in the update.
    """
    from mujoco_vecenv.train import run as training
    from mujoco_vecenv.train.config import PPOConfig
    from mujoco_vecenv.train.folder import RunConfig

    what = RunConfig(PPOConfig(), config)
    run.progress.expect(len(_TRAINERS) * (rounds + 1))
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in _TRAINERS}
    row: dict[str, Any] = {"n": what.ppo.n, "threads": usable_cpus()}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        trainers = {
            name: stack.enter_context(training.Run(what, folder / name, backend))
            for name, (backend, _) in _TRAINERS.items()
        }

        def window(name: str) -> int:
            with training.torch_threads(_TRAINERS[name][1] or usable_cpus()):
                lines = [trainers[name].update() for _ in range(training.EVERY)]
            times = [line["time"] for line in lines]
            parts[name].append({p: sum(t.get(p, 0.0) for t in times) for p in training.PARTS})
            return len(lines) * what.ppo.batch

        run.take_turns(row, {name: partial(window, name) for name in _TRAINERS}, rounds, 0.0)
        # Of the counted windows only; the first was the one that warmed up.
        row["parts"] = {name: windows[1:] for name, windows in parts.items()}
        row["digests"] = {name: digest(t.ppo.state_arrays()) for name, t in trainers.items()}


_TRAINERS: Final = {
    "batch": ("batch", 1),
    "process": ("process", 1),
    "sync": ("sync", 1),
    "batch, torch's threads": ("batch", None),
}
"""Contestant to its backend and PyTorch's number of threads, None for one a core."""


def randomization(
    run: Run, config: MicroduckConfig, *, threads: int, n: int, rounds: int, seconds: float
) -> None:
    """Time what sensor noise and physics of one's own cost an environment."""
    noisy = MicroduckConfig(**{**vars(config), "sensor_noise": True})
    contestants = {
        "plain": mode_window("env", n, threads, config),
        "noise": mode_window("env", n, threads, noisy),
        "shared physics": carried_window(n, threads, config, carried=False),
        "own physics": carried_window(n, threads, config, carried=True),
    }
    run.progress.expect(len(contestants) * (rounds + 1))
    run.take_turns({"n": n, "threads": threads}, contestants, rounds, seconds)


def profile(
    run: Run, subject: Subject, *, threads: Sequence[int], n: Sequence[int], steps: int
) -> None:
    """Measure where one step of the batch backend goes."""
    run.progress.expect(len(n) * len(threads))
    for size in n:
        for count in threads:
            parts = profile_step(size, count, subject, steps)
            run.rows.append({"n": size, "threads": count, "us": parts})
            run.progress.advance()


def scale(run: Run, subject: Subject, *, n: Sequence[int]) -> None:
    """Measure construction, memory, rate and overhead over numbers of environments.

    Each number has a process of its own, so that memory is that of its environments alone.
    """
    run.progress.expect(len(n))
    for size in n:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            run.rows.append(pool.submit(measure_scale, size, subject).result())
        run.progress.advance()


def measure_scale(n: int, subject: Subject) -> dict[str, Any]:
    """Return a row of `scale`: seconds, MiB, env-steps/s and µs."""
    make_envs(subject, 1).close()  # compiles, which is no part of constructing n
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    envs = make_envs(subject, n)
    constructed = time.perf_counter() - start
    longest = envs.config.episode_steps if isinstance(envs, VecEnv) else task_windows.STEPS
    steps = min(longest, max(10, 40_000 // n))
    actions = random_actions(envs, steps)
    envs.step(actions[0])
    start = time.perf_counter()
    for action in actions:
        envs.step(action)
    seconds = time.perf_counter() - start
    resident = psutil.Process().memory_info().rss
    return {
        "n": n,
        "threads": envs.threads,
        "construction_s": constructed,
        "resident_mib": resident / 2**20,
        "environments_mib": (resident - before) / 2**20,
        "env_steps_per_s": n * steps / seconds,
        "us": profile_step(n, 1, subject, min(steps, max(5, 8_000 // n))),
    }
