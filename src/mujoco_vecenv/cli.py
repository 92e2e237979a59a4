"""The command `mjvec`."""

import argparse
import json
import math
import shlex
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from mujoco_vecenv import __version__, contract, machine, replay, run_as
from mujoco_vecenv.bench import cli as bench
from mujoco_vecenv.bench import kinds
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.episodes import load_recording
from mujoco_vecenv.microduck.randomization import SERVO
from mujoco_vecenv.new_task import write_task
from mujoco_vecenv.tasks import TASKS
from mujoco_vecenv.terminal import (
    console,
    new_file,
    positive_integer,
    print_facts,
    progress_bar,
    task_option,
)
from mujoco_vecenv.train import cli as training
from mujoco_vecenv.train import evaluate_cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, MemoryError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        Console(stderr=True).print(
            f"mjvec {options.command}: {text}", style="red", markup=False, soft_wrap=True
        )
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mjvec", description="CPU vector environments for robot learning in MuJoCo."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    demo = commands.add_parser(
        "demo", help="equality, speed and a minute of training on this machine"
    )
    demo.set_defaults(run=_demo)

    contract_ = commands.add_parser(
        "contract", help="prove that the batch backend equals the reference to the last bit"
    )
    contract_.add_argument(
        "--episodes",
        type=positive_integer,
        help="whole episodes per case, rounded up to an even number (4); with --task at least as "
        "many per task (20, and 5,000 observations)",
    )
    contract_.add_argument(
        "--task",
        nargs="+",
        metavar="TASK",
        help="hold these tasks against their references, through Gymnasium: names, files or "
        "modules, or `all`",
    )
    task_option(contract_)
    contract_.add_argument("--json", type=new_file, help="also write the result to this file")
    contract_.set_defaults(run=_contract)

    bench.add_parser(commands)
    training.add_parsers(commands)
    evaluate_cli.add_parsers(commands)

    replay_ = commands.add_parser(
        "replay", help="run a recorded episode again on the reference, and show its trajectory"
    )
    replay_.add_argument("file", type=Path, help="what save_recording wrote")
    replay_.add_argument(
        "--every", type=positive_integer, default=10, help="control steps between rows"
    )
    replay_.add_argument("--plot", type=new_file, help="the PNG to draw (default: beside the file)")
    replay_.set_defaults(run=_replay)

    run_as_ = commands.add_parser(
        "run-as", help="run a script written for another VecEnv on this one, unedited"
    )
    run_as_.add_argument("module", help="the module from which the script imports VecEnv")
    run_as_.add_argument("script", type=Path, help="the script")
    run_as_.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's command line")
    run_as_.set_defaults(run=_run_as)

    new_task = commands.add_parser(
        "new-task", help="write a task of your own to begin from: docs/new-task.md"
    )
    new_task.add_argument("name", help="of the folder, and of the Python file and model in it")
    new_task.set_defaults(run=_new_task)

    render = commands.add_parser("render", help="draw the robot in STAND to a PNG file")
    render.add_argument("file", type=new_file, help="the PNG to write")
    render.add_argument(
        "--variant", choices=SCENES, default="groundcontact", help="the model (groundcontact)"
    )
    render.set_defaults(run=_render)
    return parser


def _contract(options: argparse.Namespace) -> int:
    if options.task:
        report = _run_task_contract(options.task, options.option, options.episodes)
    elif options.option is not None:
        raise ValueError("--option is for a --task: the contract without one has its own cases")
    else:
        report = _run_contract(contract.CASES, options.episodes or 4)
    facts = machine.describe()
    print_facts(facts)
    if options.json:
        _write_json(
            options.json, {"command": machine.command()} | report.as_json() | {"machine": facts}
        )
    return 0 if report.equal else 1


def _run_contract(cases: Sequence[contract.Case], episodes: int) -> contract.Report:
    with progress_bar("env-steps") as progress:
        environments = math.ceil(episodes / contract.EPISODES)
        steps = (
            environments
            * contract.EPISODES
            * sum(MicroduckConfig(**case.keywords).episode_steps for case in cases)
        )
        bar = progress.add_task("contract", total=steps)
        report = contract.run_contract(cases, environments, lambda n: progress.advance(bar, n))
    _show(report)
    return report


def _run_task_contract(
    tasks: Sequence[str], options: dict[str, Any] | None, episodes: int | None
) -> contract.Report:
    from mujoco_vecenv import task_contract  # needs Gymnasium, which nothing else here does

    every = (name for given in tasks for name in (TASKS if given == "all" else [given]))
    names = list(dict.fromkeys(every))
    with progress_bar("tasks") as progress:
        bar = progress.add_task("contract", total=len(names))
        report = task_contract.run_task_contract(
            names,
            lambda share: progress.advance(bar, share),
            episodes or task_contract.EPISODES,
            options=options,
        )
    _show(report)
    return report


