"""The benchmarks: which contestants run when, and what a row of each record holds."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray

from mujoco_vecenv.archive import digest
from mujoco_vecenv.bench.record import Run
from mujoco_vecenv.bench.windows import (
    MODES,
    carried_window,
    env_window,
    mode_window,
    random_actions,
)
from mujoco_vecenv.engine.budget import usable_cpus
from mujoco_vecenv.microduck import kernels
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.vector.vec_env import VecEnv


def sweep(
    run: Run,
    config: MicroduckConfig,
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
    reference = mode_window(mode, n[0], 1, config)
    reference()  # not counted: it compiles and warms up
    references.append(run.timed(reference, ref_seconds))
    for size, count in pairs:
        window = mode_window(mode, size, count, config, allow_overcommit)
        window()
        row: dict[str, Any] = {"n": size, "threads": count, "windows": {mode: []}}
        run.rows.append(row)
        row["windows"][mode].append(run.timed(window, seconds))
        references.append(run.timed(reference, ref_seconds))


def layers(
    run: Run,
    config: MicroduckConfig,
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
                mode: mode_window(mode, size, count, config, allow_overcommit) for mode in MODES
            }
            run.take_turns({"n": size, "threads": count}, contestants, rounds, seconds)


def sustained(
    run: Run,
    config: MicroduckConfig,
    *,
    threads: int,
    n: int,
    windows: int,
    seconds: float,
    allow_overcommit: bool,
) -> None:
    """Time the whole environment window after window, without a pause."""
    run.progress.expect(windows)
    window = mode_window("env", n, threads, config, allow_overcommit)
    window()
    row: dict[str, Any] = {"n": n, "threads": threads, "windows": {"env": []}}
    run.rows.append(row)
    for _ in range(windows):
        row["windows"]["env"].append(run.timed(window, seconds))


def compare(
    run: Run, config: MicroduckConfig, *, workers: Sequence[int], rounds: int, seconds: float
) -> None:
    """Time the backends process, batch and sync in turns."""
    backends = ("process", "batch", "sync")
    run.progress.expect(len(workers) * len(backends) * (rounds + 1))
    for n in workers:
        with ExitStack() as stack:
            contestants = {}
            for backend in backends:
                envs = stack.enter_context(VecEnv(n, backend=backend, **vars(config)))
                actions = random_actions(config.episode_steps, n)
                contestants[backend] = env_window(envs, actions)
            run.take_turns({"n": n, "threads": min(n, usable_cpus())}, contestants, rounds, seconds)


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
    run: Run, config: MicroduckConfig, *, threads: Sequence[int], n: Sequence[int], steps: int
) -> None:
    """Measure where one step of the batch backend goes."""
    run.progress.expect(len(n) * len(threads))
    for size in n:
        for count in threads:
            parts = profile_step(size, count, config, steps)
            run.rows.append({"n": size, "threads": count, "us": parts})
            run.progress.advance()


def scale(run: Run, config: MicroduckConfig, *, n: Sequence[int]) -> None:
    """Measure construction, memory, rate and overhead over numbers of environments.

    Each number has a process of its own, so that memory is that of its environments alone.
    """
    run.progress.expect(len(n))
    for size in n:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            run.rows.append(pool.submit(measure_scale, size, config).result())
        run.progress.advance()


def measure_scale(n: int, config: MicroduckConfig) -> dict[str, Any]:
    """Return a row of `scale`: seconds, MiB, env-steps/s and µs."""
    VecEnv(1, **vars(config)).close()  # compiles, which is no part of constructing n
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    envs = VecEnv(n, **vars(config))
    constructed = time.perf_counter() - start
    steps = min(config.episode_steps, max(10, 40_000 // n))
    actions = random_actions(steps, n)
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
        "us": profile_step(n, 1, config, min(steps, max(5, 8_000 // n))),
    }


def profile_step(n: int, threads: int, config: MicroduckConfig, steps: int) -> dict[str, float]:
    """Return where one step goes, in µs.

    Two passes over the same steps: one with a clock around the physics alone, one with clocks
    around the kernels as well, which cost a little themselves.

    Returns:
        step: all of it; physics: in mujoco.batch; kernels: in the compiled task; python: the rest,
        by difference; draws: beginning new episodes, averaged over an episode's steps; warm: a
        step with the physics left out, which finds everything in the caches that physics
        otherwise empties. Medians over steps, but for draws.
    """
    envs = VecEnv(n, threads=threads, **vars(config))
    batch: Any = envs._envs
    actions = random_actions(steps, n)
    physics = [(batch._sims, "step")]
    compiled = [(kernels, name) for name in ("begin_step", "finish_step", "observe")]
    start = time.perf_counter()
    batch._begin(np.arange(n))
    draws = time.perf_counter() - start
    envs.reset(seed=0)
    parts = _time_inside(envs, actions, {"physics": physics})
    beyond = parts["step"] - parts["physics"]
    envs.reset(seed=0)
    parts["kernels"] = _time_inside(envs, actions, {"kernels": compiled})["kernels"]
    parts["python"] = beyond - parts["kernels"]
    parts["draws"] = 1e6 * draws / config.episode_steps
    parts["step"] += parts["draws"]
    batch._sims.step = lambda substeps: None
    parts["warm"] = _time_inside(envs, actions, {})["step"]
    return parts


def _time_inside(
    envs: VecEnv, actions: NDArray[np.float64], parts: dict[str, list[tuple[Any, str]]]
) -> dict[str, float]:
    """Return the median µs of a step in which no episode ends, and of parts of it.

    Args:
        envs: the environments.
        actions: (steps, n, 14).
        parts: part to the functions, as (owner, name), whose time it is.
    """
    clock = time.perf_counter
    spent = dict.fromkeys(parts, 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            start = clock()
            result = function(*arguments)
            spent[part] += clock() - start
            return result

        return wrapper

    samples: dict[str, list[float]] = {"step": [], **{part: [] for part in parts}}
    with ExitStack() as stack:
        for part, functions in parts.items():
            for owner, name in functions:
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, timed(part, original))
        for action in actions:
            spent.update(dict.fromkeys(parts, 0.0))
            start = clock()
            _, _, done, _ = envs.step(action)
            step = clock() - start
            if not done.any():
                samples["step"].append(step)
                for part, seconds in spent.items():
                    samples[part].append(seconds)
    return {part: 1e6 * statistics.median(values) for part, values in samples.items()}
