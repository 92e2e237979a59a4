"""A record as tables and as a plot."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from mujoco_vecenv.bench import verdicts
from mujoco_vecenv.bench.record import Record, rates

CORES = (4, 8, 16, 32, 64)
"""The numbers of cores for which Amdahl's law is worked out."""

RATIOS = {
    "layers": (("env", "engine"), ("env", "bare")),
    "compare": (("batch", "process"), ("batch", "sync")),
    "train": (("batch", "process"), ("batch", "sync"), ("batch", "batch, torch's threads")),
    "randomization": (("noise", "plain"), ("own physics", "shared physics")),
    "suite": tuple(("ours", other) for other in ("sync", "async", "envpool", "batch", "engine")),
}
"""Kind to the pairs of contestants whose ratio it is about."""


def tables(record: Record) -> list[Table]:
    """Return the tables of a record."""
    kind = record["kind"]
    if kind == "suite":
        return _suite_tables(record)
    if kind in RATIOS:
        return [_turns_table(record)] + ([_parts_table(record)] if kind == "train" else [])
    makers: dict[str, Callable[[Record], list[Table]]] = {
        "sweep": _sweep_tables,
        "sustained": _sustained_tables,
        "scale": _scale_tables,
        "profile": _profile_tables,
    }
    if kind not in makers:
        raise ValueError(f"unknown kind of benchmark {kind!r}")
    return makers[kind](record)


def summary(record: Record) -> list[str]:
    """Return what a record says in words: verdicts first, then warnings."""
    lines = []
    if record["kind"] == "sweep" and record.get("reference"):
        found = verdicts.reference_verdicts(rates(record["reference"])) or ["steady"]
        lines.append(f"the reference was {' and '.join(found)}")
    if record["kind"] == "sustained" and record["rows"]:
        low, high, verdict = verdicts.plateau(rates(record["rows"][0]["windows"]["env"]))
        lines.append(f"plateau {low:,.0f} to {high:,.0f} env-steps/s: {verdict}")
    if record["kind"] == "train":
        for digests in (row["digests"] for row in record["rows"] if "digests" in row):
            backends = {name: digests[name] for name in ("batch", "process", "sync")}
            equal = len(set(backends.values())) == 1
            lines.append(
                "the policies, optimisers and environments are "
                + ("equal, byte for byte" if equal else f"NOT EQUAL: {backends}")
            )
    return lines + [f"warning: {warning}" for warning in record["warnings"]]


def row_values(record: Record) -> dict[str, float]:
    """Return the figures of a record by name, for comparing two records."""
    values = {}
    for row in record["rows"]:
        where = f"n={row['n']}, threads={row['threads']}"
        if "task" in row:
            where = f"{row['task']}, {where}"
        for name, windows in row.get("windows", {}).items():
            if windows:
                values[f"{name}, {where}, env-steps/s"] = statistics.median(rates(windows))
        for name, other in RATIOS.get(record["kind"], ()):
            if row["windows"].get(name) and row["windows"].get(other):
                values[f"{name} / {other}, {where}"] = _ratio(row, name, other)
        for part, us in row.get("us", {}).items():
            # What scale takes from clocks inside a step is taken on one thread.
            alone = f"n={row['n']}, threads=1" if record["kind"] == "scale" else where
            values[f"{part}, {alone}, µs"] = us
        for name in ("construction_s", "resident_mib", "env_steps_per_s"):
            if name in row:
                values[f"{name}, {where}"] = row[name]
    return values


def comparison(one: Record, other: Record, names: tuple[str, str]) -> Table:
    """Return a table of what two records have in common, side by side.

    Raises:
        ValueError: they have nothing in common.
    """
    ours, theirs = row_values(one), row_values(other)
    if not ours.keys() & theirs.keys():
        raise ValueError(f"{names[0]} and {names[1]} measured nothing in common")
    table = _table("", *names, "second /\nfirst")
    table.columns[0].justify = "left"
    for name, value in ours.items():
        if name in theirs:
            ratio = theirs[name] / value if value else float("nan")
            table.add_row(name, f"{value:,.4g}", f"{theirs[name]:,.4g}", f"{ratio:.3f}")
    return table


