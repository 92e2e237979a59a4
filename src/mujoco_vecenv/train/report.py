"""Evaluations and training runs as tables and plots."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from mujoco_vecenv.train.compare import LAST, Finished, welch
from mujoco_vecenv.train.folder import Line

Result = dict[str, Any]
"""What `evaluate` returns."""

_Rows = dict[str, Callable[[Result], str]]
_RETURN: _Rows = {
    "return, mean ± sd over seeds": lambda r: _mean_sd(r["return"]),
    "sd over episodes": lambda r: f"{r['return']['sd_episodes']:.1f}",
}


def evaluation_table(results: Mapping[str, Result]) -> Table:
    """Return the figures of contestants of the Microduck, a column each."""
    table = _table("", *results)
    directions = next(iter(results.values()))["recovery"]["directions"]
    _add_rows(
        table,
        results,
        _RETURN
        | {
            "survival: trunk above 4 cm": lambda r: f"{r['survival']:.1%}",
            "upright: cos of tilt > 0.9": lambda r: f"{r['upright']:.1%}",
            "median trunk height": lambda r: f"{100 * r['height_median']:.1f} cm",
            "pushes judged": lambda r: f"{r['pushes']['judged']}",
            "  recovered within 2 s": lambda r: _share(r["recovery"]["share"]),
            **{f"    {name}": partial(_recovered, name) for name in directions},
            "  time to recover, p50": lambda r: _seconds(r["recovery"]["seconds_p50"]),
            "  time to recover, p90": lambda r: _seconds(r["recovery"]["seconds_p90"]),
            "pushes on a fallen robot": lambda r: f"{r['pushes']['on_fallen']}",
            "pushes cut short by the next": lambda r: f"{r['pushes']['cut_short']}",
        },
    )
    table.add_section()
    for term in next(iter(results.values()))["terms"]:
        table.add_row(f"{term}, per step", *(f"{r['terms'][term]:+.4f}" for r in results.values()))
    return table


def task_table(results: Mapping[str, Result]) -> Table:
    """Return the figures of contestants of another task, a column each."""
    table = _table("", *results)
    rows = {
        "episode length, steps": lambda r: f"{r['length']:.1f}",
        "terminated by the task": lambda r: f"{r['terminated']:.1%}",
        "truncated by a limit of steps": lambda r: f"{r['truncated']:.1%}",
    }
    _add_rows(table, results, _RETURN | rows)
    return table


def shares_table(results: Mapping[str, Result]) -> Table:
    """Return each reward term's share of the contestants' returns."""
    table = _table("term", *(f"{name}\n{part}" for name in results for part in ("mean", "share")))
    for term in next(iter(results.values()))["terms"]:
        cells = []
        for result in results.values():
            total = sum(result["terms"].values())
            cells += [f"{result['terms'][term]:+.4f}", f"{result['terms'][term] / total:+.1%}"]
        table.add_row(term, *cells)
    return table


def gap_table(results: Mapping[str, Mapping[str, Result]]) -> Table:
    """Return policies' figures on each place, and the gap to the first."""
    table = _table("policy", "on", "return", "gap", "upright", "recovered", "height\ncm")
    table.columns[1].justify = "left"
    table.columns[1].overflow = "fold"
    for policy, places in results.items():
        own = next(iter(places.values()))["return"]["mean"]
        for place, result in places.items():
            gap = result["return"]["mean"] - own
            table.add_row(
                escape(policy),
                place,
                _mean_sd(result["return"]),
                f"{gap:+.1f}" if gap else "",
                f"{result['upright']:.1%}",
                _share(result["recovery"]["share"]),
                f"{100 * result['height_median']:.1f}",
            )
        table.add_section()
    return table


def runs_tables(groups: Mapping[str, Sequence[Finished]]) -> list[Table]:
    """Return training runs a row each, and where there are two groups of several, Welch's t."""
    figures = {name: [run.figures() for run in runs] for name, runs in groups.items()}
    names = list(dict.fromkeys(n for runs in figures.values() for run in runs for n in run))
    table = _table("run", "seed", "steps", *names)
    table.title = f"means over the last {LAST} updates; rate: median over all, env-steps/s"
    for name, runs in groups.items():
        for run, values in zip(runs, figures[name], strict=True):
            table.add_row(
                escape(str(run.folder)),
                str(run.config.seed),
                f"{run.log[-1]['steps']:,}",
                *(f"{values[n]:,.4g}" if n in values else "–" for n in names),
            )
        columns = [[run[n] for run in figures[name] if n in run] for n in names]
        if len(runs) > 1:
            table.add_row(f"  {name}: mean ± sd", "", "", *map(_spread, columns), style="bold")
        table.add_section()
    tables = [table]
    if len(groups) == 2 and all(len(runs) > 1 for runs in groups.values()):
        tables.append(_table("", *names))
        (one, ours), (other, theirs) = figures.items()
        tables[-1].title = f"Welch's t-test: {one} against {other}"
        sides = [[[run[n] for run in side if n in run] for side in (ours, theirs)] for n in names]
        tests = [welch(*pair) if min(map(len, pair)) > 1 else None for pair in sides]
        tables[-1].add_row("t", *("–" if test is None else f"{test[0]:.2f}" for test in tests))
        tables[-1].add_row("p", *("–" if test is None else f"{test[1]:.3g}" for test in tests))
    return tables


