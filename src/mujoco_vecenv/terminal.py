"""What the commands share: the console, progress bars, the types of arguments."""

import argparse
import ast
import math
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console: Final = Console()


def progress_bar(unit: str) -> Progress:
    """Return a progress display with the time left, which vanishes when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def positive_integer(text: str) -> int:
    """Read a command line argument that is an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of 1 or more, got {text!r}")
    return int(text)


def task_option(parser: argparse.ArgumentParser) -> None:
    """Add --option, which gives a dictionary of a task's options."""
    parser.add_argument(
        "--option",
        type=_name_and_value,
        action=_TaskOption,
        metavar="NAME=VALUE",
        help="an option of the task, such as reset_noise_scale=0.2; once for each",
    )


class _TaskOption(argparse.Action):
    """Gathers names and values, no name twice."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        name, value = values
        given = getattr(namespace, self.dest, None) or {}
        if name in given:
            raise argparse.ArgumentError(self, f"{name} is given twice")
        setattr(namespace, self.dest, {**given, name: value})


def _name_and_value(text: str) -> tuple[str, Any]:
    """Read a task's option: Python's value where it is one, inf among them, and else the text."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(_Infinity().visit(ast.parse(value.strip(), mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return name, value


class _Infinity(ast.NodeTransformer):
    """Makes a number of the name inf."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(math.inf) if node.id == "inf" else node


def positive_seconds(text: str) -> float:
    """Read a command line argument that is a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return value


def new_file(text: str) -> Path:
    """Read a command line argument that is a file to write, in a folder that exists."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a folder that exists")
    return path


def say(text: str) -> None:
    """Print a line as it is: no markup in it, and wrapped by nothing but the terminal."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def picture(text: str) -> Path:
    """Read a command line argument that is a PNG file to write, in a folder that exists."""
    path = new_file(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} must end in .png")
    return path


def print_facts(facts: dict[str, str]) -> None:
    """Print what the machine and its software are."""
    for name, value in facts.items():
        console.print(f"{name:>14}  {value}", style="dim", highlight=False)
