"""docs/new-task.md holds as it is written, and `mjvec new-task` writes what it shows."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from mujoco_vecenv import cli
from mujoco_vecenv.new_task import TEMPLATE
from mujoco_vecenv.train.config import PPOConfig

DOCUMENT = Path(__file__).parents[1] / "docs" / "new-task.md"
BLOCK = re.compile(r"(?:^`(\S+)`\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer(DOCUMENT.read_text())]
FILES = {name: text for name, _, text in BLOCKS if name}
COMMANDS = [line for name, kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]

SMALL = {"--total-steps 200000": f"--total-steps {32 * PPOConfig.steps}"}
"""What is made smaller of the document's commands: one update instead of 25."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the document's files."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_takes_fewer_than_a_hundred_lines_of_code():
    assert list(FILES) == ["cartpole.xml", "cartpole.py", "look.py", "check.py", "use.py"]
    lines = [line for text in FILES.values() for line in text.splitlines() if line.strip()]
    assert len(lines) < 100


def test_the_template_is_what_the_document_shows():
    for name in ("cartpole.xml", "cartpole.py"):
        assert (TEMPLATE / name).read_text() == FILES[name]


def test_look(folder, capsys):
    """The pole falls over in less than a second, of 50 steps."""
    end = runpy.run_path("look.py")
    assert end["terminated"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == end["env"].elapsed
    assert len(lines) < 50


def test_check(folder):
    """Compiled equals plain Python, over several episodes."""
    end = runpy.run_path("check.py")
    assert (end["obs"] == end["same_obs"]).all()
    with end["plain"] as plain, end["compiled"] as compiled:
        state, same = plain.get_state(), compiled.get_state()
    assert {name: a.tobytes() for name, a in state.items()} == {
        name: a.tobytes() for name, a in same.items()
    }
    # Episodes of 250 steps at most: each environment is in its fifth, or a later one.
    assert end["compiled"].task.episode_steps == 250


def test_use(folder, capsys):
    pytest.importorskip("gymnasium")
    envs = runpy.run_path("use.py")["envs"]
    assert envs.num_envs == 32
    assert envs.single_observation_space.shape == (5,)
    assert envs.single_action_space.low == [-1]
    assert capsys.readouterr().out.startswith("(32, 5) ")


def test_contract(folder, capsys):
    assert cli.main(shlex.split(COMMANDS[2])[1:]) == 0
    assert "Equal to the last bit." in capsys.readouterr().out


def test_the_other_commands(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    assert [line.split()[:2] for line in COMMANDS] == [
        ["mjvec", "new-task"],
        ["cd", "cartpole"],
        ["mjvec", "contract"],
        ["mjvec", "train"],
        ["mjvec", "eval"],
    ]
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS[:2] + COMMANDS[3:]:
        for shown, small in SMALL.items():
            line = line.replace(shown, small)
        program, *arguments = shlex.split(line)
        if program == "cd":
            monkeypatch.chdir(Path.cwd() / arguments[0])
        else:
            assert cli.main(arguments) == 0, line
    assert Path("cartpole.py").read_text() == FILES["cartpole.py"]
    assert Path("runs/cartpole/policy.npz").is_file()
    assert "terminated by the task" in capsys.readouterr().out


def test_new_task(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-task", "hover"]) == 0
    assert sorted(path.name for path in Path("hover").iterdir()) == ["hover.py", "hover.xml"]
    assert Path("hover/hover.py").read_text() == FILES["cartpole.py"]
    assert Path("hover/hover.xml").read_text() == FILES["cartpole.xml"]
    out = capsys.readouterr().out
    assert "wrote hover/hover.py and hover/hover.xml" in out.replace("\n", " ")
    assert "\n  mjvec train --task hover/hover.py --n 32 --total-steps 200000 --tag hover " in out

    Path("hover/hover.py").write_text("mine")
    assert cli.main(["new-task", "hover"]) == 2
    assert "hover is there already: nothing was written" in capsys.readouterr().err
    assert Path("hover/hover.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["my-task", "2d", "class", "a/b", "../up", ""])
def test_a_new_tasks_name_must_do_as_a_modules(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-task", name]) == 2
    assert f"{name!r} cannot be a task's name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["numpy", "random", "mujoco_vecenv"])
def test_a_new_task_hides_no_module(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-task", name]) == 2
    assert f"would hide the module {name}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_episodes_without_an_end_are_compared_all_the_same(folder, capsys):
    text = FILES["cartpole.py"].replace("episode_steps=250", "episode_steps=None")
    Path("cartpole.py").write_text(text.replace("        terminated=terminated,\n", ""))
    command = ["contract", "--task", "cartpole.py", "--episodes", "1", "--option", "lean=0.1"]
    assert cli.main([*command, "--json", "result.json"]) == 0
    assert "Equal to the last bit." in capsys.readouterr().out
    total = json.loads(Path("result.json").read_text())["total"]
    assert total["episodes"] == 8
    assert total["identical"] == total["observations"] > 8000
