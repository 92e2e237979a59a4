"""What is timed of the Microduck: windows in which a contestant steps all through one episode.

Every window begins with all robots standing and ends when their episodes do. Initial noise, pushes
and random actions are the same kind for all, with and without a task, so that each contestant steps
the same mix of standing, falling and lying robots.
"""

import threading
from collections.abc import Callable
from typing import Final

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from mujoco_vecenv.engine.lean import lean_model
from mujoco_vecenv.microduck.config import SUBSTEPS, MicroduckConfig
from mujoco_vecenv.microduck.draws import Episode, draw_episode
from mujoco_vecenv.microduck.layout import ACTIONS
from mujoco_vecenv.microduck.randomization import SERVO_FITS, Factors
from mujoco_vecenv.microduck.robot import Robot, scene_path
from mujoco_vecenv.vector.vec_env import VecEnv

Window = Callable[[], int]
"""Steps a contestant's environments through one episode; returns the environment steps done."""

MODES: Final = ("bare", "engine", "env")


def random_actions(steps: int, n: int) -> NDArray[np.float64]:
    """Return (steps, n, 14) uniform random actions in [-1, 1], the same at every call."""
    return np.random.default_rng(0).uniform(-1, 1, (steps, n, ACTIONS))


def mode_window(
    mode: str, n: int, threads: int, config: MicroduckConfig, allow_overcommit: bool = False
) -> Window:
    """Return the window of one of the three layers.

    Args:
        mode: "bare" is ten mj_step on the full model for each environment in `threads` Python
            threads; "engine" is mujoco.batch on the lean model with controls written each step,
            and no task; "env" is the batch backend.
        n: environments.
        threads: threads.
        config: the environments' configuration.
        allow_overcommit: accept more threads than the machine has CPUs.
    """
    actions = random_actions(config.episode_steps, n)
    if mode == "env":
        envs = VecEnv(n, threads=threads, allow_overcommit=allow_overcommit, **vars(config))
        return env_window(envs, actions)
    path = scene_path(config)
    robot = Robot(mujoco.MjModel.from_xml_path(str(path)), path)
    targets = np.clip(robot.default + config.action_scale * actions, robot.lo, robot.hi)
    episodes = [draw_episode(np.random.default_rng(i), config, robot) for i in range(n)]
    return (_bare if mode == "bare" else _engine)(robot, targets, episodes, threads)


def env_window(envs: VecEnv, actions: NDArray[np.float64]) -> Window:
    """Return the window of a VecEnv, whose episodes must be as long as there are actions."""

    def window() -> int:
        for action in actions:
            envs.step(action)
        return len(actions) * envs.n

    return window


def carried_window(n: int, threads: int, config: MicroduckConfig, carried: bool) -> Window:
    """Return a window of recorded episodes that carry their own physics, or share the model's.

    The physics carried is the nominal one, so that both step the same states: what differs is the
    cost of carrying it, not of stepping a heavier or stiffer robot.
    """
    envs = VecEnv(n, threads=threads, **vars(config))
    actions = random_actions(config.episode_steps, n)
    episodes = envs.record()
    if carried:
        nominal = Factors(np.array(SERVO_FITS["chosen_actuator"]), 1.0, 1.0)
        for episode in episodes:
            episode.factors = nominal
    step = env_window(envs, actions)

    def window() -> int:
        envs.reset(episodes=episodes)
        return step()

    return window


def in_threads(loop: Callable[[range], None], n: int, threads: int) -> None:
    """Run a loop over n simulations in Python threads, each over its share of them."""
    shares = [range(k, n, threads) for k in range(threads)]
    workers = [threading.Thread(target=loop, args=(share,)) for share in shares[1:]]
    for worker in workers:
        worker.start()
    loop(shares[0])
    for worker in workers:
        worker.join()


def _pushes(episodes: list[Episode]) -> dict[int, list[tuple[int, NDArray[np.float64]]]]:
    """Return step to the environments pushed before it, and what their velocities gain."""
    pushes: dict[int, list[tuple[int, NDArray[np.float64]]]] = {}
    for i, episode in enumerate(episodes):
        for step, velocity in zip(episode.push_steps, episode.push_velocity, strict=True):
            pushes.setdefault(int(step), []).append((i, velocity))
    return pushes


def _engine(
    robot: Robot, targets: NDArray[np.float64], episodes: list[Episode], threads: int
) -> Window:
    steps, n, _ = targets.shape
    model = lean_model(robot.model, robot.path, keep_contacts=True)
    batch = Batch(model, nsim=n, nthread=min(n, threads))
    ctrl, qpos, qvel = batch.bind("ctrl"), batch.bind("qpos"), batch.bind("qvel")
    angles = np.stack([episode.angles for episode in episodes])
    velocities = np.stack([episode.velocities for episode in episodes])
    pushes = _pushes(episodes)

    def window() -> int:
        batch.reset(keyframe=robot.stand)
        qpos[:, robot.qpos] = angles
        qvel[:, robot.qvel] = velocities
        for k, target in enumerate(targets):
            ctrl[:] = target
            for i, velocity in pushes.get(k, ()):
                qvel[i, :2] += velocity
            batch.step(nstep=SUBSTEPS)
        return int(steps * n)

    return window


def _bare(
    robot: Robot, targets: NDArray[np.float64], episodes: list[Episode], threads: int
) -> Window:
    model = robot.model
    steps, n, _ = targets.shape
    datas = [mujoco.MjData(model) for _ in range(n)]
    pushes = _pushes(episodes)

    def loop(mine: range) -> None:
        for i in mine:
            mujoco.mj_resetDataKeyframe(model, datas[i], robot.stand)
            datas[i].qpos[robot.qpos] = episodes[i].angles
            datas[i].qvel[robot.qvel] = episodes[i].velocities
        for k, target in enumerate(targets):
            for i, velocity in pushes.get(k, ()):
                if i in mine:
                    datas[i].qvel[:2] += velocity
            for i in mine:
                datas[i].ctrl[:] = target[i]
                mujoco.mj_step(model, datas[i], SUBSTEPS)

    def window() -> int:
        in_threads(loop, n, threads)
        return int(steps * n)

    return window
