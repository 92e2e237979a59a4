"""`mjvec train` and `mjvec recover`."""

import argparse
import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from rich import box
from rich.table import Table

from mujoco_vecenv import machine
from mujoco_vecenv.archive import digest
from mujoco_vecenv.checks import check_integer
from mujoco_vecenv.engine.budget import choose_threads
from mujoco_vecenv.microduck.config import SCENES, MicroduckConfig
from mujoco_vecenv.microduck.rewards import REWARDS
from mujoco_vecenv.tasks import MICRODUCK
from mujoco_vecenv.terminal import (
    console,
    positive_integer,
    print_facts,
    progress_bar,
    say,
    task_option,
)
from mujoco_vecenv.train import policy, report
from mujoco_vecenv.train.config import PRESETS, PPOConfig, RecoverConfig
from mujoco_vecenv.train.environments import EnvConfig, TaskConfig, as_given, describe
from mujoco_vecenv.train.folder import (
    CURVE,
    RECOVERY,
    RECOVERY_PLOT,
    Line,
    RunConfig,
    locked,
    read_checkpoint,
    read_log,
    refuse_used,
)
from mujoco_vecenv.vector.vec_env import BACKENDS

_NEEDS_TORCH: Final = "training needs PyTorch: pip install 'mujoco-vecenv[train]' ({})"
_MORE: Final = "give a larger --total-steps to go on"
_DRAW_EVERY: Final = 60.0  # seconds between plots of the curve


def add_parsers(commands: Any) -> None:
    """Add the commands to the parser's."""
    train = commands.add_parser(
        "train", help="train a policy with PPO", argument_default=argparse.SUPPRESS
    )
    train.add_argument(
        "--task",
        metavar="TASK",
        help="what to learn: a name such as HalfCheetah-v5, a file such as my_task.py, or a module "
        f"({MICRODUCK}). The policy's actions are clipped to [-1, 1] and mapped onto the limits "
        "that the task announces; where there are none, they are passed as they are",
    )
    task_option(train)
    presets = "; ".join(f"{name}: {preset.doc}" for name, preset in PRESETS.items())
    train.add_argument(
        "--preset", choices=PRESETS, help=f"where the values below begin (default). {presets}"
    )
    for option in fields(PPOConfig):
        train.add_argument(
            f"--{option.name.replace('_', '-')}",
            type=int if option.type is int else _number_or_none,
            metavar="N" if option.type is int else "X",
            help=f"{option.metadata['doc']} ({option.default})",
        )
    duck = train.add_argument_group(f"{MICRODUCK} only")
    duck.add_argument("--variant", choices=SCENES, help="the robot's model (groundcontact)")
    duck.add_argument("--reward", choices=REWARDS, help="the reward's version (v2)")
    duck.add_argument("--dr", action="store_true", help="domain randomisation and sensor noise")
    duck.add_argument("--episode-steps", type=int, metavar="N", help="control steps (250)")
    duck.add_argument("--n-pushes", type=int, metavar="N", help="pushes in an episode (3)")
    duck.add_argument(
        "--push-speed", type=float, nargs=2, metavar="X", help="least and most, m/s (0.15 0.45)"
    )
    duck.add_argument(
        "--init-noise", type=float, metavar="X", help="noise on the first angles, rad (0.02)"
    )
    train.add_argument("--seed", type=int, help="seed of everything drawn (0)")
    train.add_argument("--backend", choices=BACKENDS, help="what the environments run on (batch)")
    train.add_argument("--threads", type=positive_integer, help="threads of the batch backend")
    train.add_argument("--tag", help="name of the run (the date)")
    train.add_argument("--runs", type=Path, help="folder of the runs' folders (runs)")
    train.add_argument(
        "--chunk-steps",
        type=positive_integer,
        metavar="N",
        help="stop after this many steps of PPO",
    )
    train.add_argument(
        "--resume",
        nargs="?",
        const=None,
        type=Path,
        metavar="RUN",
        help="go on with the run of this tag, or from another run or checkpoint in a new folder",
    )
    train.add_argument(
        "--verify-backends",
        action="store_true",
        help="train a few updates on every backend instead, and compare all bytes",
    )
    train.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard")
    train.set_defaults(run=_train)

    recover = commands.add_parser(
        "recover", help=f"teach a policy that stands to recover from stronger pushes ({MICRODUCK})"
    )
    recover.add_argument("policy", type=Path, help="a policy's file, or the folder of its run")
    for option in fields(RecoverConfig):
        recover.add_argument(
            f"--{option.name.replace('_', '-')}",
            type=int,
            default=option.default,
            metavar="N",
            help=f"{option.metadata['doc']} ({option.default})",
        )
    recover.add_argument("--seed", type=int, default=0, help="seed of everything drawn (0)")
    recover.add_argument("--threads", type=positive_integer, help="threads of the physics (all)")
    recover.add_argument("--tag", required=True, help="name of the folder for the new policy")
    recover.add_argument("--runs", type=Path, default=Path("runs"), help="where it is (runs)")
    recover.set_defaults(run=_recover)


