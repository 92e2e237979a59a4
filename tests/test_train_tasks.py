"""Training on any task: the same bytes everywhere, ends that are told apart, actions in range."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mujoco_vecenv import cli
from mujoco_vecenv.contract import same_bits
from mujoco_vecenv.engine.twin import TaskEnv
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.tasks import make_task
from mujoco_vecenv.train import evaluate, export, verify
from mujoco_vecenv.train import folder as folders
from mujoco_vecenv.train import run as run_module
from mujoco_vecenv.train.compare import Finished, groups
from mujoco_vecenv.train.config import PRESETS, PPOConfig
from mujoco_vecenv.train.environments import ActionScale, TaskConfig, make_envs
from mujoco_vecenv.train.evaluate import TaskEpisodes, run_task_episodes, task_summary
from mujoco_vecenv.train.folder import RunConfig, read_checkpoint, read_log
from mujoco_vecenv.train.policy import Policy
from mujoco_vecenv.train.ppo import PPO
from mujoco_vecenv.train.run import Run

PENDULUM = "InvertedPendulum-v5"
SMALL = ["--n", "4", "--steps", "16", "--minibatches", "2", "--hidden", "16", "--threads", "1"]

TALLY = '''
"""Counts its steps, and ends when it is told to."""

from pathlib import Path

from mujoco_vecenv.engine.task import Task


def reset(qpos):
    qpos[0] = 0.0


def reward():
    return 1.0


def terminated(elapsed, params):
    return elapsed + 1 == params.end


def observe(qpos, ctrl, obs):
    obs[0] = 1e9 + 1.0
    obs[1] = ctrl[0]


def make(end=0, limit=4):
    return Task(
        name="tally",
        model=Path(__file__).with_suffix(".xml"),
        substeps=1,
        episode_steps=limit,
        observations=2,
        params={"end": end},
        reset=reset,
        reward=reward,
        terminated=terminated,
        observe=observe,
    )
'''
MODEL = """
<mujoco>
  <worldbody>
    <body><joint name="slide" type="slide"/><geom size="0.1"/></body>
  </worldbody>
  <actuator><motor joint="slide" {range}/></actuator>
</mujoco>
"""


def write_tally(folder: Path, limits: str = 'ctrlrange="-2 6"') -> str:
    folder.mkdir(exist_ok=True)
    (folder / "tally.py").write_text(TALLY)
    (folder / "tally.xml").write_text(MODEL.format(range=limits))
    return str(folder / "tally.py")


@pytest.fixture
def tally(tmp_path):
    return write_tally(tmp_path / "task")


@pytest.fixture
def often(monkeypatch):
    """Evaluate a little and write checkpoints, after every other update."""
    monkeypatch.setattr(run_module, "EVERY", 2)
    monkeypatch.setattr(run_module, "EVALUATION_EPISODES", 1)


def small(task, **changes) -> RunConfig:
    values = {"n": 4, "steps": 16, "minibatches": 2, "epochs": 2, "hidden": 16}
    return RunConfig(PPOConfig(**values | {"total_steps": 640} | changes), TaskConfig(task))


def failure(capsys, *arguments) -> str:
    """Run a command that must fail, and return what it says."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.replace("\n", " ")


# The same policy.


@pytest.mark.parametrize(
    ("task", "steps", "sizes", "ends", "terminates"),
    [
        ("HalfCheetah-v5", 340, (17, 6), 4, False),
        ("Hopper-v5", 32, (11, 3), 8, True),
        (PENDULUM, 32, (4, 1), 40, True),
    ],
)
def test_every_backend_trains_the_same_policy(task, steps, sizes, ends, terminates, often):
    """Three updates, in which episodes end: all of them truncated, or almost all terminated."""
    config = small(task, steps=steps, minibatches=4, total_steps=10**4)
    trained = {
        name: verify.train(config, 3, **placement) for name, placement in verify.CONTESTANTS.items()
    }
    first = trained["sync"]
    assert [("evaluation" in line) for line in first.log] == [False, True, False]
    assert set(first.log[1]["evaluation"]) == {"return", "sd_episodes", "length", "terminated"}
    assert first.log[-1]["episodes"] >= ends
    assert first.log[1]["evaluation"]["terminated"] == terminates
    assert first.arrays["actor.0.weight"].shape == (16, sizes[0])
    assert first.arrays["actor.4.weight"].shape == (sizes[1], 16)
    for result in trained.values():
        assert result.differences(first) == []


