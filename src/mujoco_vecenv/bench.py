"""Speed, measured side by side: contestants take turns, window by window, in the same minutes.

A window is one whole episode of every environment from its first state on, so that each contestant
steps the same mix of standing, falling and lying robots under the same random targets. What is
quoted is the median over rounds of the ratio within a round: a machine that changes its speed
changes it for both.
"""

import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from mujoco_vecenv.engine.lean import lean_model
from mujoco_vecenv.microduck.config import SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.microduck.robot import Robot, scene_path
from mujoco_vecenv.vector.vec_env import VecEnv

Window = Callable[[], None]
"""Steps every environment of a contestant through one episode."""


@dataclass
class Measurement:
    """The rates of contestants that took turns.

    Attributes:
        env_steps: environment steps in a window of each contestant.
        seconds: contestant to the seconds of each of its windows, in rounds.
    """

    env_steps: dict[str, int]
    seconds: dict[str, list[float]]

    def rate(self, name: str) -> float:
        """Return a contestant's median rate, environment steps per second."""
        return statistics.median(self.env_steps[name] / s for s in self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """Return the median over rounds of how many times faster `name` was than `other`."""
        work = self.env_steps[name] / self.env_steps[other]
        pairs = zip(self.seconds[name], self.seconds[other], strict=False)
        return statistics.median(work * theirs / ours for ours, theirs in pairs)


def take_turns(windows: dict[str, tuple[Window, int]], rounds: int) -> Iterator[Measurement]:
    """Run one window of each contestant per round, after a round that is not counted.

    Args:
        windows: contestant to its window and the environment steps in it.
        rounds: counted rounds.

    Yields:
        After each window, the measurement so far: the same object, growing.
    """
    measurement = Measurement(
        {name: steps for name, (_, steps) in windows.items()}, {name: [] for name in windows}
    )
    for round_ in range(-1, rounds):
        # Every other round in reverse: no contestant always runs on the heels of the same one.
        for name in list(windows)[:: 1 if round_ % 2 else -1]:
            start = time.perf_counter()
            windows[name][0]()
            if round_ >= 0:
                measurement.seconds[name].append(time.perf_counter() - start)
            yield measurement


def layer_windows(n: int, threads: int, config: MicroduckConfig) -> dict[str, tuple[Window, int]]:
    """Return the windows of bare physics, batched physics and the whole environment.

    bare: ten mj_step on the full model for each environment, in `threads` Python threads.
    engine: mujoco.batch on the lean model with controls written each step, no task.
    env: the batch backend.
    """
    actions = random_actions(config.episode_steps, n)
    steps = config.episode_steps * n
    path = scene_path(config)
    full = Robot(mujoco.MjModel.from_xml_path(str(path)), path)
    targets = np.clip(full.default + config.action_scale * actions, full.lo, full.hi)
    return {
        "bare": (_bare(full, targets, threads), steps),
        "engine": (_engine(full, targets, threads), steps),
        "env": (_env(VecEnv(n, threads=threads, **vars(config)), actions), steps),
    }


def backend_windows(
    n: int, config: MicroduckConfig, backends: tuple[str, ...], stack: ExitStack
) -> dict[str, tuple[Window, int]]:
    """Return the windows of `n` environments on each of the backends, closed by the stack."""
    actions = random_actions(config.episode_steps, n)
    windows = {}
    for backend in backends:
        envs = stack.enter_context(VecEnv(n, backend=backend, **vars(config)))
        windows[backend] = (_env(envs, actions), config.episode_steps * n)
    return windows


def random_actions(steps: int, n: int) -> NDArray[np.float64]:
    """Return (steps, n, 14) uniform random actions in [-1, 1], the same at every call."""
    return np.random.default_rng(0).uniform(-1, 1, (steps, n, ACTIONS))


def _env(envs: VecEnv, actions: NDArray[np.float64]) -> Window:
    def window() -> None:
        for action in actions:
            envs.step(action)

    return window


def _engine(robot: Robot, targets: NDArray[np.float64], threads: int) -> Window:
    batch = Batch(lean_model(robot.model, robot.path), nsim=targets.shape[1], nthread=threads)
    ctrl = batch.bind("ctrl")

    def window() -> None:
        batch.reset(keyframe=robot.stand)
        for target in targets:
            ctrl[:] = target
            batch.step(nstep=SUBSTEPS)

    return window


def _bare(robot: Robot, targets: NDArray[np.float64], threads: int) -> Window:
    model = robot.model
    datas = [mujoco.MjData(model) for _ in range(targets.shape[1])]

    def loop(mine: range) -> None:
        for i in mine:
            mujoco.mj_resetDataKeyframe(model, datas[i], robot.stand)
        for target in targets:
            for i in mine:
                datas[i].ctrl[:] = target[i]
                mujoco.mj_step(model, datas[i], SUBSTEPS)

    def window() -> None:
        shares = [range(k, len(datas), threads) for k in range(threads)]
        workers = [threading.Thread(target=loop, args=(share,)) for share in shares[1:]]
        for worker in workers:
            worker.start()
        loop(shares[0])
        for worker in workers:
            worker.join()

    return window


def scale(n: int) -> dict[str, float]:
    """Construct n environments, step them 25 times from STAND, and report time, memory and rate."""
    start = time.perf_counter()
    with VecEnv(n, reward="v2") as envs:
        constructed = time.perf_counter() - start
        actions = random_actions(25, n)
        start = time.perf_counter()
        _env(envs, actions)()
        seconds = time.perf_counter() - start
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "construction, s": constructed,
        "peak memory of the process, MiB": kib / 1024,
        "env-steps/s": n * len(actions) / seconds,
    }