def _number_or_none(text: str) -> float | None:
    return None if text == "none" else float(text)


def _train(options: argparse.Namespace) -> int:
    given = vars(options)
    backend, threads = given.get("backend", "batch"), given.get("threads")
    checkpoint = None
    runs = given.get("runs", Path("runs"))
    tag = given.get("tag", f"train-{datetime.now():%Y%m%d-%H%M%S}")
    if not tag:
        raise ValueError("--tag must not be empty")
    folder = runs / tag
    if "resume" in given:
        if given["resume"] is None and "tag" not in given:
            raise ValueError("--resume needs the run's --tag, or a run to go on from")
        checkpoint = read_checkpoint(given["resume"] or folder, say)
        if "task" in given:
            checkpoint = checkpoint.found_at(given["task"])
        config = _resumed(checkpoint.config, given)
    else:
        changes = {o.name: given[o.name] for o in fields(PPOConfig) if o.name in given}
        preset = PRESETS[given.get("preset", "default")]
        begin: EnvConfig = MicroduckConfig(**{"reward": "v2"} | preset.env)
        if (task := given.get("task", MICRODUCK)) != MICRODUCK:
            begin = TaskConfig(task)
            if preset.env:
                raise ValueError(f"--preset {given['preset']} is for {MICRODUCK}, not for {task}")
        config = RunConfig(
            PPOConfig(**preset.ppo | changes),
            as_given(begin, given),
            given.get("seed", 0),
            preset.recover,
        )
    try:
        from mujoco_vecenv.train import run, verify
    except ImportError as error:
        raise ImportError(_NEEDS_TORCH.format(error)) from error
    with run.torch_threads(1):
        if "verify_backends" in given:
            return _verify(verify, config)
        begun = 0 if checkpoint is None else int(checkpoint.arrays["steps_done"])
        total = config.ppo.total_steps
        done = begun >= total
        other = given.get("resume")
        if done and other and (config.recover is None or _has_recovered(other, config)):
            raise ValueError(f"{other} has done its {begun:,} steps: {_MORE}")
        if checkpoint is not None and _has_recovered(folder, config):
            if not done:
                raise ValueError(
                    f"{folder} holds a policy that recovers, which more steps would replace: go on "
                    f"in another folder, with --resume {folder} and another --tag"
                )
            say(f"{folder} holds the policy that recovers: all is done")
            return 0
        with run.Run(config, folder, backend, threads, checkpoint) as training:
            writer = _tensorboard(folder, begun) if "tensorboard" in given else None
            only_recover = done and config.recover is not None
            code = 0 if only_recover else _go(training, given.get("chunk_steps"), writer)
            if code or config.recover is None or training.ppo.steps_done < total:
                return code
            return _then_recover(training.policy(), config, folder, given)


def _then_recover(
    standing: policy.Policy, config: RunConfig, folder: Path, given: dict[str, Any]
) -> int:
    """Do what follows once PPO has done its steps, unless only a chunk of them was asked for."""
    assert config.recover is not None, "nothing follows"
    again = ["--runs", str(folder.parent), "--tag", folder.name]
    resume = shlex.join(["mjvec", "train", "--resume", *again])
    if "chunk_steps" in given:
        say(f"what is left, learning to recover, is one piece: {resume}")
        return 0
    try:
        _teach(standing, config.recover, config.seed, given.get("threads"), folder)
    except KeyboardInterrupt:
        say(f"stopped; this learns to recover from the start: {resume}")
        return 130
    except ValueError as error:
        raise ValueError(f"{error}; here, go on with a larger --total-steps: {resume}") from error
    return 0