def run_to_end(folder, config, checkpoint=None, **placement):
    with Run(config, folder, checkpoint=checkpoint, **placement) as run:
        while run.ppo.steps_done < run.config.ppo.total_steps:
            run.update()
        run.checkpoint()


def left_behind(folder):
    """Return all that must not depend on interruptions."""
    log = [verify.timeless(line) for line in read_log(folder)]
    return log, [(folder / name).read_bytes() for name in (folders.CHECKPOINT, "policy.npz")]


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "Hopper-v5", PENDULUM])
def test_a_resumed_run_ends_with_the_same_bytes(task, tmp_path, often):
    run_to_end(tmp_path / "whole", small(task), threads=2)
    with Run(small(task), tmp_path / "parts", backend="sync") as run:
        for _ in range(7):  # one more than the last checkpoint
            run.update()
    checkpoint = read_checkpoint(tmp_path / "parts")
    assert checkpoint.config == small(task)
    assert int(checkpoint.arrays["updates"]) == 6
    run_to_end(tmp_path / "parts", checkpoint.config, checkpoint, threads=1)
    assert left_behind(tmp_path / "parts") == left_behind(tmp_path / "whole")


def test_the_command_killed_and_resumed(tmp_path):
    base = [sys.executable, "-m", "mujoco_vecenv", "train", "--runs", str(tmp_path)]
    options = ["--task", "Hopper-v5", "--option", "reset_noise_scale=0.01", *SMALL]
    options += ["--total-steps", "2560"]
    assert cli.main([*base[3:], "--tag", "whole", *options]) == 0
    process = subprocess.Popen([*base, "--tag", "killed", *options], stdout=subprocess.DEVNULL)
    log = tmp_path / "killed" / folders.LOG
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= 25:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert cli.main([*base[3:], "--tag", "killed", "--resume"]) == 0
    assert len(read_log(tmp_path / "killed")) == 40
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")


def test_verify_backends_says_so(tally, capsys):
    arguments = ["--task", tally, "--option", "end=3", "--verify-backends", *SMALL]
    assert cli.main(["train", *arguments]) == 0
    out = capsys.readouterr().out
    assert "The same policy, byte for byte." in out
    assert out.count(" none") == 4
    assert "end=3" in out


# What PPO makes of a task.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"end": 4, "limit": 100}, [-5.390625, -5.5625, -6.25, -9]),
        ({"end": 0, "limit": 4}, [-5.3125, -5.25, -5, -4]),
        ({"end": 4, "limit": 4}, [-5.390625, -5.5625, -6.25, -9]),
    ],
    ids=["terminated", "truncated", "both at once"],
)
@pytest.mark.parametrize("backend", ["batch", "sync"])
def test_a_terminated_end_is_worth_nothing_and_a_truncated_one_is_bootstrapped(
    tally, options, expected, backend
):
    """A reward of 1 each step, a critic that says 10 of everything, gamma = lambda = 1/2.

    A step gains 1 + 10/2 - 10 = -4, and the last one before a terminated end 1 - 10 = -9; a quarter
    of what the next step gains is added.
    """
    config = PPOConfig(n=2, steps=8, minibatches=2, hidden=8, gamma=0.5, gae_lambda=0.5)
    with make_envs(TaskConfig(tally, options), 2, backend=backend) as envs:
        learner = PPO(config, envs, 1, seed=0)
        with torch.no_grad():
            learner.critic[-1].weight.zero_()
            learner.critic[-1].bias.fill_(10)
        rollout = learner._collect()
        _, values, advantages = learner._advantages(rollout)
        learner.close()
    assert sorted(rollout.terminal) == [(3, 0), (3, 1), (7, 0), (7, 1)]
    assert rollout.terminated == (set(rollout.terminal) if options["end"] else set())
    assert rollout.returns == [4.0] * 4
    assert (values == 10).all()
    assert advantages.reshape(8, 2).T.tolist() == [expected * 2] * 2


