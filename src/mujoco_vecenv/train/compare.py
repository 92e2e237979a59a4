"""Training runs side by side."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from mujoco_vecenv.train.environments import plain_environments, task_name
from mujoco_vecenv.train.folder import Line, RunConfig, read_config, read_log

LAST: Final = 50
"""A run's figures are means over its last 50 updates."""
FIGURES: Final = ("return", "clip_fraction", "kl", "std", "rate")


@dataclass(frozen=True)
class Finished:
    """A run as its folder tells it.

    Attributes:
        folder: where it lies.
        config: what was trained.
        log: its lines.
    """

    folder: Path
    config: RunConfig
    log: Sequence[Line]

    def figures(self) -> dict[str, float]:
        """Return the means of FIGURES over the last updates; of the rate, the median over all."""
        last = self.log[-LAST:]
        values = {}
        for name in FIGURES:
            column = [line[name] for line in last if name != "rate" and line[name] is not None]
            if column:
                values[name] = mean(column)
        tests = [line["evaluation"]["return"] for line in last if "evaluation" in line]
        if tests:
            values["evaluated"] = mean(tests)
        return values | {"rate": median(line["time"]["rate"] for line in self.log)}


def read_run(folder: Path) -> Finished:
    """Read a run's folder.

    Raises:
        OSError: it is no run's folder.
        ValueError: a file in it is damaged.
    """
    log = read_log(folder)
    if not any(line["return"] is not None for line in log):
        raise ValueError(f"{folder} has no finished episode yet")
    return Finished(folder, read_config(folder), log)


def groups(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """Return runs that differ in nothing but the seed together, named by what sets them apart.

    Raises:
        ValueError: two runs are of the same configuration and seed, and so the same run.
    """
    flat = [_flat(run.config) for run in runs]
    names = dict.fromkeys(name for values in flat for name in values)
    varying = [k for k in names if any(v.get(k) != flat[0].get(k) for v in flat)]
    found: dict[str, list[Finished]] = {}
    for run, values in zip(runs, flat, strict=True):
        name = ", ".join(f"{key} {values[key]}" for key in varying if key in values)
        group = found.setdefault(name or "all", [])
        for other in group:
            if other.config.seed == run.config.seed:
                raise ValueError(
                    f"{other.folder} and {run.folder} are the same run: the same configuration "
                    f"and seed {run.config.seed}"
                )
        group.append(run)
    return found


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return Welch's t and its two-sided p, for two groups of at least two.

    Raises:
        ImportError: SciPy is not installed.
    """
    try:
        from scipy.stats import ttest_ind
    except ImportError as error:
        raise ImportError("Welch's t needs SciPy: pip install 'mujoco-vecenv[train]'") from error
    result = ttest_ind(one, other, equal_var=False)
    return float(result.statistic), float(result.pvalue)


def _flat(config: RunConfig) -> dict[str, Any]:
    environments = plain_environments(config.env)
    own = environments.get("config", environments)
    return {**asdict(config.ppo), "task": task_name(config.env), **own}
