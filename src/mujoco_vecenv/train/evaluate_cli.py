"""What becomes of a policy: `mjvec eval`, `gap`, `baseline`, `export` and `compare-runs`."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from mujoco_vecenv import machine
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.rewards import REWARDS
from mujoco_vecenv.tasks import MICRODUCK
from mujoco_vecenv.terminal import (
    console,
    new_file,
    picture,
    positive_integer,
    progress_bar,
    say,
    task_option,
)
from mujoco_vecenv.train import compare, evaluate, export, policy, report
from mujoco_vecenv.train.environments import EnvConfig, TaskConfig, as_given


def add_parsers(commands: Any) -> None:
    """Add the commands to the parser's."""
    eval_ = _evaluation(
        commands, "eval", "evaluate a policy against holding the STAND pose, or random actions"
    )
    _policy_options(eval_)
    _environment_options(eval_)
    eval_.set_defaults(run=_eval)

    gap = _evaluation(commands, "gap", "evaluate policies on other variants and randomisation")
    gap.add_argument("policies", type=Path, nargs="+", help="policies' files, or their runs")
    gap.add_argument("--variants", nargs="+", choices=SCENES, help="models to try (all)")
    gap.set_defaults(run=_gap)

    baseline = _evaluation(commands, "baseline", "evaluate no policy: hold the pose, act randomly")
    _environment_options(baseline)
    baseline.set_defaults(run=_baseline)

    compare = commands.add_parser("compare-runs", help="training runs side by side")
    compare.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    compare.add_argument("--plot", type=picture, help="PNG to draw the curves to")
    compare.add_argument("--json", type=new_file, help="JSON to write")
    compare.set_defaults(run=_compare)

    export = commands.add_parser("export", help="write a policy as an ONNX file")
    _policy_options(export)
    export.add_argument("--out", type=new_file, help="ONNX to write (beside the policy)")
    export.set_defaults(run=_export)


def _policy_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", type=Path, help="a policy's file, or the folder of its run")
    parser.add_argument("--task", help="where its task's file lies, if it has moved")


def _evaluation(commands: Any, name: str, help_: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_)
    # More would run into the seeds that training uses.
    parser.add_argument(
        "--episodes",
        type=positive_integer,
        choices=range(1, evaluate.SEED_STRIDE + 1),
        metavar="N",
        default=100,
        help="episodes of each seed (100)",
    )
    parser.add_argument(
        "--seeds", type=int, choices=range(1, 6), default=5, help="seeds, from 0 (5)"
    )
    parser.add_argument("--threads", type=positive_integer, help="threads (all)")
    parser.add_argument("--json", type=new_file, help="JSON to write")
    parser.add_argument("--plot", type=picture, help="PNG to draw")
    return parser


def _environment_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variant", choices=SCENES, help="the robot's model (as trained)")
    parser.add_argument("--reward", choices=REWARDS, help="the reward's version (as trained)")
    parser.add_argument("--dr", action="store_true", help="domain randomisation and sensor noise")
    task_option(parser)


def _eval(options: argparse.Namespace) -> int:
    loaded = _load(options)
    config = as_given(evaluate.usual(loaded.config), _given(options))
    results = _contest(evaluate.contestants(loaded), {"": config}, options)
    flat = {name: places[""] for name, places in results.items()}
    table = report.task_table if isinstance(config, TaskConfig) else report.evaluation_table
    console.print(table(flat))
    _write_results(options, flat, str(options.policy), loaded.header["steps"])
    return 0


def _load(options: argparse.Namespace) -> policy.Policy:
    loaded = policy.Policy.load(options.policy)
    return loaded if options.task is None else loaded.found_at(options.task)