def test_observations_are_cast_once_and_actions_are_mapped(tally):
    with Run(small(tally)) as run:
        ppo, envs = run.ppo, run.envs
        assert envs.reset().dtype == np.float64
        rollout = ppo._collect()
        raw = ppo._actions.numpy()[..., 0]
        # The motor has what the policy wanted: -1 … 1 is -2 … 6, clipped.
        expected = np.clip(4 * raw + 2, -2, 6)
        assert (raw.min(), raw.max()) < (-1, 1)
        assert (expected.min(), expected.max()) == (-2, 6)
        last = np.stack([rollout.terminal[3, i] for i in range(4)])
        seen = np.concatenate([ppo._obs[1:4], last[None]])
    assert last.dtype == ppo._obs.dtype == np.float32
    np.testing.assert_array_equal(seen[..., 0], np.float32(1e9 + 1))
    np.testing.assert_allclose(seen[..., 1], expected[:4], rtol=1e-6)


def test_the_scale_of_actions():
    scale = ActionScale([-3, 0, -np.inf, 0], [3, 2, np.inf, np.inf])
    actions = np.array([[-1, -1, -7, -7], [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [9, 9, 9, 9]])
    scaled = scale(actions.astype(np.float32))
    assert scaled.dtype == np.float32
    assert scaled.tolist() == [[-3, 0, -7, -7], [0, 1, 0, 0], [1.5, 1.5, 0.5, 0.5], [3, 2, 9, 9]]
    low, high = np.float32(-0.1), np.float32(0.3)
    ends = ActionScale([low], [high])(np.array([[-1], [1]], np.float32))
    np.testing.assert_allclose(ends[:, 0], [low, high], rtol=1e-7)
    assert low <= ends[0, 0] < ends[1, 0] <= high  # not beyond, by a rounding
    drawn = evaluate.random_actions(scale=scale)(np.zeros((100, 7)))
    uniform = np.random.default_rng(0).uniform(-1, 1, (100, 4)).astype(np.float32)
    np.testing.assert_array_equal(drawn, scale(uniform))
    for bottom, top in ((0, 0), (1, -1), (np.nan, 1)):
        with pytest.raises(ValueError, match=r"action 1 has the limits .*give its actuator"):
            ActionScale([-1, bottom], [1, top])


def test_an_actuator_without_limits_is_named(tmp_path):
    task = write_tally(tmp_path / "task", limits="")
    with pytest.raises(ValueError, match="task tally: action 0 has the limits 0 and 0"):
        Run(small(task))


# A policy that has learned.


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """The folder of a run of a few seconds."""
    runs = tmp_path_factory.mktemp("runs")
    ppo = "--n 8 --steps 64 --minibatches 4 --epochs 10 --hidden 32 --total-steps 10240"
    rates = "--learning-rate 1e-3 --reward-scale 0.1"
    base = ["train", "--task", PENDULUM, "--runs", str(runs), "--tag", "pendulum"]
    assert cli.main([*base, *ppo.split(), *rates.split()]) == 0
    return runs / "pendulum"


def test_it_learns_to_balance(pendulum):
    """A pole that nobody balances falls within 30 steps or so; 1,000 is all there is."""
    log = read_log(pendulum)
    assert log[0]["return"] < 40
    assert log[-1]["return"] > 2 * log[0]["return"]
    assert log[-1]["evaluation"]["return"] > 200
    # A reward of 1 each step but the one in which it fell.
    fell = log[-1]["evaluation"]["terminated"]
    assert log[-1]["evaluation"]["return"] == pytest.approx(log[-1]["evaluation"]["length"] - fell)


def test_evaluation_equals_one_environment_at_a_time(pendulum):
    policy = Policy.load(pendulum)
    assert policy.config == TaskConfig(PENDULUM)
    act = policy.actor()
    episodes = run_task_episodes(act, policy.config, 200_000, 3, threads=2)
    for j in range(3):
        env = TaskEnv(make_task(PENDULUM))
        obs, _ = env.reset(200_000 + j)
        total, steps, over = 0.0, 0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs[None])[0])
            total, steps, over = total + reward, steps + 1, terminated or truncated
        assert episodes.returns[j] == total
        assert episodes.lengths[j] == steps
        assert episodes.terminated[j] == terminated


