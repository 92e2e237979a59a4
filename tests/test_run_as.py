"""A script written for a process-based vec_env runs unedited, with equal results."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "scripts" / "climb.py"


def run(command, **variables):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=os.environ | {k: str(v) for k, v in variables.items()},
        timeout=120,
    )


def run_as(*arguments, **variables):
    return run(["-m", "mujoco_vecenv", "run-as", *map(str, arguments)], **variables)


@pytest.mark.parametrize("dr", [[], ["--dr"]])
def test_equal_results_without_an_edit(tmp_path, dr):
    plain = run([str(SCRIPT), str(tmp_path / "plain.npz"), *dr])
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.startswith("vec_env ")
    choices = {
        "batch": {"MUJOCO_VECENV_THREADS": 2},
        "process": {"MUJOCO_VECENV_BACKEND": "process"},
        "sync": {"MUJOCO_VECENV_BACKEND": "sync"},
    }
    for name, variables in choices.items():
        result = run_as("vec_env", SCRIPT, tmp_path / f"{name}.npz", *dr, **variables)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("mujoco_vecenv.run_as ")
        with np.load(tmp_path / "plain.npz") as one, np.load(tmp_path / f"{name}.npz") as other:
            assert one["weights"].tobytes() == other["weights"].tobytes()
            assert one["log"].tobytes() == other["log"].tobytes()


def write(tmp_path, source):
    script = tmp_path / "script.py"
    script.write_text(source)
    return script


def test_what_the_script_sees(tmp_path):
    script = write(
        tmp_path,
        "import sys, vec_env\n"
        "print(__name__, sys.argv[1:], vec_env.MAX_WORKERS)\n"
        "print(sys.path[1] == sys.argv[0].rpartition('/')[0])\n"
        "envs = vec_env.VecEnv(2)\n"
        "print(envs.backend, envs.threads)\n"
        "sys.exit(7)\n",
    )
    result = run_as("vec_env", script, "--flag", "x", MUJOCO_VECENV_MAX_WORKERS=64)
    assert result.stdout.split("\n")[:2] == ["__main__ ['--flag', 'x'] 64", "True"]
    assert result.stdout.split("\n")[2] in ("batch 1", "batch 2")
    assert result.returncode == 7


def test_a_module_in_a_package(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("WHOSE = 'mine'\n")
    (tmp_path / "mine" / "vec_env.py").write_text("raise SystemExit('the old one')\n")
    script = write(
        tmp_path,
        "from mine import WHOSE\n"
        "from mine.vec_env import VecEnv\n"
        "print(WHOSE, VecEnv.__module__)\n",
    )
    result = run_as("mine.vec_env", script)
    assert result.stdout == "mine mujoco_vecenv.run_as\n", result.stderr


def test_errors_are_the_scripts_own(tmp_path):
    script = write(
        tmp_path, "from vec_env import VecEnv\n\n\ndef f():\n    VecEnv(rewart='v2')\n\n\nf()\n"
    )
    result = run_as("vec_env", script)
    assert result.returncode == 1
    assert "run_as.py" not in result.stderr.partition("script.py")[0]
    assert 'script.py", line 5, in f' in result.stderr
    assert "did you mean 'reward'?" in result.stderr


def test_unusable_command_lines(tmp_path):
    script = write(tmp_path, "from vec_env import VecEnv\nVecEnv()\n")
    for arguments, variables, message in (
        (["vec_env", tmp_path / "no.py"], {}, "there is no script"),
        (["vec-env", script], {}, "'vec-env' is no name of a module"),
        (["vec_env", script], {"MUJOCO_VECENV_MAX_WORKERS": "many"}, "integer of 1 or more"),
        (["vec_env", script], {"MUJOCO_VECENV_BACKEND": "batsch"}, "did you mean 'batch'?"),
        (["vec_env", script], {"MUJOCO_VECENV_THREADS": "0"}, "THREADS must be an integer of 1"),
    ):
        result = run_as(*arguments, **variables)
        assert result.returncode == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr
