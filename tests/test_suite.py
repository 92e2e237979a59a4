"""Every task against its reference, to the last bit, and the proof that a difference is seen."""

import inspect
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from mujoco_vecenv import task_contract
from mujoco_vecenv.cli import main
from mujoco_vecenv.task_contract import cases_of, run_task_contract
from mujoco_vecenv.tasks import RESERVED, TASKS, make_task
from mujoco_vecenv.vector.gymnasium_env import TaskVectorEnv
from mujoco_vecenv.vector.task_vec_env import TaskVecEnv

SUITE = [name for name in TASKS if name != "Microduck-v0"]


@pytest.mark.parametrize("task", TASKS)
def test_equal_with_all_its_options(task):
    cases = cases_of(task)
    assert len(cases) > 1
    report = run_task_contract([task], episodes=20, observations=1000, episode_steps=150)
    assert report.total.first == ""
    assert report.equal
    assert report.total.episodes >= 20
    assert report.total.observations >= 1000
    assert len(report.cases) == len(cases)


@pytest.mark.parametrize("task", SUITE)
def test_every_option_that_gymnasium_has_is_covered(task):
    reference = inspect.signature(task_contract.task_module(task).reference).parameters
    ours = inspect.signature(task_contract.task_module(task).make).parameters
    rendering = {"default_camera_config", "kwargs"}
    assert {n: p.default for n, p in ours.items()} == {
        n: p.default for n, p in reference.items() if n not in rendering
    }
    tried = {name for case in cases_of(task) for name in case}
    assert tried | {"xml_file"} == set(ours)


@pytest.mark.parametrize("task", SUITE)
def test_time_limits_are_gymnasiums(task):
    assert make_task(task).episode_steps == gymnasium.spec(task).max_episode_steps


@pytest.mark.parametrize(
    ("task", "option", "value"),
    [
        ("HalfCheetah-v5", "forward_reward_weight", np.nextafter(1.0, 2)),
        ("Hopper-v5", "healthy_reward", np.nextafter(1.0, 2)),
        ("Reacher-v5", "reward_dist_weight", np.nextafter(1.0, 2)),
        ("Ant-v5", "contact_cost_weight", np.nextafter(5e-4, 1)),
        ("Humanoid-v5", "forward_reward_weight", np.nextafter(1.25, 2)),
    ],
)
def test_a_weight_changed_in_its_last_bit_is_noticed(task, option, value, monkeypatch):
    real = task_contract.TaskVectorEnv

    def changed(*arguments, **options):
        return real(*arguments, **{option: value} | options)

    monkeypatch.setattr(task_contract, "TaskVectorEnv", changed)
    monkeypatch.setattr(task_contract, "cases_of", lambda task: [{}])
    report = run_task_contract([task], episodes=4, observations=400, episode_steps=100)
    assert not report.equal
    assert report.total.observations == report.total.identical
    assert "at step" in report.total.first


def test_a_reset_with_other_noise_is_noticed(monkeypatch):
    real = task_contract.TaskVectorEnv

    def changed(*arguments, **options):
        return real(*arguments, **{"reset_noise_scale": np.nextafter(0.1, 1)} | options)

    monkeypatch.setattr(task_contract, "TaskVectorEnv", changed)
    report = run_task_contract(["Swimmer-v5"], episodes=1, observations=10, episode_steps=20)
    assert report.total.identical < report.total.observations


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("ctrl_cost_weight", "x", "must be a number, got 'x'"),
        ("healthy_z_range", None, "must be 2 numbers, got None"),
        ("healthy_z_range", (1,), r"must be 2 numbers, got \(1,\)"),
        ("terminate_when_unhealthy", 1, "must be True or False, got 1"),
        ("healthy_z_range", (True, 2.0), r"must be 2 numbers, got \(True, 2.0\)"),
        ("frame_skip", "4", "must be an integer, got '4'"),
        ("frame_skip", None, "must be an integer, got None"),
        ("xml_file", None, "must be a text, got None"),
        ("ctrl_cost", 1, "unknown option 'ctrl_cost' .did you mean 'ctrl_cost_weight'?"),
    ],
)
def test_options_of_another_kind_are_refused_by_name(option, value, message):
    with pytest.raises(TypeError, match=f"task Hopper-v5: .*{message}"):
        make_task("Hopper-v5", **{option: value})
    assert make_task("Hopper-v5", healthy_z_range=[np.float32(0.5), np.inf], healthy_reward=2)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("Hopper-v5", {"reset_noise_scale": np.nan}, "reset_noise_scale must be finite, got nan"),
        ("Ant-v5", {"reset_noise_scale": np.inf}, "reset_noise_scale must be finite, got inf"),
        ("Hopper-v5", {"reset_noise_scale": -0.1}, "reset_noise_scale must be 0 or more, got -0.1"),
    ],
)
def test_options_outside_their_range_are_refused(task, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(task, **options)


@pytest.mark.parametrize("task", SUITE)
def test_frame_skip_is_refused_by_its_own_name(task):
    with pytest.raises(ValueError, match=f"task {task}: frame_skip must be 1 or more, got 0"):
        make_task(task, frame_skip=0)


def test_a_model_is_given_by_any_path(tmp_path):
    path = tmp_path / "other.xml"
    path.write_text(make_task("Hopper-v5").model.read_text())
    assert make_task("Hopper-v5", xml_file=path).model == path


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, int])
def test_options_of_any_kind_of_number_are_equal_too(kind, monkeypatch):
    options = {"ctrl_cost_weight": kind(2), "forward_reward_weight": kind(3)}
    monkeypatch.setattr(task_contract, "cases_of", lambda task: [options])
    assert run_task_contract(
        ["HalfCheetah-v5"], episodes=1, observations=90, episode_steps=20
    ).equal