def test_what_an_evaluation_says():
    one = TaskEpisodes(np.array([1.0, 3.0]), np.array([10, 30]), np.array([True, False]))
    other = TaskEpisodes(np.array([5.0, 5.0]), np.array([20, 20]), np.array([True, True]))
    result = task_summary([one, other])
    assert result["returns"] == [1, 3, 5, 5]
    assert result["return"]["per_seed"] == [2, 5]
    assert result["return"]["mean"] == 3.5
    assert result["return"]["sd_seeds"] == pytest.approx(3 / np.sqrt(2))
    assert (result["length"], result["lengths"]) == (20, [10, 30, 20, 20])
    assert (result["terminated"], result["truncated"]) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("options", "length", "terminated"),
    [({"end": 3}, 3, 1), ({}, 4, 0), ({"end": 4}, 4, 1), ({"limit": None}, 1000, 0)],
)
def test_episodes_end_as_their_task_says(tally, options, length, terminated):
    """Terminated, truncated, both at once, and one that would never end."""
    config = TaskConfig(tally, options)
    result = evaluate.evaluate(lambda obs: np.zeros((len(obs), 1)), config, 2, [0, 1])
    assert result["returns"] == result["lengths"] == [length] * 4
    assert result["terminated"] == terminated
    assert result["truncated"] == 1 - terminated


def test_eval_prints_writes_and_draws(pendulum, tmp_path, capsys):
    file, plot = tmp_path / "e.json", tmp_path / "e.png"
    few = ["--episodes", "4", "--seeds", "2", "--json", str(file), "--plot", str(plot)]
    assert cli.main(["eval", str(pendulum), *few]) == 0
    out = capsys.readouterr().out
    for text in ("episode length, steps", "terminated by the task", "truncated by a limit"):
        assert text in out
    assert "upright" not in out
    results = json.loads(file.read_text())["results"]
    policy = Policy.load(pendulum)
    assert results["policy"] == evaluate.evaluate(policy.actor(), policy.config, 4, range(2))
    assert results["random"]["return"]["mean"] < 40 < results["policy"]["return"]["mean"]
    assert results["random"]["terminated"] == 1
    assert plot.read_bytes()[:4] == b"\x89PNG"
    # Another noise at the start, and another task's options are none of this one's.
    assert cli.main(["eval", str(pendulum), *few, "--option", "reset_noise_scale=0.1"]) == 0
    noisy = json.loads(file.read_text())["results"]
    assert noisy["random"]["returns"] != results["random"]["returns"]


def test_the_exported_policy_gives_the_actions_of_the_environment(pendulum, tmp_path, capsys):
    path = tmp_path / "pendulum.onnx"
    assert cli.main(["export", str(pendulum), "--out", str(path)]) == 0
    assert "against PyTorch on 1,000 observations" in capsys.readouterr().out
    policy = Policy.load(pendulum)
    assert policy.arrays["action.low"].tolist() == [-3]
    obs = evaluate.observations(policy.actor(), policy.config, 100)
    assert obs.dtype == np.float32
    obs[:2] = [[100, 100, 100, 100], [-100, -100, -100, -100]]
    assert export.largest_difference(policy, path, obs) < 1e-5
    (actions,) = export._session(path).run(None, {"obs": obs})
    np.testing.assert_allclose(actions, policy.actor()(obs), atol=3e-5)
    assert np.abs(actions).max() == 3
    policy.arrays["actor.4.bias"][0] += 1e-3
    assert export.largest_difference(policy, path, obs) == pytest.approx(1e-3, abs=1e-5)


def test_saved_and_loaded(pendulum, tmp_path):
    loaded = Policy.load(pendulum)
    assert loaded.header["task"] == PENDULUM
    assert loaded.header["options"] == {}
    assert "config" not in loaded.header
    loaded.save(tmp_path / "policy.npz")
    assert (tmp_path / "policy.npz").read_bytes() == (pendulum / "policy.npz").read_bytes()
    for name, value, message in (
        ("action.high", None, r"KeyError\('action\.high'"),
        ("action.high", np.zeros(2, np.float32), r"'action\.high' is float32 \(2,\), expected"),
        ("action.high", np.full(1, -9, np.float32), "limits -3 and -9"),
        ("normalizer.mean", np.zeros(48), r"'normalizer\.mean' is float64 \(48,\), expected"),
    ):
        arrays = loaded.arrays | {name: value}
        if value is None:
            del arrays[name]
        Policy(arrays, loaded.header).save(tmp_path / "policy.npz")
        with pytest.raises(ValueError, match=message):
            Policy.load(tmp_path)
    with pytest.raises(ValueError, match=r"trained on observations \(n, 4\), got \(2, 5\)"):
        loaded.actor()(np.zeros((2, 5), np.float32))