def evaluation_plot(returns: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Draw the contestants' returns, sorted, to a PNG file."""
    figure, axes = _figure(1)
    for name, values in returns.items():
        axes[0].plot(np.linspace(0, 100, len(values)), np.sort(values), label=_plain(name))
    axes[0].set_xlabel("share of episodes, %")
    axes[0].set_ylabel("return at most")
    axes[0].set_ylim(min(0, axes[0].get_ylim()[0]), None)
    axes[0].grid(alpha=0.3)
    axes[0].legend()
    axes[0].set_title(_plain(title), fontsize="medium")
    figure.savefig(path, dpi=120)


PANELS = {
    "return": "return, last 50 episodes",
    "clip_fraction": "clip fraction",
    "kl": "approximate KL",
    "std": "action noise, σ",
    "rate": "env-steps/s",
}
"""Column of a log to what its panel is called."""


@dataclass(frozen=True)
class Curve:
    """A training run to draw.

    Attributes:
        name: how it is labelled; runs of the same name share a colour.
        log: its lines.
    """

    name: str
    log: Sequence[Line]

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a column of the log, NaN where a line has none."""
        rows = [line["time"] if name == "rate" else line for line in self.log]
        return np.array([row.get(name) for row in rows], np.float64)


def curves_plot(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Draw training runs to a PNG file: a panel for each of PANELS."""
    figure, axes = _figure(len(PANELS))
    names = list(dict.fromkeys(curve.name for curve in curves))
    for (column, label), panel in zip(PANELS.items(), axes, strict=True):
        for k, curve in enumerate(curves):
            first = curve.name not in [c.name for c in curves[:k]]
            steps = curve.column("steps") / 1e6
            colour = f"C{names.index(curve.name) % 10}"
            panel.plot(
                steps,
                curve.column(column),
                color=colour,
                linewidth=0.8,
                label=_plain(curve.name) if first else None,
            )
            if column == "return":
                tests = [line for line in curve.log if "evaluation" in line]
                panel.plot(
                    [line["steps"] / 1e6 for line in tests],
                    [line["evaluation"]["return"] for line in tests],
                    ".",
                    color=colour,
                    markersize=3,
                    label="evaluations, mean actions" if not k else None,
                )
        panel.set_ylabel(label, fontsize="small")
        panel.set_ylim(bottom=min(0, panel.get_ylim()[0]))
        panel.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    axes[0].set_title(_plain(title), fontsize="medium")
    axes[-1].set_xlabel("million environment steps")
    figure.savefig(path, dpi=120)


def recovery_plot(log: Sequence[Line], title: str, path: Path) -> None:
    """Draw the share of pushes recovered, as a policy learns to recover, to a PNG file.

    Args:
        log: lines in their order, each of a stage. Stages that go on side by side alternate.
        title: above it.
        path: where to.
    """
    figure, axes = _figure(1)
    for stage in dict.fromkeys(line["stage"] for line in log):
        places = [place for place, line in enumerate(log, 1) if line["stage"] == stage]
        shares = np.array([log[place - 1]["recovered"] for place in places], np.float64)
        axes[0].plot(places, 100 * shares, ".-", linewidth=0.8, markersize=3, label=stage)
    axes[0].set_xlabel("line of the log")
    axes[0].set_ylabel("pushes recovered, %")
    axes[0].set_ylim(0, 100)
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    axes[0].set_title(_plain(title), fontsize="medium")
    figure.savefig(path, dpi=120)


def _plain(text: str) -> str:
    """Return text that matplotlib draws as it is, dollars included."""
    return text.replace("$", r"\$")


def _figure(panels: int) -> tuple[Any, list[Any]]:
    """Return a figure of panels above one another.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'mujoco-vecenv[plot]'") from error
    figure = Figure(figsize=(9, 5 if panels == 1 else 2.2 * panels), layout="constrained")
    return figure, list(figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0])


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right")
    table.columns[0].justify = "left"
    table.columns[0].overflow = "fold"
    return table


def _add_rows(table: Table, results: Mapping[str, Result], rows: _Rows) -> None:
    for name, show in rows.items():
        table.add_row(name, *(show(result) for result in results.values()))


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):,.4g} ± {stdev(values):.2g}" if len(values) > 1 else "–"


def _mean_sd(value: Mapping[str, Any]) -> str:
    sd = value["sd_seeds"]
    return f"{value['mean']:.1f}" + ("" if sd is None else f" ± {sd:.1f}")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _recovered(direction: str, result: Result) -> str:
    pushes = result["recovery"]["directions"][direction]
    return _share(pushes["recovered"] / pushes["judged"] if pushes["judged"] else None)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