def plot(record: Record, path: Path) -> None:
    """Draw a record to a PNG file, its warnings included."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    kind, rows = record["kind"], record["rows"]
    if kind == "sustained":
        for row in rows:
            axes.plot(rates(row["windows"]["env"]), "o-", label="env")
        axes.set_xlabel("window")
    elif kind == "sweep":
        labels = [f"n={row['n']}\n{row['threads']} threads" for row in rows]
        mode = record["settings"]["mode"]
        measured = [row["windows"][mode] for row in rows]
        axes.bar(labels, [rates(w)[0] if w else 0.0 for w in measured], label=mode)
        reference = rates(record["reference"])
        axes.plot([k - 0.5 for k in range(len(reference))], reference, "k.--", label="reference")
    elif kind == "scale":
        axes.loglog([r["n"] for r in rows], [r["env_steps_per_s"] for r in rows], "o-")
        axes.set_xlabel("environments")
    elif kind == "profile":
        _stack(axes, rows)
    elif kind == "suite":
        _points(axes, record)
    else:
        _groups(axes, rows)
    axes.set_ylabel("µs per step" if kind == "profile" else "env-steps/s")
    axes.set_ylim(bottom=None if kind in ("scale", "suite") else 0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.set_title(f"{record['command']}\n{record['machine']['cpu']}", fontsize="medium")
    if notes := summary(record):
        figure.supxlabel("\n".join(notes), fontsize="small", color="firebrick")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _stack(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    labels = [f"n={row['n']}\n{row['threads']} threads" for row in rows]
    bottom = [0.0] * len(rows)
    for part in ("kernels", "python", "draws"):
        heights = [row["us"][part] for row in rows]
        axes.bar(labels, heights, bottom=bottom, label=part)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]


def _points(axes: Any, record: Record) -> None:
    """Draw each contestant's rates over the tasks, on a logarithmic axis."""
    rows, markers = record["rows"], "osvDPx"
    for name, marker in zip(_SUITE, markers, strict=True):
        measured = [row for row in rows if row["windows"].get(name)]
        axes.plot(
            [row["task"] for row in measured],
            [statistics.median(rates(row["windows"][name])) for row in measured],
            marker,
            label=_suite_names(record)[name],
        )
    axes.set_yscale("log")
    for label in axes.get_xticklabels():
        label.set(rotation=30, horizontalalignment="right")


