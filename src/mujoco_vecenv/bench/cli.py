"""`mjvec bench …`."""

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress, TaskID

from mujoco_vecenv.bench import kinds, record, report, task_windows
from mujoco_vecenv.bench.subjects import Subject
from mujoco_vecenv.bench.windows import MODES
from mujoco_vecenv.engine.budget import thread_budget
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.rewards import REWARDS
from mujoco_vecenv.tasks import MICRODUCK, TASKS, make_task
from mujoco_vecenv.terminal import (
    console,
    new_file,
    positive_integer,
    positive_seconds,
    print_facts,
    progress_bar,
)

Kind = Callable[..., None]

SUITE: Final = tuple(name for name in TASKS if name != MICRODUCK)
"""The tasks that are Gymnasium's."""


def add_parser(commands: Any) -> None:
    """Add the command `bench` to the parser's commands."""
    bench = commands.add_parser("bench", help="measure speed, contestants taking turns")
    kind = bench.add_subparsers(dest="kind", required=True)

    sweep = _kind(kind, "sweep", kinds.sweep, "one mode over numbers of threads")
    _numbers(sweep, "--threads", [1, 2], "threads of each row")
    _numbers(sweep, "--n", [64], "environments of each row")
    sweep.add_argument("--mode", choices=MODES, default="env", help="what is timed (env)")
    _seconds(sweep, "--seconds", 20.0, "least length of a row's window")
    _seconds(sweep, "--ref-seconds", 10.0, "least length of a reference window")

    layers = _kind(kind, "layers", kinds.layers, "bare, engine and env in turns")
    _numbers(layers, "--n", [8, 64], "environments of each row")
    _numbers(layers, "--threads", [1, 2], "threads of each row")
    _rounds(layers)

    sustained = _kind(kind, "sustained", kinds.sustained, "window after window without a pause")
    _number(sustained, "--threads", thread_budget()[0], "threads")
    _number(sustained, "--n", 64, "environments")
    _number(sustained, "--windows", 18, "windows")
    _seconds(sustained, "--seconds", 20.0, "least length of a window")

    compare = _kind(kind, "compare", kinds.compare, "process, batch and sync in turns")
    _numbers(compare, "--workers", [1, 2, 4, 8], "environments, a worker process each")
    _rounds(compare)

    suite = _plain_kind(
        kind, "suite", kinds.suite, "tasks beside Gymnasium's vector environments and EnvPool"
    )
    suite.add_argument(
        "--tasks",
        choices=TASKS,
        nargs="+",
        default=SUITE,
        metavar="NAME",
        help="tasks by name (all of Gymnasium's)",
    )
    _number(suite, "--n", 64, "environments")
    _number(suite, "--threads", thread_budget()[0], "threads of ours, EnvPool and mujoco.batch")
    _rounds(suite)
    suite.add_argument(
        "--async-workers",
        type=positive_integer,
        metavar="N",
        help="environments of AsyncVectorEnv, a process each (as many as --n)",
    )

    randomization = _microduck_kind(
        kind, "randomization", kinds.randomization, "what sensor noise and randomised physics cost"
    )
    _number(randomization, "--threads", thread_budget()[0], "threads")
    _number(randomization, "--n", 64, "environments")
    _rounds(randomization)

    train = _microduck_kind(
        kind, "train", kinds.train, "train the default policy on each backend in turns"
    )
    _number(train, "--rounds", 5, "counted windows of each contestant, 20 updates each")

    scale = _kind(
        kind, "scale", kinds.scale, "rate, overhead and memory from one environment to thousands"
    )
    _numbers(scale, "--n", [1, 8, 64, 512, 4096], "environments of each row")

    profile = _kind(kind, "profile", kinds.profile, "where one step goes")
    _numbers(profile, "--n", [8, 64], "environments of each row")
    _numbers(profile, "--threads", [1], "threads of each row")
    _number(profile, "--steps", 1000, "steps to look into")

    for name in ("sweep", "layers", "sustained"):
        kind.choices[name].add_argument(
            "--allow-overcommit", action="store_true", help="accept more threads than CPUs"
        )

    show = kind.add_parser("show", help="print saved runs, and compare two")
    show.add_argument("files", type=Path, nargs="+", help="JSON files of runs")
    show.set_defaults(run=_show)


def run_kind(
    name: str,
    measure: Kind,
    subject: Subject | Sequence[str],
    settings: dict[str, Any],
    out: Path | None = None,
    strict: bool = False,
) -> int:
    """Run a benchmark; print its tables, and write its record and plot.

    Ctrl-C ends it early: what it has is printed and written all the same.

    Args:
        name: its name.
        measure: the function of `kinds`.
        subject: what is measured; for `suite` the tasks.
        settings: the function's keywords.
        out: the JSON file to write, with a PNG beside it; None writes nothing.
        strict: refuse to start on a busy machine.

    Returns:
        The exit status.
    """
    shown = {**_describe(subject), **settings}
    with progress_bar("windows") as display:
        run = record.Run(name, shown, _Bar(display, name), strict)
        try:
            measure(run, subject, **settings)
            complete = True
        except KeyboardInterrupt:
            complete = False
    result = run.finish(complete)
    if out is not None:
        record.write(result, out)  # before it is printed: who reads may have closed the pipe
    _print_results(result)
    print_facts(result["machine"])
    if out is not None:
        console.print(f"wrote {out}", highlight=False)
        try:
            report.plot(result, out.with_suffix(".png"))
        except ImportError:
            console.print("no plot: pip install 'mujoco-vecenv[plot]'", markup=False)
    return 0 if complete else 130


