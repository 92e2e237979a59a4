"""A training run: PPO with a log, checkpoints and evaluations, which can stop after any update."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import torch

from mujoco_vecenv.train import folder as folders
from mujoco_vecenv.train.environments import action_scale, action_size, make_envs
from mujoco_vecenv.train.evaluate import in_short, measure, usual
from mujoco_vecenv.train.folder import Checkpoint, Line, RunConfig
from mujoco_vecenv.train.policy import FILE, Policy
from mujoco_vecenv.train.ppo import PPO, Update

EVERY: Final = 20
"""Updates between evaluations, each followed by a checkpoint."""
EVALUATION_EPISODES: Final = 10
EVALUATION_SEED: Final = 500_000
"""Seed of the first episode evaluated during training; each evaluation goes on to the next ones.

Neither training nor `mjvec eval` uses any of them.
"""
SEED_STRIDE: Final = 1_000_000
"""Environment i of a run of seed s is seeded with (s + 1) * SEED_STRIDE + i."""
SLOW: Final = 0.8
"""A rate below this share of its own recent median is warned of."""
PARTS: Final = ("environments", "acting", "advantages", "learning", "evaluation")
"""Where an update's seconds go, as the log's `time` names them."""

_RECENT_EPISODES: Final = 50
_RECENT_RATES: Final = 20


class Run:
    """A training run that can be stopped after any update, and go on as if it had not been.

    Train within `torch_threads(1)`.

    Args:
        config: what to train.
        folder: where to keep it; None keeps nothing.
        backend: what the environments run on. It does not change the policy.
        threads: threads of the batch backend. They do not change it either.
        checkpoint: to go on from; `config` may differ from its own in what `changed` allows.

    Attributes:
        updates: updates done.
        episodes: episodes that ended.
        slow: whether the last update's rate fell below its own recent level.
        envs: the environments.
        ppo: the algorithm.

    Raises:
        FileExistsError: the folder holds another run.
        ValueError: the checkpoint does not fit.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None = None,
        backend: str = "batch",
        threads: int | None = None,
        checkpoint: Checkpoint | None = None,
    ):
        self.config = config
        self.folder = folder
        self.updates = 0
        self.episodes = 0
        self._returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._rates: deque[float] = deque(maxlen=_RECENT_RATES)
        self.slow = False
        self._threads = threads
        self._saved = -1
        self._stack = ExitStack()
        try:
            seed = (config.seed + 1) * SEED_STRIDE
            self.envs = make_envs(config.env, config.ppo.n, seed, backend, threads)
            self._stack.callback(self.envs.close)
            self.ppo = PPO(
                config.ppo,
                self.envs,
                action_size(self.envs),
                config.seed,
                action_scale(self.envs),
            )
            self._stack.callback(self.ppo.close)
            if checkpoint is not None:
                self._go_on_from(checkpoint)
            if folder is not None:
                self._stack.enter_context(folders.prepared(folder, checkpoint))
                self.checkpoint()
        except BaseException:
            self.close()
            raise

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        arrays = checkpoint.arrays
        self.ppo.set_state(arrays)
        self.updates = int(arrays["updates"])
        self.episodes = int(arrays["episodes"])
        self._returns.extend(arrays["recent_returns"].tolist())

    def update(self) -> Line:
        """Train for one update; log it, and evaluate and write a checkpoint if it is time to.

        Returns:
            The line of the log.
        """
        start = perf_counter()
        update = self.ppo.update()
        rate = self.config.ppo.batch / (perf_counter() - start)
        self.updates += 1
        self.episodes += len(update.returns)
        self._returns.extend(update.returns)
        line = self._line(update, rate)
        self._watch(rate)
        if self.updates % EVERY == 0:
            start = perf_counter()
            line["evaluation"] = self._evaluate()
            line["time"]["evaluation"] = perf_counter() - start
        if self.folder is not None:
            folders.write_line(self.folder, line)
            if self.updates % EVERY == 0:
                self.checkpoint()
        return line

    def _line(self, update: Update, rate: float) -> Line:
        values = {
            "update": self.updates,
            "steps": self.ppo.steps_done,
            "episodes": self.episodes,
            "return": float(np.mean(self._returns)) if self._returns else math.nan,
            "clip_fraction": update.clip_fraction,
            "kl": update.kl,
            "std": update.std,
            "learning_rate": update.learning_rate,
            "policy_loss": update.policy_loss,
            "value_loss": update.value_loss,
            "explained_variance": update.explained_variance,
            "epochs": update.epochs,
        }
        line: Line = {k: v if math.isfinite(v) else None for k, v in values.items()}
        line["time"] = {"rate": rate, **update.seconds}
        return line

    def _watch(self, rate: float) -> None:
        """Notice when the rate falls below its own recent level."""
        full = len(self._rates) == _RECENT_RATES
        self.slow = full and rate < SLOW * median(self._rates)
        self._rates.append(rate)

    def _evaluate(self) -> Line:
        result = measure(
            self.policy().actor(),
            usual(self.config.env),
            [EVALUATION_SEED + EVALUATION_EPISODES * (self.updates // EVERY)],
            EVALUATION_EPISODES,
            self._threads if self.envs.backend == "batch" else None,
        )
        return in_short(result)

    def policy(self) -> Policy:
        """Return the present policy."""
        header = {**self.config.plain(), "steps": self.ppo.steps_done}
        arrays = self.ppo.policy_arrays()
        if (scale := self.ppo.scale) is not None:
            arrays |= {"action.low": scale.low, "action.high": scale.high}
        return Policy(arrays, header)

    def checkpoint(self) -> None:
        """Write checkpoint and policy, unless this update's are written already."""
        assert self.folder is not None, "a run without a folder keeps nothing"
        if self._saved == self.updates:
            return
        arrays = self.ppo.state_arrays() | {
            "updates": np.array(self.updates, np.int64),
            "episodes": np.array(self.episodes, np.int64),
            "recent_returns": np.array(self._returns, np.float64),
        }
        folders.write_checkpoint(self.folder, self.config, arrays)
        self.policy().save(self.folder / FILE)
        self._saved = self.updates

    def close(self) -> None:
        """Release threads and processes. Closing twice is fine."""
        self._stack.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Have PyTorch use this many threads for an operation. One is what `ppo` is made for."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
