"""`mjvec new-task`: a folder with a task to begin from, the cart-pole of docs/new-task.md."""

import keyword
from pathlib import Path

from mujoco_vecenv.tasks import importable

TEMPLATE = Path(__file__).parent / "template"


def write_task(name: str) -> list[Path]:
    """Write a task and its model into a new folder.

    Args:
        name: of the folder, and of the files in it.

    Returns:
        The task's file and its model's.

    Raises:
        ValueError: the name could not be that of a Python module, or is that of another one.
        FileExistsError: there is something of that name already.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(
            f"{name!r} cannot be a task's name: it must do as a Python module's, such as my_task"
        )
    folder = Path(name)
    if not folder.exists() and importable(name):
        raise ValueError(
            f"{name!r} cannot be a task's name: its file would hide the module {name} from all "
            "that lies beside it; choose another"
        )
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise FileExistsError(f"{name} is there already: nothing was written") from error
    written = []
    for suffix in (".py", ".xml"):
        file = folder / f"{name}{suffix}"
        file.write_text((TEMPLATE / f"cartpole{suffix}").read_text())
        written.append(file)
    return written