def test_a_microducks_policy_is_what_it_was(tmp_path):
    config = RunConfig(PPOConfig(n=2, steps=16, minibatches=2, hidden=8), MicroduckConfig())
    with Run(config) as run:
        policy = run.policy()
    assert list(policy.header) == ["ppo", "config", "seed", "steps"]
    assert "action.low" not in policy.arrays
    assert policy.scale is None
    results = Path(__file__).parents[1] / "results" / "training"
    for folder in (path.parent for path in results.glob("*/policy.npz")):
        kind = TaskConfig if folder.name in ("halfcheetah", "hopper") else MicroduckConfig
        assert isinstance(Policy.load(folder).config, kind)


# Runs, and where their task lies.


def test_options_are_plain_values(tally):
    config = TaskConfig("Hopper-v5", {"healthy_z_range": (0.7, 2), "ctrl_cost_weight": 1e-3})
    assert config.options == {"healthy_z_range": [0.7, 2], "ctrl_cost_weight": 1e-3}
    assert json.loads(json.dumps(RunConfig(PPOConfig(), config).plain()))["task"] == "Hopper-v5"
    with pytest.raises(TypeError, match=r"option 'x' must be a number, .* got \{1\}"):
        TaskConfig("Hopper-v5", {"x": {1}})


def test_runs_of_tasks_are_grouped(tmp_path):
    log = [{"update": 1, "steps": 1, "return": 1.0, "clip_fraction": 0.1, "kl": 0.01, "std": 0.6,
            "time": {"rate": 1.0}}]  # fmt: skip
    envs = [TaskConfig("Hopper-v5"), TaskConfig("Hopper-v5", {"frame_skip": 5})]
    runs = [
        Finished(tmp_path / f"{k}{seed}", RunConfig(PPOConfig(), env, seed), log)
        for k, env in enumerate(envs)
        for seed in range(2)
    ]
    assert list(groups(runs)) == ["options {}", "options {'frame_skip': 5}"]
    assert list(groups(runs[:2])) == ["all"]
    runs[0] = Finished(tmp_path / "duck", RunConfig(PPOConfig(), MicroduckConfig()), log)
    first, *others = groups(runs)
    assert first.startswith("task Microduck-v0, ")
    assert others == ["task Hopper-v5, options {}", "task Hopper-v5, options {'frame_skip': 5}"]


def test_compare_runs_of_a_task(pendulum, tmp_path, capsys):
    file = tmp_path / "c.json"
    assert cli.main(["compare-runs", str(pendulum), "--json", str(file)]) == 0
    (figures,) = json.loads(file.read_text())["results"]["all"]
    assert figures["evaluated"] == read_log(pendulum)[-1]["evaluation"]["return"]