class _Bar:
    """A run's progress as a bar."""

    def __init__(self, display: Progress, name: str):
        self._display = display
        self._task: TaskID = display.add_task(name, total=None)

    def expect(self, windows: int) -> None:
        self._display.update(self._task, total=windows)

    def advance(self) -> None:
        self._display.advance(self._task)


def _plain_kind(kinds_: Any, name: str, measure: Kind, help_: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds_.add_parser(name, help=help_)
    parser.add_argument("--out", type=new_file, help="JSON to write (runs/bench-…); PNG beside it")
    parser.add_argument("--strict", action="store_true", help="refuse to start if CPUs are busy")
    parser.set_defaults(run=_run, measure=measure)
    return parser


def _microduck_kind(kinds_: Any, name: str, measure: Kind, help_: str) -> argparse.ArgumentParser:
    parser = _plain_kind(kinds_, name, measure, help_)
    duck = parser.add_argument_group(f"{MICRODUCK} only")
    duck.add_argument("--variant", choices=SCENES, help="the robot's model (groundcontact)")
    duck.add_argument("--reward", choices=REWARDS, help="the reward's version (v2)")
    return parser


def _kind(kinds_: Any, name: str, measure: Kind, help_: str) -> argparse.ArgumentParser:
    parser = _microduck_kind(kinds_, name, measure, help_)
    parser.add_argument(
        "--task", help=f"a task's name, a file such as my_task.py, or a module ({MICRODUCK})"
    )
    return parser


def _numbers(parser: argparse.ArgumentParser, name: str, default: list[int], help_: str) -> None:
    shown = " ".join(map(str, default))
    parser.add_argument(
        name, type=positive_integer, nargs="+", default=default, help=f"{help_} ({shown})"
    )


def _number(parser: argparse.ArgumentParser, name: str, default: int, help_: str) -> None:
    parser.add_argument(name, type=positive_integer, default=default, help=f"{help_} ({default})")


def _seconds(parser: argparse.ArgumentParser, name: str, default: float, help_: str) -> None:
    parser.add_argument(name, type=positive_seconds, default=default, help=f"{help_} ({default})")


def _rounds(parser: argparse.ArgumentParser) -> None:
    _number(parser, "--rounds", 9, "counted windows of each contestant")
    _seconds(parser, "--seconds", 1.0, "least length of a window")


def _run(options: argparse.Namespace) -> int:
    others = {"command", "kind", "variant", "reward", "task", "tasks", "out", "strict"}
    others |= {"run", "measure"}
    settings = {name: value for name, value in vars(options).items() if name not in others}
    subject = _subject(options)
    out = options.out
    if out is None:
        out = Path("runs") / f"bench-{options.kind}-{datetime.now():%Y%m%d-%H%M%S}.json"
    return run_kind(options.kind, options.measure, subject, settings, out, options.strict)


def _subject(options: argparse.Namespace) -> Subject | Sequence[str]:
    """Return what is to be measured, once it is known to exist."""
    if "tasks" in options:
        for task in options.tasks:
            make_task(task)
        return tuple(options.tasks)
    task = getattr(options, "task", None)
    given = {
        name: value
        for name in ("variant", "reward")
        if (value := getattr(options, name)) is not None
    }
    if task in (None, MICRODUCK):
        return MicroduckConfig(**{"reward": "v2", **given})
    if given:
        raise ValueError(f"--{min(given)} is for {MICRODUCK}, not for task {task}: leave it out")
    make_task(task)
    return str(task)


def _describe(subject: Subject | Sequence[str]) -> dict[str, Any]:
    """Return what a record says of what was measured."""
    if isinstance(subject, MicroduckConfig):
        return {"variant": subject.variant, "reward": subject.reward}
    if isinstance(subject, str):
        return {"task": subject, "steps": task_windows.STEPS}
    return {"tasks": list(subject), "steps": task_windows.STEPS}


def _show(options: argparse.Namespace) -> int:
    records = [record.read(path) for path in options.files]
    for path, result in zip(options.files, records, strict=True):
        console.rule(str(path))
        console.print(result["command"], highlight=False)
        _print_results(result)
    print_facts(records[-1]["machine"])
    if len(records) == 2:
        console.rule("the second against the first")
        names = (options.files[0].stem, options.files[1].stem)
        console.print(report.comparison(records[0], records[1], names))
    return 0


def _print_results(result: record.Record) -> None:
    for table in report.tables(result):
        console.print(table)
    for line in report.summary(result):
        console.print(line, style="yellow" if line.startswith("warning") else "", highlight=False)