def _has_recovered(folder: Path, config: RunConfig) -> bool:
    """Whether a folder holds the policy that a run ends with, one that has learned to recover."""
    try:
        header = policy.Policy.load(folder).header
    except (OSError, ValueError):
        return False
    return config.recover is not None and policy.RECOVERED in header


def _resumed(config: RunConfig, given: dict[str, Any]) -> RunConfig:
    """Return the configuration of a resumed run; refuse what it cannot change."""
    if given.get("seed", config.seed) != config.seed:
        raise ValueError(f"the run has seed {config.seed}, which --resume cannot change")
    asked = as_given(config.env, given)
    for field in fields(asked):
        if getattr(asked, field.name) != (value := getattr(config.env, field.name)):
            raise ValueError(f"the run has {field.name} {value!r}, which --resume cannot change")
    if "preset" in given:
        raise ValueError("--resume goes on with the run's own values: leave --preset out")
    return config.changed({o.name: given[o.name] for o in fields(PPOConfig) if o.name in given})


def _go(training: Any, chunk: int | None, writer: Any) -> int:
    """Train to the end, or for a chunk of steps, or until Ctrl-C."""
    config, folder = training.config, training.folder
    say(f"{folder}: {_describe(config)}; {training.envs.backend}")
    total, begun = config.ppo.total_steps, training.ppo.steps_done
    last = total if chunk is None else min(total, begun + chunk)
    if begun >= last:
        say(f"the run has done its {begun:,} steps: {_MORE}")
    drawn = perf_counter()
    slow = False
    with progress_bar("env-steps") as progress, _stop_on_signal() as stopped:
        bar = progress.add_task("train", total=last, completed=begun)
        while training.ppo.steps_done < last and not stopped:
            line = training.update()
            progress.update(bar, completed=line["steps"], description=_brief(line))
            if writer is not None:
                _write_scalars(writer, line)
            if "evaluation" in line:
                say(_brief(line) + _tested(line["evaluation"]))
                if perf_counter() - drawn > _DRAW_EVERY:
                    drawn = perf_counter()
                    _draw_curve(training)
            if training.slow and not slow:
                console.print(
                    f"the rate fell to {line['time']['rate']:,.0f} env-steps/s, more than 20% "
                    "below its recent level: is something else running?",
                    style="yellow",
                    soft_wrap=True,
                )
            slow = training.slow
    training.checkpoint()
    _draw_curve(training)
    if writer is not None:
        writer.close()
    say(f"wrote {folder / policy.FILE}")
    if stopped:
        again = ["--runs", str(folder.parent), "--tag", folder.name]
        say(f"stopped; this goes on: {shlex.join(['mjvec', 'train', '--resume', *again])}")
        return 130
    return 0


