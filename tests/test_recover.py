"""Search and imitation: what recovers from strong pushes."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from mujoco_vecenv import MicroduckConfig, VecEnv
from mujoco_vecenv.archive import digest
from mujoco_vecenv.cli import main
from mujoco_vecenv.train import recover, reflexes, windows
from mujoco_vecenv.train.config import PRESETS, PPOConfig, RecoverConfig
from mujoco_vecenv.train.folder import RunConfig
from mujoco_vecenv.train.policy import Policy
from mujoco_vecenv.train.ppo import network
from mujoco_vecenv.train.run import Run, torch_threads

STANDING = Path(__file__).parents[1] / "results/training/minute/policy.npz"
STAGES = ("forward", "backward", "imitation")
AGAIN = tuple(f"{stage} again" for stage in STAGES)
SHORT = RecoverConfig(rollouts=16, iterations=2, rounds=2, iterations_again=1, rounds_again=1)


def learned(seed=0, threads=1, tell=lambda line: None):
    with torch_threads(1):
        return recover.recover(Policy.load(STANDING), SHORT, seed, threads, tell)


def test_a_reflex_is_linear_between_its_knots_and_fades():
    knots = np.arange(reflexes.KNOTS, dtype=float)[None, :, None] + np.zeros((1, 1, 14))
    values = [np.broadcast_to(reflexes.at(knots, step), (1, 14))[0, 0] for step in range(50)]
    assert values[0] == 0, "nobody knows of the push yet"
    assert [values[step] for step in (1, 6, 11, 31)] == [0, 1, 2, 6]
    assert values[36] == 7 * 5 / 8, "it fades over its last 8 steps"
    assert values[41:] == [0] * 9


def test_weak_pushes_and_those_from_the_side_need_no_reflex():
    velocity = np.array([[0.22, 0.0], [0.27, 0.1], [0.0, 0.45], [0.38, 0.0], [-0.38, 0.2]])
    strong = [[1, 0, 0, -0.4], [1, 0, 1, -0.4]]
    first, second = (reflexes.features(velocity, p) for p in (reflexes.FIRST, reflexes.SECOND))
    assert first.tolist() == [[0, 0, 0, 0]] * 3 + strong
    assert second[[0, 2, 3, 4]].tolist() == [[0, 0, 0, 0]] * 2 + strong
    assert (second[1] != 0).all()


def test_strides_are_along_the_heading():
    robots = windows.Robots(MicroduckConfig(reward="v2"), 4, 0, 4, np.random.default_rng(0), 1)
    act = Policy.load(STANDING).actor()
    pool = robots.standing(act, [3])
    headings = np.array([0.0, 0.5, -2.0, 3.0])
    pool["physics"][:, 4:8] = 0
    pool["physics"][:, 4], pool["physics"][:, 7] = np.cos(headings / 2), np.sin(headings / 2)

    def strides(along, left, stride=2):
        """Move the robots between two steps."""

        def choose(obs, step):
            if step == 1:
                rows = robots.envs.get_state()
                cos, sin = np.cos(headings), np.sin(headings)
                rows["physics"][:, 1] += cos * along - sin * left
                rows["physics"][:, 2] += sin * along + cos * left
                robots.envs.set_state(rows)
            return np.zeros((4, 14))

        obs = robots._push(windows.take(pool, np.arange(4)), np.zeros((4, 2)))
        return robots.run(obs, choose, stride=stride).strides

    still = strides(0, 0)
    assert np.abs(strides(0.05, 0.02) - still - 0.05).max() < 1e-12
    assert np.abs(strides(-0.03, 0.02) - still + 0.03).max() < 1e-12
    assert (strides(0.05, 0.02, stride=0) == 0).all()
    assert (strides(0.05, 0.02, stride=None) == 0).all()
    robots.close()


def test_pushes_follow_the_headings():
    rng = np.random.default_rng(0)
    robots = windows.Robots(MicroduckConfig(reward="v2"), 4, 0, 80, rng, 1)
    state = robots.envs.get_state()
    rows = {name: array for name, array in state.items() if name != "header"}
    headings = np.array([0.0, 0.5, -2.0, 3.0])
    rows["physics"][:, 4:8] = 0
    rows["physics"][:, 4], rows["physics"][:, 7] = np.cos(headings / 2), np.sin(headings / 2)
    robots._rows()
    robots._push(rows, np.tile([0.3, 0.1], (4, 1)))
    pushed = robots.envs.get_state()
    cos, sin = np.cos(headings), np.sin(headings)
    expected = np.stack([0.3 * cos - 0.1 * sin, 0.3 * sin + 0.1 * cos], axis=1)
    assert np.abs(pushed["push_velocity"][:, 0] - expected).max() < 1e-15
    assert pushed["push_steps"].tolist() == [[0]] * 4
    before = pushed["physics"][:, 22:24]  # time, 21 positions, then velocities
    robots.envs.step(np.zeros((4, 14)))
    assert robots.envs.get_state()["next_push"].tolist() == [1] * 4
    assert (before == state["physics"][:, 22:24]).all()
    robots.close()


def test_new_robots_stand_wherever_the_old_ones_lie():
    act = Policy.load(STANDING).actor()
    rng = np.random.default_rng(0)
    robots = windows.Robots(MicroduckConfig(reward="v2"), 16, 5, 64, rng, 1)
    before = robots.standing(act, [25])
    velocity = np.tile([1.0, 0.0], (16, 1))
    window = robots.run(robots.pushed(before, None, velocity), lambda obs, step: act(obs))
    assert not window.upright.any()
    assert window.rows == {}
    after = robots.standing(act, [25])
    assert digest(before) == digest(after)
    robots.close()


def test_every_second_robot_has_been_pushed_before():
    act = Policy.load(STANDING).actor()
    robots = windows.Robots(MicroduckConfig(), 6, 5, 30, np.random.default_rng(0), 1)
    pool = robots.standing(act, [10, 20])
    assert sorted(set(pool["physics"][:, 0].round(2))) == [11 * 0.02, 21 * 0.02]
    for name, array in (again := windows.take(pool, np.array([0]))).items():
        assert array.shape == pool[name][:1].shape
    again["physics"][:, 0] = 99.0
    robots.pushed(pool, again, np.zeros((6, 2)))
    times = robots.envs.get_state()["physics"][:, 0]
    assert (times == 99.0).tolist() == [False, True] * 3
    robots.close()


def test_the_same_policy_on_any_number_of_threads():
    lines = []
    one, other = learned(tell=lines.append), learned(threads=2)
    assert digest(one.arrays) == digest(other.arrays)
    assert digest(one.arrays) != digest(learned(seed=1).arrays)
    standing = Policy.load(STANDING)
    changed = {name for name, array in one.arrays.items() if (array != standing.arrays[name]).any()}
    assert changed == {f"actor.{k}.{part}" for k in "024" for part in ("weight", "bias")}
    first, second = 2 * (2 + 2) * 64 + (1 + 2) * 96, 2 * (1 + 1) * 64 + (1 + 1) * 96
    assert one.header["steps"] == standing.header["steps"] + (first + second) * 16
    stages = {}
    for line in lines:
        stages.setdefault(line["stage"], []).append(line["iteration"])
    assert stages == {stage: [1, 2] for stage in STAGES} | {stage: [1] for stage in AGAIN}


def test_what_was_learned_takes_pushes_that_felled_it_one_after_the_other():
    rng = np.random.default_rng(0)
    pushes = rng.choice([-1, 1], (64, 2)) * rng.uniform(0.3, 0.4, (64, 2))
    upright = {}
    for name in ("minute", "steady-0", "steady-1", "steady-2"):
        act = Policy.load(STANDING.parents[1] / name).actor()
        with VecEnv(64, seed=900_000, reward="v2", episode_steps=201, n_pushes=2) as envs:
            episodes = envs.record()
            for episode, pace in zip(episodes, pushes, strict=True):
                episode.push_steps[:] = 40, 120
                episode.push_velocity[:] = np.stack([pace, [0, 0]], axis=1)
            obs = envs.reset(episodes=episodes)
            for _ in range(200):
                obs, _, _, _ = envs.step(act(obs))
        upright[name] = int((-obs[:, 47] > 0.9).sum())
    assert upright["minute"] < 10
    assert upright["steady-2"] > 45
    assert upright["steady-0"] > 20
    assert upright["steady-1"] > 15


def test_the_command(tmp_path, capsys):
    short = ["--rollouts", "16", "--iterations", "1", "--rounds", "1", "--iterations-again", "0"]
    command = ["recover", str(STANDING), *short, "--runs", str(tmp_path), "--tag", "steady"]
    assert main(command) == 0
    folder = tmp_path / "steady"
    lines = [json.loads(line) for line in (folder / "recover.jsonl").read_text().splitlines()]
    assert sorted(line["stage"] for line in lines) == sorted(STAGES)
    assert (folder / "recover.png").read_bytes()[:4] == b"\x89PNG"
    policy = Policy.load(folder)
    standing = Policy.load(STANDING).header["steps"]
    assert policy.header["steps"] == standing + (2 * 3 * 64 + 2 * 96) * 16
    how = {"rollouts": 16, "iterations": 1, "rounds": 1, "iterations_again": 0, "rounds_again": 15}
    assert policy.header["recovered"] == how | {"seed": 0}
    assert main(["eval", str(folder), "--episodes", "1", "--seeds", "1"]) == 0
    capsys.readouterr()
    assert main(command) == 2
    assert "steady holds a policy already: choose another tag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rollouts", "4", "rollouts must be 16 or more, got 4"),
        ("--rounds", "0", "rounds must be 1 or more, got 0"),
        ("--rounds-again", "0", "rounds_again must be 1 or more, got 0"),
        ("--iterations-again", "-1", "iterations_again must be 0 or more, got -1"),
        ("--threads", "1000", "threads=1000 is more than the "),
        ("--tag", "", "--tag must not be empty"),
        ("--seed", "-1", "seed must be 0 or more, got -1"),
    ],
)
def test_values_that_are_refused(tmp_path, capsys, option, value, message):
    command = ["recover", str(STANDING), "--runs", str(tmp_path), "--tag", "x", option, value]
    assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_policy_that_falls_is_refused():
    standing = Policy.load(STANDING)
    falling = {n: 0 * a if n.startswith("actor.") else a for n, a in standing.arrays.items()}
    with torch_threads(1), pytest.raises(ValueError, match="of the robots fall by themselves"):
        recover.recover(Policy(falling, standing.header), SHORT, 0, 1, lambda line: None)


def test_what_falls_once_it_was_taught_is_told_apart(tmp_path, capsys, monkeypatch):
    standing = Policy.load(STANDING)
    falling = {n: 0 * a if n.startswith("actor.") else a for n, a in standing.arrays.items()}
    monkeypatch.setattr(recover, "_imitate", lambda *arguments: falling)
    short = ["--rollouts", "16", "--iterations", "1", "--iterations-again", "1"]
    command = ["recover", str(STANDING), *short, "--runs", str(tmp_path), "--tag", "x"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "after the first imitation the robots fall by themselves: try more rollouts" in told
    assert len((tmp_path / "x" / "recover.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "x" / "policy.npz").exists()


def test_only_the_microduck_is_pushed():
    standing = Policy.load(STANDING)
    header = {k: v for k, v in standing.header.items() if k != "config"}
    other = Policy(standing.arrays, header | {"task": "Hopper-v5", "options": {}})
    with pytest.raises(ValueError, match=r"only Microduck-v0 is pushed, .* for Hopper-v5"):
        recover.recover(other, SHORT, 0, 1, lambda line: None)


def a_run_that_stands(runs):
    """Make the folder of a run of preset steady whose PPO is done and has left a policy."""
    standing = Policy.load(STANDING)
    preset = PRESETS["steady"]
    ppo = PPOConfig(**preset.ppo | {"total_steps": 4096})
    config = RunConfig(ppo, MicroduckConfig(reward="v2", **preset.env), 3, SHORT)
    with torch_threads(1), Run(config, runs / "steady") as run:
        run.update()
        run.ppo.actor.load_state_dict(network(standing.arrays, "actor").state_dict())
        for name in ("mean", "squares"):
            setattr(run.ppo.normalizer, name, standing.arrays[f"normalizer.{name}"])
        run.ppo.normalizer.count = int(standing.arrays["normalizer.count"])
        run.checkpoint()
        return run.policy()


def test_training_with_the_preset_goes_on_to_recover(tmp_path, capsys):
    standing = a_run_that_stands(tmp_path)
    folder = tmp_path / "steady"
    assert "recovered" not in Policy.load(folder).header
    resume = ["train", "--resume", "--runs", str(tmp_path), "--tag", "steady"]
    assert main([*resume, "--threads", "1"]) == 0
    learned = Policy.load(folder)
    assert learned.header["recovered"] == {**asdict(SHORT), "seed": 3}
    assert learned.header["steps"] == 4096 + recover.steps(SHORT)
    with torch_threads(1):
        again = recover.recover(standing, SHORT, 3, 2, lambda line: None)
    assert digest(learned.arrays) == digest(again.arrays)
    assert len((folder / "recover.jsonl").read_text().splitlines()) == 9
    written = (folder / "policy.npz").read_bytes()
    capsys.readouterr()
    assert main(resume) == 0
    assert "steady holds the policy that recovers" in capsys.readouterr().out
    assert (folder / "policy.npz").read_bytes() == written


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stopped_while_it_learns_to_recover(tmp_path, number):
    standing = a_run_that_stands(tmp_path)
    resume = ["train", "--resume", "--runs", str(tmp_path), "--tag", "steady"]
    log = tmp_path / "steady" / "recover.jsonl"
    command = [sys.executable, "-m", "mujoco_vecenv", *resume]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not (log.exists() and log.stat().st_size):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        told, _ = process.communicate()
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 130
        assert "stopped; this learns to recover from the start: mjvec train --resume" in told
    assert digest(Policy.load(tmp_path / "steady").arrays) == digest(standing.arrays)
    assert main(resume) == 0
    with torch_threads(1):
        whole = recover.recover(standing, SHORT, 3, 1, lambda line: None)
    assert digest(Policy.load(tmp_path / "steady").arrays) == digest(whole.arrays)


def test_robots_are_pushed_when_they_are_most_alike():
    envs = MicroduckConfig(reward="v2")
    robots = windows.Robots(envs, 32, 5, reflexes.SETTLED, np.random.default_rng(0), 1)
    act = Policy.load(STANDING).actor()
    bias = np.random.default_rng(1).uniform(-0.5, 0.5, (32, 14)) * np.repeat([1, 0], [5, 9])
    calls = 0

    def unlike_until_step_40(obs):
        nonlocal calls
        calls += 1
        return act(obs) + (bias if calls <= 40 or calls > 52 else 0)

    assert reflexes._most_alike(robots, unlike_until_step_40) in (45, 50)
    robots.close()


def test_a_recovered_policy_is_not_written_over(tmp_path, capsys):
    a_run_that_stands(tmp_path)
    folder = tmp_path / "steady"
    train = ["train", "--runs", str(tmp_path), "--tag", "steady"]
    assert main([*train, "--resume"]) == 0
    learned = Policy.load(folder)
    other = {name: learned.header["recovered"][name] for name in ("rollouts", "rounds", "seed")}
    Policy(learned.arrays, learned.header | {"recovered": other}).save(folder / "policy.npz")
    written = (folder / "policy.npz").read_bytes()
    assert main([*train, "--resume"]) == 0, "all is done"
    assert (folder / "policy.npz").read_bytes() == written
    for more, message in (
        (["--resume", "--total-steps", "8192"], "holds a policy that recovers, which more steps"),
        (["--resume", str(folder)], "steady has done its 4,096 steps"),
        (["--preset", "minute"], "steady holds a run already"),
    ):
        capsys.readouterr()
        assert main([*train, *more]) == 2
        assert message in capsys.readouterr().err
        assert (folder / "policy.npz").read_bytes() == written
    (folder / "policy.npz").unlink()
    recover = ["recover", str(STANDING), "--runs", str(tmp_path), "--tag", "steady"]
    assert main(recover) == 2
    assert "steady holds a run already" in capsys.readouterr().err
    assert not (folder / "policy.npz").exists()


def test_training_does_not_write_over_what_recover_left(tmp_path, capsys):
    (tmp_path / "t").mkdir()
    policy = tmp_path / "t" / "policy.npz"
    policy.write_bytes(STANDING.read_bytes())
    assert main(["train", "--preset", "minute", "--runs", str(tmp_path), "--tag", "t"]) == 2
    assert "t holds a policy already: choose another tag" in capsys.readouterr().err
    assert policy.read_bytes() == STANDING.read_bytes()


def test_a_run_whose_ppo_is_done_recovers_in_a_new_folder_too(tmp_path, capsys):
    standing = a_run_that_stands(tmp_path)
    train = ["train", "--runs", str(tmp_path)]
    resume = [*train, "--resume", str(tmp_path / "steady"), "--tag", "other"]
    assert main([*resume, "--chunk-steps", "1"]) == 0
    assert "learning to recover, is one piece" in capsys.readouterr().out
    assert "recovered" not in Policy.load(tmp_path / "other").header
    assert main([*train, "--resume", "--tag", "other"]) == 0
    assert Policy.load(tmp_path / "other").header["recovered"] == {**asdict(SHORT), "seed": 3}
    own = Policy.load(tmp_path / "steady")
    assert digest(own.arrays) == digest(standing.arrays), "the other run is left alone"


def test_a_run_that_has_not_learned_to_stand_says_what_to_do(tmp_path, capsys):
    steady = ["train", "--preset", "steady", "--total-steps", "4096"]
    assert main([*steady, "--runs", str(tmp_path), "--tag", "t"]) == 2
    told = capsys.readouterr().err
    assert "of the robots fall by themselves" in told
    assert "go on with a larger --total-steps: mjvec train --resume --runs" in told
    assert (tmp_path / "t" / "policy.npz").exists()
    assert not (tmp_path / "t" / "recover.jsonl").exists()


def test_a_policy_for_another_task_leaves_nothing(tmp_path, capsys):
    hopper = STANDING.parents[1] / "hopper"
    assert main(["recover", str(hopper), "--runs", str(tmp_path), "--tag", "t"]) == 2
    assert "only Microduck-v0 is pushed" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
