"""The command line prints what it measured and says with its exit status how it went."""

import json
import re

import pytest

from mujoco_vecenv import cli, contract
from mujoco_vecenv.train.config import PRESETS


def test_contract_prints_and_records(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(contract, "CASES", contract.CASES[:2])
    file = tmp_path / "contract.json"
    arguments = ["contract", "--episodes", "1", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["/usr/bin/mjvec", *arguments])
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "Equal to the last bit." in out
    assert "mujoco  4" in out
    result = json.loads(file.read_text())
    assert result["command"] == f"mjvec contract --episodes 1 --json {file}"
    assert result["equal"] is True
    assert result["total"]["episodes"] == 4
    assert result["total"]["identical"] == result["total"]["observations"] == 1006
    for name in ("mujoco", "numpy", "numba", "python", "c library", "cpu"):
        assert result["machine"][name]


def test_contract_fails_on_any_difference(capsys, monkeypatch):
    monkeypatch.setattr(contract, "CASES", contract.CASES[:1])

    def differ(reference, candidate, steps, seed, advance):
        return contract.Tally(2, 503, 251, 1e-7, 1e-6, first="observation of environment 0")

    monkeypatch.setattr(contract, "compare", differ)
    assert cli.main(["contract", "--episodes", "1"]) == 1
    assert (
        "Not equal. The first difference: observation of environment 0" in capsys.readouterr().out
    )


@pytest.mark.parametrize("arguments", [[], ["contrakt"], ["contract", "--episodes", "0"]])
def test_unusable_command_lines(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err


def test_errors_are_one_line(capsys, monkeypatch):
    monkeypatch.setenv("MUJOCO_VECENV_ASSETS", "/nowhere")
    assert cli.main(["contract"]) == 2
    assert "/nowhere/scene.xml does not exist" in capsys.readouterr().err.replace("\n", " ")


def test_the_demo_ends_with_a_training(capsys, monkeypatch, tmp_path):
    """Its commands run as they are, only shorter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contract, "CASES", contract.CASES[:1])
    monkeypatch.setattr(cli.bench, "run_kind", lambda *arguments: 0)
    monkeypatch.setitem(PRESETS["minute"].ppo, "total_steps", 4096)
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "hold STAND" in out
    (folder,) = (tmp_path / "runs").iterdir()
    for name in ("curve.png", "evaluation.png", "policy.npz"):
        assert (folder / name).stat().st_size > 5000


@pytest.mark.parametrize(
    "command", ["eval x", "compare-runs x", "train --resume x", "replay x", "bench show x"]
)
def test_what_is_not_there_is_named(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    name = command.split()[0]
    assert re.fullmatch(rf"mjvec {name}: x\S*: No such file or directory", line)
