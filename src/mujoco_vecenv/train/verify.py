"""The proof that what the environments run on does not change the policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mujoco_vecenv.archive import Arrays
from mujoco_vecenv.contract import same_bits
from mujoco_vecenv.train.folder import Line, RunConfig
from mujoco_vecenv.train.run import Run

UPDATES: Final = 6
"""Updates that each contestant trains."""
CONTESTANTS: Final[dict[str, dict[str, Any]]] = {
    "sync": {"backend": "sync"},
    "process": {"backend": "process"},
    "batch, 1 thread": {"backend": "batch", "threads": 1},
    "batch, 2 threads": {"backend": "batch", "threads": 2},
}
"""Name to what its environments run on."""


@dataclass(frozen=True)
class Trained:
    """What a training left behind.

    Attributes:
        arrays: weights, normaliser, optimisers, generators and the environments' states.
        log: its lines, without what depends on the clock.
    """

    arrays: Arrays
    log: list[Line]

    def differences(self, other: "Trained") -> list[str]:
        """Return the names of the arrays that differ, and `log` if the logs do."""
        names = self.arrays.keys() | other.arrays.keys()
        found = sorted(n for n in names if not same_bits(self.arrays.get(n), other.arrays.get(n)))
        return found + ["log"] * (self.log != other.log)


def train(
    config: RunConfig,
    updates: int = UPDATES,
    advance: Callable[[int], object] = lambda count: None,
    **placement: Any,
) -> Trained:
    """Train for some updates without a folder.

    Args:
        config: what to train.
        updates: how many.
        advance: told of each update.
        **placement: `backend` and `threads`, see Run.
    """
    log = []
    with Run(config, **placement) as run:
        for _ in range(updates):
            log.append(timeless(run.update()))
            advance(1)
        return Trained(run.ppo.state_arrays(), log)


def timeless(line: Line) -> Line:
    """Return a line of the log without what depends on the clock."""
    return {name: value for name, value in line.items() if name != "time"}