def test_a_task_that_has_moved(tmp_path, monkeypatch, capsys):
    """Its file is looked for where it was said to lie, from the present folder."""
    old = tmp_path / "old"
    write_tally(old)
    monkeypatch.chdir(old)
    runs = tmp_path / "runs"
    base = ["train", "--runs", runs, "--tag", "a"]
    short = [*SMALL, "--total-steps", "128", "--option", "end=3"]
    train = [str(argument) for argument in [*base, "--task", "tally.py", *short]]
    assert cli.main([*train, "--chunk-steps", "64"]) == 0
    monkeypatch.chdir(tmp_path)
    few = ["--episodes", "1", "--seeds", "1"]
    for command in ([*base, "--resume"], ["eval", runs / "a", *few], ["export", runs / "a"]):
        message = failure(capsys, *command)
        assert f"there is no file {tmp_path / 'tally.py'}, which is task 'tally.py'" in message
        assert "say with --task where it lies" in message
    assert len(read_log(runs / "a")) == 1
    message = failure(capsys, *base, "--resume", "--task", "old/other.py")
    assert "--task old/other.py is another task: this was trained on tally.py" in message
    there = ["--task", "old/tally.py"]
    for command in (
        [*base, "--resume", *there],
        ["eval", runs / "a", *few, *there],
        ["export", runs / "a", *there],
    ):
        capsys.readouterr()
        assert cli.main([str(argument) for argument in command]) == 0, command
    assert len(read_log(runs / "a")) == 2
    # From its own folder the whole run gives the same policy, but for the name of its file.
    monkeypatch.chdir(old)
    assert cli.main([*train[:4], "b", *train[5:]]) == 0
    moved, whole = (Policy.load(runs / tag) for tag in "ab")
    assert (moved.config.task, whole.config.task) == ("old/tally.py", "tally.py")
    assert all(same_bits(moved.arrays[name], whole.arrays[name]) for name in whole.arrays)


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--task HalfCheeta-v5", "unknown task 'HalfCheeta-v5' (did you mean 'HalfCheetah-v5'?)"),
        ("--task nowhere/my.py", "nowhere/my.py, which is task 'nowhere/my.py' seen from this"),
        ("--task Hopper-v5 --option frameskip=5", "'frameskip' (did you mean 'frame_skip'?)"),
        ("--task Hopper-v5 --option seed=5", "task Hopper-v5: 'seed' is no option of a task"),
        ("--task Hopper-v5 --reward v1", "--reward is for Microduck-v0: what Hopper-v5 can be"),
        ("--task Hopper-v5 --variant walk", "--variant is for Microduck-v0"),
        ("--task Hopper-v5 --dr", "--dr is for Microduck-v0"),
        ("--task Hopper-v5 --init-noise 0.1", "--init-noise is for Microduck-v0"),
        ("--task Hopper-v5 --preset stand", "--preset stand is for Microduck-v0, not for Hopper"),
        ("--option rewrd=v1", "unknown keyword 'rewrd' (did you mean 'reward'?)"),
        ("--task Microduck-v0 --option n_pushes=x", "n_pushes must be an integer, got 'x'"),
    ],
)
def test_unusable_command_lines(arguments, message, tmp_path, capsys):
    said = failure(capsys, "train", "--runs", tmp_path, "--tag", "a", *SMALL, *arguments.split())
    assert message in said
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["end", "=3", "a b=3"])
def test_options_have_a_name_and_a_value(option, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--task", "Hopper-v5", "--option", option])
    assert f"must be NAME=VALUE, got {option!r}" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("(1,2)", (1, 2)),
        ("(0.5, inf)", (0.5, float("inf"))),
        ("-inf", float("-inf")),
        ("'inf.xml'", "inf.xml"),
        ("True", True),
        ("None", None),
        ("a.xml", "a.xml"),
        ("{[]: 1}", "{[]: 1}"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("command", ["train", "contract"])
def test_values_of_options(command, text, value):
    options = cli._parser().parse_args([command, "--option", f"a={text}", "--option", "b=x=y"])
    assert options.option == {"a": value, "b": "x=y"}
    assert type(options.option["a"]) is type(value)


@pytest.mark.parametrize("command", ["train", "contract"])
def test_an_option_is_given_once(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--task", "Swimmer-v5", "--option", "a=1", "--option", "a=2"])
    assert "argument --option: a is given twice" in capsys.readouterr().err


def test_presets_of_any_task():
    assert {name for name, preset in PRESETS.items() if not preset.env} == {"default", "suite"}


def test_what_belongs_to_the_microduck(pendulum, capsys):
    assert f"{pendulum} was trained on {PENDULUM}: gap is for Microduck-v0" in failure(
        capsys, "gap", pendulum
    )
    assert "--reward is for Microduck-v0" in failure(capsys, "eval", pendulum, "--reward", "v1")
    said = failure(capsys, "eval", pendulum, "--task", "Hopper-v5")
    assert f"--task Hopper-v5 is another task: this was trained on {PENDULUM}" in said


def test_what_a_resumed_run_cannot_change(pendulum, capsys):
    base = ["train", "--runs", pendulum.parent, "--tag", pendulum.name, "--resume"]
    for wrong, message in {
        "--task Hopper-v5": "--task Hopper-v5 is another task: this was trained on",
        "--task Microduck-v0": "--task Microduck-v0 is another task",
        "--option frame_skip=3": "the run has options {}, which --resume cannot change",
        "--dr": "--dr is for Microduck-v0",
        "--n 4": "keeps n=8",
    }.items():
        assert message in failure(capsys, *base, *wrong.split())