def _verify(verify: Any, config: RunConfig) -> int:
    """Train on every backend and compare all that is left."""
    trained = {}
    with progress_bar("updates") as progress:
        bar = progress.add_task("verify", total=verify.UPDATES * len(verify.CONTESTANTS))
        for name, placement in verify.CONTESTANTS.items():
            progress.update(bar, description=name)
            trained[name] = verify.train(
                config, advance=lambda count: progress.advance(bar, count), **placement
            )
    first = next(iter(trained.values()))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.title = f"{verify.UPDATES} updates: {_describe(config)}"
    for column in ("environments on", "arrays", "bytes", "SHA-256", "differences"):
        table.add_column(column)
    for name, result in trained.items():
        differences = result.differences(first)
        table.add_row(
            name,
            str(len(result.arrays)),
            f"{sum(array.nbytes for array in result.arrays.values()):,}",
            digest(result.arrays),
            ", ".join(differences) or "none",
            style="red" if differences else "",
        )
    console.print(table)
    equal = not any(result.differences(first) for result in trained.values())
    console.print(
        "[green]The same policy, byte for byte.[/green]" if equal else "[red]Not equal.[/red]"
    )
    print_facts(machine.describe())
    return 0 if equal else 1


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """Gather the first Ctrl-C or SIGTERM, so that the update can end; let the second through."""
    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        for which in before:
            signal.signal(which, signal.default_int_handler)
        console.print("stopping after this update (again to stop at once)")

    before = {which: signal.signal(which, stop) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Take SIGTERM as a Ctrl-C: what cannot go on from where it was is told of, and ends."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _describe(config: RunConfig) -> str:
    ppo = config.ppo
    return (
        f"{describe(config.env)}, seed {config.seed}, "
        f"{ppo.n} environments x {ppo.steps} steps, {ppo.total_steps:,} steps in all"
    )


def _brief(line: Line) -> str:
    mean = "–" if line["return"] is None else _return(line["return"])
    clip, kl, std, rate = (
        "–" if line[name] is None else form.format(line[name])
        for name, form in (
            ("clip_fraction", "{:.3f}"),
            ("kl", "{:.4f}"),
            ("std", "{:.3f}"),
            ("learning_rate", "{:.2e}"),
        )
    )
    return (
        f"{line['steps']:>10,} steps {line['time']['rate']:>6,.0f}/s  return {mean:>4}  "
        f"clip {clip}  KL {kl}  σ {std}  lr {rate}"
    )


def _tested(evaluation: dict[str, float]) -> str:
    if "upright" in evaluation:
        more = f"upright {evaluation['upright']:.0%}"
    else:
        more = f"{evaluation['length']:.0f} steps, {evaluation['terminated']:.0%} terminated"
    return f"  evaluated {_return(evaluation['return'])}, {more}"


def _return(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2f}"


def _draw_curve(training: Any) -> None:
    with _unless_it_cannot():
        curve = report.Curve("training", read_log(training.folder))
        report.curves_plot([curve], _describe(training.config), training.folder / CURVE)


@contextmanager
def _unless_it_cannot() -> Iterator[None]:
    """Draw a plot, or say why not: that is no reason to end a training."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        say(f"no plot: {error}")


def _tensorboard(folder: Path, begun: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--tensorboard needs tensorboard: pip install tensorboard") from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=begun + 1)


def _write_scalars(writer: Any, line: Line) -> None:
    values = {**line, **line["time"]} | {
        f"evaluation/{name}": value for name, value in line.get("evaluation", {}).items()
    }
    for name, value in values.items():
        if isinstance(value, int | float):
            writer.add_scalar(name, value, line["steps"])


def _recover(options: argparse.Namespace) -> int:
    config = RecoverConfig(**{o.name: getattr(options, o.name) for o in fields(RecoverConfig)})
    check_integer("seed", options.seed, 0)
    choose_threads(config.rollouts, options.threads, False)
    standing = policy.Policy.load(options.policy)
    if not options.tag:
        raise ValueError("--tag must not be empty")
    folder = options.runs / options.tag
    refuse_used(folder)
    try:
        from mujoco_vecenv.train import recover, run
    except ImportError as error:
        raise ImportError(_NEEDS_TORCH.format(error)) from error
    recover.pushable(standing)
    with locked(folder), run.torch_threads(1):
        _teach(standing, config, options.seed, options.threads, folder)
    return 0


def _teach(
    standing: policy.Policy, config: RecoverConfig, seed: int, threads: int | None, folder: Path
) -> None:
    """Teach a policy to recover, and write it and the log into a folder.

    Raises:
        ValueError: the policy does not stand; no log is left.
        RuntimeError: it no longer stands once it was taught; the log is left.
    """
    from mujoco_vecenv.train import recover

    stages = recover.stages(config)
    lines: list[dict[str, Any]] = []
    say(f"{folder}: learning to recover, {recover.steps(config):,} steps in all, seed {seed}")
    with (
        open(folder / RECOVERY, "w", buffering=1) as log,
        progress_bar("of each stage") as progress,
        _sigterm_interrupts(),
    ):
        bars = {stage: progress.add_task(stage, total=total) for stage, total in stages.items()}

        def tell(line: dict[str, Any]) -> None:
            log.write(json.dumps(line) + "\n")
            lines.append(line)
            stage, done = line["stage"], line["iteration"]
            progress.update(bars[stage], completed=done)
            if done % 10 == 0 or done == stages[stage]:
                share = "–" if line["recovered"] is None else f"{line['recovered']:.0%}"
                say(f"{stage:>15} {done:>4} of {stages[stage]}  {share} of the pushes recovered")

        share = choose_threads(config.rollouts, threads, False)
        try:
            learned = recover.recover(standing, config, seed, share, tell)
        except ValueError:
            (folder / RECOVERY).unlink()
            raise
    learned.save(folder / policy.FILE)
    say(f"wrote {folder / policy.FILE}")
    with _unless_it_cannot():
        report.recovery_plot(lines, f"{folder}: learning to recover", folder / RECOVERY_PLOT)