def test_an_option_without_a_default_of_any_kind_takes_anything(tmp_path):
    path = tmp_path / "anything.py"
    path.write_text("def make(names=()):\n    raise ValueError(names)\n")
    with pytest.raises(ValueError, match=r"\('body_mass',\)"):
        make_task(str(path), names=("body_mass",))


def test_a_models_warnings_are_given_once(tmp_path):
    """HalfCheetah's, whose model is compiled several times over."""
    code = (
        "from mujoco_vecenv.vector.gymnasium_env import TaskVectorEnv\n"
        "TaskVectorEnv('HalfCheetah-v5', 2).close()\n"
        "TaskVectorEnv('HalfCheetah-v5', 2).close()\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stderr.count("WARNING: compiler attribute 'settotalmass' is deprecated") == 1


def test_the_command(capsys, tmp_path):
    json = tmp_path / "contract.json"
    command = ["contract", "--task", "InvertedPendulum-v5", "Reacher-v5", "--episodes", "2"]
    assert main([*command, "--json", str(json)]) == 0
    out = capsys.readouterr().out
    assert "Equal to the last bit." in out
    assert "rewards   infos" in out, "80 columns show every column"
    assert '"equal": true' in json.read_text()


def test_the_command_compares_options_of_ones_own(capsys):
    command = ["contract", "--task", "Swimmer-v5", "Swimmer-v5", "--episodes", "1"]
    assert main([*command, "--option", "frame_skip=2", "--option", "reset_noise_scale=0.3"]) == 0
    out = capsys.readouterr().out
    assert out.count("Swimmer-v5, frame_skip=2") == 1
    assert "Equal to the last bit." in out
    assert main([*command, "--option", "frameskip=2"]) == 2
    assert "did you mean 'frame_skip'?" in capsys.readouterr().err
    assert main(["contract", "--option", "frame_skip=2"]) == 2
    assert "--option is for a --task" in capsys.readouterr().err
    assert main(["contract", "--task", "all", "--option", "frame_skip=2"]) == 2
    assert "task Microduck-v0: unknown keyword 'frame_skip'" in capsys.readouterr().err


def test_what_environments_are_told_is_reserved():
    told = {
        name
        for environments in (TaskVecEnv, TaskVectorEnv)
        for name in inspect.signature(environments).parameters
    }
    assert told - {"options"} == set(RESERVED)


def test_options_are_compared_with_actions_of_either_dtype(monkeypatch):
    seen = []
    compare = task_contract._compare
    monkeypatch.setattr(
        task_contract, "_compare", lambda *given: seen.append(given[3]) or compare(*given)
    )
    report = run_task_contract(
        ["Reacher-v5"], episodes=4, observations=200, options={"reward_dist_weight": 2.0}
    )
    assert seen == [np.float32, np.float64]
    (tally,) = report.cases.values()
    assert tally.episodes >= 4
    assert tally.observations >= 200


def test_the_command_refuses_an_unknown_task(capsys):
    assert main(["contract", "--task", "HalfCheeta-v5"]) == 2
    assert "did you mean 'HalfCheetah-v5'?" in capsys.readouterr().err