def _gap(options: argparse.Namespace) -> int:
    results: dict[str, Any] = {}
    for path in options.policies:
        loaded = policy.Policy.load(path)
        config = evaluate.usual(loaded.config)
        if not isinstance(config, MicroduckConfig):
            raise ValueError(f"{path} was trained on {config.task}: gap is for {MICRODUCK}")
        places = evaluate.places(config, options.variants or list(SCENES))
        results |= _contest({str(path): loaded.actor()}, places, options)
    console.print(report.gap_table(results))
    _write_json(options.json, results)
    if options.plot:
        flat = {f"{p}, {place}": r for p, places in results.items() for place, r in places.items()}
        _plot_returns(flat, "policies on other variants", options.plot)
    return 0


def _baseline(options: argparse.Namespace) -> int:
    config = as_given(MicroduckConfig(reward="v2"), _given(options))
    contestants: dict[str, evaluate.Act] = {
        "hold STAND": evaluate.hold,
        "random": evaluate.random_actions(),
    }
    results = _contest(contestants, {"": config}, options)
    flat = {name: places[""] for name, places in results.items()}
    console.print(report.evaluation_table(flat))
    console.print(report.shares_table(flat))
    _write_results(options, flat, "no policy", None)
    return 0


def _contest(
    contestants: dict[str, evaluate.Act],
    places: Mapping[str, EnvConfig],
    options: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
    """Evaluate every contestant on every place."""
    results: dict[str, dict[str, Any]] = {name: {} for name in contestants}
    with progress_bar("episodes") as progress:
        total = options.episodes * options.seeds * len(contestants) * len(places)
        bar = progress.add_task("evaluate", total=total)
        for place, config in places.items():
            for name, act in contestants.items():
                progress.update(bar, description=escape(f"{name} {place}".strip()))
                results[name][place] = evaluate.evaluate(
                    act,
                    config,
                    options.episodes,
                    range(options.seeds),
                    options.threads,
                    lambda count: progress.advance(bar, count),
                )
    return results


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of an evaluation that were given."""
    return {name: value for name, value in vars(options).items() if value}


def _write_results(
    options: argparse.Namespace, results: dict[str, Any], title: str, steps: int | None
) -> None:
    _write_json(options.json, results)
    if options.plot:
        after = "" if steps is None else f" after {steps:,} steps"
        _plot_returns(results, f"{title}{after}", options.plot)


def _plot_returns(results: dict[str, Any], title: str, path: Path) -> None:
    report.evaluation_plot({name: r["returns"] for name, r in results.items()}, title, path)
    say(f"wrote {path}")


def _write_json(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        record = {
            "command": machine.command(),
            "machine": machine.describe(),
            "results": results,
        }
        path.write_text(json.dumps(record, indent=1) + "\n")
        say(f"wrote {path}")


def _compare(options: argparse.Namespace) -> int:
    runs = [compare.read_run(folder) for folder in options.runs]
    found = compare.groups(runs)
    for table in report.runs_tables(found):
        console.print(table)
    if options.plot:
        curves = [report.Curve(name, run.log) for name, group in found.items() for run in group]
        report.curves_plot(curves, "training runs", options.plot)
        say(f"wrote {options.plot}")
    _write_json(options.json, {n: [r.figures() for r in g] for n, g in found.items()})
    return 0


def _export(options: argparse.Namespace) -> int:
    loaded = _load(options)
    beside = options.policy / policy.FILE if options.policy.is_dir() else options.policy
    path = options.out or beside.with_suffix(".onnx")
    obs = evaluate.observations(loaded.actor(), loaded.config, export.OBSERVATIONS)
    part = path.with_name(path.name + ".part")
    try:
        export.export(loaded, part)
        largest = export.largest_difference(loaded, part, obs)
        if not largest < export.LIMIT:
            raise RuntimeError(f"{path} would differ from PyTorch by {largest:.2e}: not written")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    times = export.latency(path, obs)
    say(f"wrote {path}")
    console.print(
        f"against PyTorch on {len(obs):,} observations: largest difference {largest:.2e}\n"
        f"one action on one thread: p50 {times['p50']:.1f} µs, p99 {times['p99']:.1f} µs"
    )
    return 0