def _groups(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = list(rows[0]["windows"]) if rows else []
    width = 0.8 / max(1, len(names))
    for k, name in enumerate(names):
        places = [r + k * width for r in range(len(rows))]
        windows = [row["windows"][name] for row in rows]
        axes.bar(
            places,
            [statistics.median(rates(w)) if w else 0.0 for w in windows],
            width,
            label=name,
        )
    axes.set_xticks(
        [r + 0.4 - width / 2 for r in range(len(rows))],
        [f"n={row['n']}\n{row['threads']} threads" for row in rows],
    )


def _ratio(row: dict[str, Any], name: str, other: str) -> float:
    windows = row["windows"]
    return verdicts.median_ratio(rates(windows[name]), rates(windows[other]))


def _turns_table(record: Record) -> Table:
    pairs = RATIOS[record["kind"]]
    names = list(record["rows"][0]["windows"]) if record["rows"] else []
    table = _table("n", "threads", *names, *(f"{a} /\n{b}" for a, b in pairs), "rounds")
    table.title = "env-steps/s: medians of windows in turns, and medians of their ratios"
    for row in record["rows"]:
        windows = row["windows"]
        rounds = min(len(windows[name]) for name in names)
        if rounds:
            table.add_row(
                str(row["n"]),
                str(row["threads"]),
                *(f"{statistics.median(rates(windows[name])):,.0f}" for name in names),
                *(f"{_ratio(row, a, b):.3f}" for a, b in pairs),
                str(rounds),
            )
    return table


_SUITE: Final = ("ours", "sync", "async", "envpool", "batch", "engine")
"""The contestants of `suite`, in the order of its columns."""


def _suite_names(record: Record) -> dict[str, str]:
    """Return what the contestants of `suite` are called in words."""
    pool = record["envpool"]
    return {
        "ours": "ours",
        "sync": "Gymnasium's SyncVectorEnv",
        "async": "Gymnasium's AsyncVectorEnv",
        "envpool": f"EnvPool, MuJoCo {pool['mujoco']}" if pool else "EnvPool, not installed",
        "batch": "mujoco.batch alone, published model",
        "engine": "mujoco.batch alone, our lean model",
    }


def _suite_tables(record: Record) -> list[Table]:
    """Return the rates of each contestant, and how much faster ours is than each other."""
    settings, pairs = record["settings"], RATIOS["suite"]
    measured = _table("task", *_SUITE)
    measured.title = f"env-steps/s, n={settings['n']}, threads={settings['threads']}: medians"
    measured.caption, measured.caption_justify = _suite_caption(record), "left"
    compared = _table("task", *(f"{a} /\n{b}" for a, b in pairs), "rounds")
    compared.title = "medians of the ratios within a round"
    for row in record["rows"]:
        windows = row["windows"]
        measured.add_row(
            row["task"],
            *(
                f"{statistics.median(rates(windows[name])):,.0f}" if windows.get(name) else "–"
                for name in _SUITE
            ),
        )
        compared.add_row(
            row["task"],
            *(
                f"{_ratio(row, a, b):.2f}" if windows.get(a) and windows.get(b) else "–"
                for a, b in pairs
            ),
            str(min(len(done) for done in windows.values())),
        )
    for table in (measured, compared):
        table.columns[0].justify = "left"
    return [measured, compared]


def _suite_caption(record: Record) -> str:
    """Return what the contestants of `suite` are, and in what they are not alike."""
    workers = record["settings"]["async_workers"] or record["settings"]["n"]
    caption = (
        f"sync, async: Gymnasium {record['gymnasium']}, async with {workers} processes, one for "
        "each of its environments. batch, engine: mujoco.batch without the task, on the published "
        "model and on the lean one that ours steps. These and ours step "
        f"MuJoCo {record['machine']['mujoco']}. envpool: "
    )
    pool = record["envpool"]
    if pool is None:
        return caption + "not installed."
    return caption + (
        f"EnvPool {pool['version']}, num_threads={pool['num_threads']}, batch_size="
        f"{pool['batch_size']}, which steps MuJoCo {pool['mujoco']}: its numbers are not bit-equal "
        "to the others'."
    )


def _parts_table(record: Record) -> Table:
    """Return where a training second goes: medians over windows."""
    rows = [row for row in record["rows"] if row.get("parts")]
    names = list(rows[0]["parts"]["batch"][0]) if rows else []
    table = _table("contestant", *names, "rest", "s per window")
    table.columns[0].justify = "left"
    table.title = "where a training second goes, % of it: medians over windows"
    for row in rows:
        for contestant, windows in row["parts"].items():
            totals = [window["seconds"] for window in row["windows"][contestant]]
            shares = [
                [window[part] / total for window, total in zip(windows, totals, strict=True)]
                for part in names
            ]
            medians = [statistics.median(share) for share in shares]
            table.add_row(
                contestant,
                *(f"{share:.1%}" for share in medians),
                f"{max(0.0, 1 - sum(medians)):.1%}",
                f"{statistics.median(totals):.2f}",
            )
    return table


def _sweep_tables(record: Record) -> list[Table]:
    mode = record["settings"]["mode"]
    table = _table("n", "threads", "env-steps/s", "per thread", "speed-up", "efficiency", "ref")
    table.title = f"{mode}; speed-up over the mean of the one-thread references around each row"
    reference = rates(record["reference"])
    for k, row in enumerate(record["rows"]):
        if not row["windows"][mode] or k + 1 >= len(reference):
            continue
        rate = rates(row["windows"][mode])[0]
        around = (reference[k] + reference[k + 1]) / 2
        table.add_row(
            str(row["n"]),
            str(row["threads"]),
            f"{rate:,.0f}",
            f"{rate / row['threads']:,.0f}",
            f"{rate / around:.2f}",
            f"{rate / around / row['threads']:.1%}",
            f"{around:,.0f}",
        )
    return [table]


def _sustained_tables(record: Record) -> list[Table]:
    table = _table("window", "seconds", "env-steps/s")
    for row in record["rows"]:
        windows = row["windows"]["env"]
        for k, (window, rate) in enumerate(zip(windows, rates(windows), strict=True)):
            table.add_row(str(k + 1), f"{window['seconds']:.1f}", f"{rate:,.0f}")
    return [table]


def _scale_tables(record: Record) -> list[Table]:
    measured = _table(
        "n",
        "env-steps/s",
        "overhead\nµs/step",
        "overhead\nµs/env",
        "warm\nµs/step",
        "waited\nµs/step",
        "resident\nMiB",
        "construct\ns",
    )
    measured.title = "rates at full threads, µs on one; overhead: a step's time beyond physics"
    computed = _table("n", *(f"{cores} cores" for cores in CORES))
    computed.title = (
        "env-steps/s COMPUTED by Amdahl's law from one thread's µs, not measured;\n"
        "no more cores work than there are environments"
    )
    for row in record["rows"]:
        n, us = row["n"], row["us"]
        overhead = us["step"] - us["physics"]
        measured.add_row(
            str(n),
            f"{row['env_steps_per_s']:,.0f}",
            _microseconds(overhead),
            f"{overhead / n:.2f}",
            *_without_physics(us),
            f"{row['resident_mib']:,.0f}",
            f"{row['construction_s']:.2f}",
        )
        computed.add_row(
            str(n),
            *(f"{verdicts.amdahl(overhead, us['physics'], n, cores):,.0f}" for cores in CORES),
        )
    return [measured, computed]


def _profile_tables(record: Record) -> list[Table]:
    parts = ("physics", "kernels", "python", "draws", "step")
    table = _table("n", "threads", *parts, "beyond", "warm", "waited")
    table.title = "where one step goes, µs"
    table.caption = "beyond: a step less its physics; warm, waited: that without any physics"
    for row in record["rows"]:
        us = row["us"]
        beyond = us["step"] - us["physics"]
        table.add_row(
            str(row["n"]),
            str(row["threads"]),
            *(_microseconds(us[part]) for part in parts),
            _microseconds(beyond),
            *_without_physics(us),
        )
    return [table]


def _without_physics(us: dict[str, float]) -> list[str]:
    """Return the cells of `warm` and `waited`; older records have no `waited`."""
    return [_microseconds(us[p] + us["draws"]) if p in us else "" for p in ("warm", "waited")]


def _microseconds(us: float) -> str:
    return f"{us:,.0f}" if us >= 1000 else f"{us:.1f}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table