def _show(report: contract.Report) -> None:
    table = Table(
        title="batch against the reference",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        caption="differences: rewards and done flags; info fields, each reward term one of them",
    )
    table.add_column("case", min_width=20)
    for column in (
        "epi-\nsodes",
        "obser-\nvations",
        "bit-\nequal",
        "max\nabs",
        "max\nrel",
        "rewards\ndiffer",
        "infos\ndiffer",
    ):
        table.add_column(column, justify="right", min_width=max(map(len, column.split("\n"))))
    for name, tally in [*report.cases.items(), ("all", report.total)]:
        if name == "all":
            table.add_section()
        table.add_row(
            name,
            str(tally.episodes),
            str(tally.observations),
            str(tally.identical),
            f"{tally.max_abs:.3g}",
            f"{tally.max_rel:.3g}",
            str(tally.reward_mismatches),
            str(tally.info_mismatches),
            style="" if tally.equal else "red",
        )
    console.print(table)
    if report.seeds:
        console.print(f"draws: {report.same_draws} of {report.seeds} seeds drew the same bits")
    if report.equal:
        console.print("[green]Equal to the last bit.[/green]")
    else:
        first = report.total.first or "a draw"
        console.print(f"[red]Not equal.[/red] The first difference: {first}")


def _demo(options: argparse.Namespace) -> int:
    console.rule("1. The batch backend is the reference, to the last bit")
    report = _run_contract(contract.CASES, 2)
    if not report.equal:
        return 1
    console.rule("2. And it is faster than a process per environment")
    settings = {"workers": [8], "rounds": 7, "seconds": 1.0}
    bench.run_kind("compare", kinds.compare, MicroduckConfig(reward="v2"), settings)
    console.rule("3. So a policy learns to stand while you watch")
    folder = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    for command in (
        ["train", "--preset", "minute", "--tag", folder.name],
        ["eval", str(folder), "--episodes", "40", "--plot", str(folder / "evaluation.png")],
    ):
        console.print(f"$ {shlex.join(['mjvec', *command])}", style="bold", highlight=False)
        if status := main(command):
            return status
    console.rule()
    console.print(
        f"Look at {folder}/curve.png. Next: put VecEnv into your own training script; README.md "
        "shows it in five lines.",
        highlight=False,
    )
    return 0


def _replay(options: argparse.Namespace) -> int:
    recording = load_recording(options.file)
    trajectory = replay.replay(recording)
    episode, config = recording.episode, recording.config
    console.print(
        f"{config.variant}, reward {config.reward}, latency {episode.latency}, sensor noise "
        f"{'on' if episode.sensor_noise else 'off'}, "
        + (
            "actions as recorded"
            if len(recording.actions)
            else "no actions recorded: holding STAND"
        )
    )
    if episode.factors is not None:
        names = (*SERVO, "mass_scale", "floor_friction")
        values = episode.factors.as_vector()[: len(names)]
        drawn = [f"{n} {v:.4g}" for n, v in zip(names, values, strict=True) if v == v]
        console.print("factors: " + (", ".join(drawn) or "none"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("t", "height\ncm", "cos\ntilt", "reward", *trajectory.terms, "push\nm/s"):
        table.add_column(column.replace("_", "\n"), justify="right")
    speeds = iter(np.hypot(*episode.push_velocity.T).tolist())
    for k, reward in enumerate(trajectory.rewards):
        pushed = f"{next(speeds):.2f}" if trajectory.pushed[k] else ""
        if (k + 1) % options.every == 0 or pushed or k == 0:
            table.add_row(
                str(k + 1),
                f"{100 * trajectory.height[k]:.1f}",
                f"{trajectory.upright[k]:.2f}",
                f"{reward:.3f}",
                *(f"{values[k]:.3f}" for values in trajectory.terms.values()),
                pushed,
            )
    console.print(table)
    steps = len(trajectory.rewards)
    console.print(f"return {trajectory.rewards.sum():.2f} over {steps} steps")
    path = options.plot or options.file.with_suffix(".png")
    replay.plot(trajectory, options.file.name, path)
    console.print(f"wrote {path}")
    return 0


def _run_as(options: argparse.Namespace) -> int:
    try:
        run_as.run_as(options.module, options.script, options.arguments)
    except run_as.ScriptError as error:
        traceback.print_exception(error.__cause__)
        return 1
    return 0


def _new_task(options: argparse.Namespace) -> int:
    task, model = write_task(options.name)
    console.print(f"wrote {task} and {model}: a cart-pole, to make your own task of. Next:")
    for command, why in (
        (f"mjvec contract --task {task}", "compiled and in plain Python it does the same"),
        (f"mjvec train --task {task} --n 32 --total-steps 200000 --tag {options.name}", "PPO"),
        (f"mjvec eval runs/{options.name}", "the policy against random actions"),
    ):
        console.print(f"  {command}  # {why}", soft_wrap=True, highlight=False)
    return 0


def _render(options: argparse.Namespace) -> int:
    from mujoco_vecenv import render  # needs OpenGL, which nothing else does

    render.save_png(options.file, render.portrait(MicroduckConfig(variant=options.variant)))
    console.print(f"wrote {options.file}")
    return 0


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
