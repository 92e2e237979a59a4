"""Evaluation: the same as one environment at a time, and figures that a reader can work out."""

import json

import numpy as np
import pytest

from mujoco_vecenv import MicroduckEnv, cli
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.microduck.randomization import DRConfig
from mujoco_vecenv.train import evaluate, export
from mujoco_vecenv.train.compare import Finished, groups, welch
from mujoco_vecenv.train.config import PPOConfig
from mujoco_vecenv.train.evaluate import Episodes, hold, run_episodes, summary
from mujoco_vecenv.train.folder import RunConfig
from mujoco_vecenv.train.policy import Policy
from mujoco_vecenv.train.run import Run

V2 = MicroduckConfig(reward="v2")


@pytest.fixture(scope="module")
def policy():
    """A policy that has moved a little from where it began, and acts for real."""
    config = RunConfig(PPOConfig(n=4, steps=64, hidden=32, total_steps=10**6), V2, seed=1)
    with Run(config) as run:
        for _ in range(8):
            run.update()
        policy = run.policy()
    policy.arrays["actor.4.weight"] *= 20
    return policy


# The policy.


def test_a_mean_action_does_not_depend_on_how_many_are_asked_for(policy):
    obs = evaluate.observations(policy.actor(), V2, 300)
    assert obs.shape == (300, 48)
    together = policy.actor()(obs)
    assert together.dtype == np.float32
    assert np.abs(together).max() > 0.3
    for k in (0, 1, 7, 299):
        assert policy.actor()(obs[k : k + 1])[0].tobytes() == together[k].tobytes()
        assert policy.actor()(obs[k:])[0].tobytes() == together[k].tobytes()


def test_mean_actions_are_pytorchs(policy):
    import torch

    obs = evaluate.observations(policy.actor(), V2, 50)
    obs[0] = 1e6  # beyond the clip
    offset, scale = policy.offset_and_scale
    x = torch.from_numpy(np.clip((obs - offset) * scale, -10, 10))
    for k in ("0", "2", "4"):
        weight, bias = (
            torch.from_numpy(policy.arrays[f"actor.{k}.{p}"]) for p in ("weight", "bias")
        )
        x = torch.nn.functional.linear(x, weight, bias)
        x = x if k == "4" else x.tanh()
    np.testing.assert_allclose(policy.actor()(obs), x.numpy(), atol=1e-5)


def test_saved_and_loaded(policy, tmp_path):
    policy.save(tmp_path / "policy.npz")
    loaded = Policy.load(tmp_path)
    assert loaded.header == policy.header
    assert loaded.config == V2
    assert all((loaded.arrays[k] == policy.arrays[k]).all() for k in policy.arrays)
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "policy.npz").read_bytes()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_std", np.zeros(3, np.float32), r"'log_std' is float32 \(3,\), expected"),
        ("critic.0.bias", np.full(32, np.nan, np.float32), "'critic.0.bias' is not finite"),
        ("normalizer.count", np.array(1.5), "'normalizer.count' is float64"),
        ("actor.2.weight", None, r"damaged: KeyError\('actor\.2\.weight'"),
        ("normalizer.mean", np.zeros(100), r"'normalizer.mean' is float64 \(100,\), expected"),
        ("normalizer.squares", np.full(48, -1.0), "'normalizer.squares' is negative"),
    ],
)
def test_damaged_policies_are_refused(policy, tmp_path, name, value, message):
    arrays = dict(policy.arrays) | {name: value}
    if value is None:
        del arrays[name]
    Policy(arrays, policy.header).save(tmp_path / "policy.npz")
    with pytest.raises(ValueError, match=message):
        Policy.load(tmp_path)


# Evaluation.


@pytest.mark.parametrize("dr", [False, True])
def test_evaluation_equals_one_environment_at_a_time(policy, dr):
    config = MicroduckConfig(reward="v2", dr=dr)
    episodes = run_episodes(policy.actor(), config, 200_000, 3, threads=2)
    act = policy.actor()
    for j in range(3):
        env = MicroduckEnv(**vars(config))
        obs = env.reset(seed=200_000 + j)
        total = 0.0
        for t in range(250):
            obs, reward, done, info = env.step(act(obs[None])[0])
            total += reward
            assert reward == episodes.rewards[j, t]
            assert info["trunk_height"] == episodes.height[j, t]
            assert info["upright_cos"] == episodes.upright[j, t]
            assert info["pushed"] == episodes.pushed[j, t]
            if info["pushed"]:
                k = list(env.episode.push_steps).index(t)
                assert (env.episode.push_velocity[k] == episodes.velocity[j, t]).all()
            assert info["terms"] == {name: v[j, t] for name, v in episodes.terms.items()}
        assert done
        assert total == episodes.returns[j]


def test_seeds_are_those_of_the_contract(monkeypatch):
    asked = []

    def fake(act, config, seed, episodes, threads):
        asked.append((seed, episodes))
        ones = np.ones((episodes, 250))
        return Episodes(ones, ones, ones, ones > 1, np.zeros((episodes, 250, 2)), {"upright": ones})

    monkeypatch.setattr(evaluate, "run_episodes", fake)
    result = evaluate.evaluate(hold, V2)
    assert asked == [(0, 100), (100_000, 100), (200_000, 100), (300_000, 100), (400_000, 100)]
    assert result["episodes"] == 500
    assert result["return"]["per_seed"] == [250.0] * 5


def episodes_of(upright, pushes):
    """Episodes with given uprightness and pushes, and a reward of 1 each step."""
    upright = np.array(upright, float)
    pushed = np.zeros(upright.shape, bool)
    velocity = np.zeros((*upright.shape, 2))
    for i, step, *push in pushes:
        pushed[i, step] = True
        velocity[i, step] = push or (0.2, 0)
    ones = np.ones(upright.shape)
    return Episodes(ones, 0.12 * upright, upright, pushed, velocity, {"upright": upright})


def test_pushes_are_judged_one_by_one():
    upright = np.ones((5, 250))
    upright[0, 55:80] = 0.5  # down 5 steps after the push at 50, up again 0.6 s after it
    upright[1, 60:] = 0.0  # down for good
    upright[2, 60:170] = 0.0  # down, and up too late
    upright[4, 240:] = 0.2  # down before the end of the episode
    pushes = [(0, 50), (1, 50), (1, 100), (2, 50), (3, 50), (3, 60), (4, 220)]
    result = summary([episodes_of(upright, pushes)])
    assert result["pushes"] == {
        "all": 7,
        "on_fallen": 1,  # (1, 100)
        "cut_short": 1,  # (3, 50): the next comes 0.2 s later
        "judged": 5,
        "recovered": 2,  # (0, 50) and (3, 60)
    }
    assert result["recovery"] == {
        "share": 0.4,
        "seconds_p50": pytest.approx(0.3),  # the median of 0.6 s and 0 s
        "seconds_p90": pytest.approx(0.54),
        "directions": {
            "slow forward": {"judged": 5, "recovered": 2},
            "slow backward": {"judged": 0, "recovered": 0},
            "slow sideways": {"judged": 0, "recovered": 0},
            "fast forward": {"judged": 0, "recovered": 0},
            "fast backward": {"judged": 0, "recovered": 0},
            "fast sideways": {"judged": 0, "recovered": 0},
        },
    }
    assert result["upright"] == 1 - (25 + 190 + 110 + 10) / 1250
    assert result["survival"] == 1 - (190 + 110 + 10) / 1250  # 0.12 m x 0.2 is below 4 cm
    assert result["height_median"] == 0.12


def test_a_push_is_judged_until_the_next():
    upright = np.ones((1, 250))
    upright[0, 110:] = 0
    result = summary([episodes_of(upright, [(0, 50), (0, 100)])])
    assert result["pushes"]["judged"] == 2
    assert result["pushes"]["recovered"] == 1


@pytest.mark.parametrize(
    ("push", "direction"),
    [
        ((0.2, 0.1), "slow forward"),
        ((-0.4, 0.1), "fast backward"),
        ((-0.1, 0.2), "slow sideways"),
        ((0.1, -0.4), "fast sideways"),
        ((0.3, 0.0), "fast forward"),
    ],
)
def test_pushes_have_a_direction_and_a_pace(push, direction):
    result = summary([episodes_of(np.ones((1, 250)), [(0, 50, *push)])])
    assert result["recovery"]["directions"][direction] == {"judged": 1, "recovered": 1}


def test_means_and_deviations():
    one, other = (episodes_of(np.ones((2, 250)), []) for _ in range(2))
    one.rewards = np.array([[1.0] * 250, [2.0] * 250])
    other.rewards = np.array([[2.0] * 250, [2.0] * 250])
    result = summary([one, other])
    assert result["returns"] == [250, 500, 500, 500]
    assert result["return"]["per_seed"] == [375, 500]
    assert result["return"]["mean"] == 437.5
    assert result["return"]["sd_seeds"] == pytest.approx(125 / np.sqrt(2))
    assert result["return"]["sd_episodes"] == pytest.approx(108.25, abs=0.01)
    assert summary([one])["return"]["sd_seeds"] is None
    assert result["recovery"]["share"] is None


def test_holding_the_pose_is_no_policy():
    result = evaluate.evaluate(hold, V2, episodes=4, seeds=[0, 1])
    assert 210 < result["return"]["mean"] < 225
    assert result["terms"]["action_rate"] == 0
    assert result["upright"] < 0.12


# The commands.


def test_eval_prints_writes_and_draws(policy, tmp_path, capsys):
    policy.save(tmp_path / "policy.npz")
    files = [tmp_path / "e.json", tmp_path / "e.png"]
    arguments = ["eval", str(tmp_path), "--episodes", "3", "--seeds", "2"]
    assert cli.main([*arguments, "--json", str(files[0]), "--plot", str(files[1])]) == 0
    out = capsys.readouterr().out
    for text in ("hold STAND", "recovered within 2 s", "median trunk height", "joint_vel, per"):
        assert text in out
    results = json.loads(files[0].read_text())["results"]
    expected = evaluate.evaluate(policy.actor(), V2, 3, range(2))
    assert results["policy"] == expected
    assert files[1].read_bytes()[:4] == b"\x89PNG"


def test_gap_and_baseline(policy, tmp_path, capsys):
    policy.save(tmp_path / "policy.npz")
    few = ["--episodes", "2", "--seeds", "1"]
    file = tmp_path / "gap.json"
    assert cli.main(["gap", str(tmp_path), *few, "--variants", "walk", "--json", str(file)]) == 0
    (places,) = json.loads(file.read_text())["results"].values()
    assert list(places) == ["groundcontact", "walk", "groundcontact, DR"]
    assert cli.main(["baseline", *few]) == 0
    out = capsys.readouterr().out
    assert "random" in out
    assert "share" in out


def test_places_begin_with_the_policys_own():
    own = MicroduckConfig(reward="v2", dr=DRConfig(latency=(0, 1)))
    found = evaluate.places(own, ["groundcontact", "rollers"])
    assert list(found) == ["groundcontact, DR", "rollers, DR", "groundcontact"]
    assert found["groundcontact, DR"] == own
    assert found["rollers, DR"].dr == own.dr
    assert found["groundcontact"].dr is None


def test_training_episodes_are_not_what_is_evaluated():
    trained = MicroduckConfig(reward="v2", episode_steps=100, n_pushes=1, push_speed=(1, 2))
    assert evaluate.usual(trained) == V2


def test_export_is_pytorchs_policy(policy, tmp_path, capsys):
    policy.save(tmp_path / "policy.npz")
    assert cli.main(["export", str(tmp_path)]) == 0
    assert "against PyTorch on 1,000 observations" in capsys.readouterr().out
    path = tmp_path / "policy.onnx"
    obs = evaluate.observations(policy.actor(), V2, 1000)
    obs[0] = 1e6
    assert export.largest_difference(policy, path, obs) < 1e-5
    policy.arrays["actor.4.bias"][3] += 1e-4
    assert export.largest_difference(policy, path, obs) > 5e-5


def test_export_that_would_differ_is_not_written(policy, tmp_path, capsys, monkeypatch):
    policy.save(tmp_path / "policy.npz")
    monkeypatch.setattr(export, "LIMIT", 0.0)
    assert cli.main(["export", str(tmp_path)]) == 2
    assert "would differ from PyTorch" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "policy.onnx").exists()
    (tmp_path / "policy.onnx").write_text("good")
    monkeypatch.setattr(export, "LIMIT", float("nan"))
    assert cli.main(["export", str(tmp_path)]) == 2
    assert (tmp_path / "policy.onnx").read_text() == "good"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["policy.npz", "policy.onnx"]


# Runs side by side.


def finished(tmp_path, seed, value, **changes):
    log = [
        {"update": k, "steps": 10 * k, "return": value, "clip_fraction": 0.1, "kl": 0.01,
         "std": 0.6, "time": {"rate": 1000.0 + k}}
        for k in range(1, 4)
    ]  # fmt: skip
    return Finished(tmp_path / f"{value}", RunConfig(PPOConfig(**changes), V2, seed), log)


def test_runs_that_differ_in_the_seed_are_a_group(tmp_path):
    runs = [finished(tmp_path, s, 100.0 + s) for s in range(3)]
    runs += [finished(tmp_path, s, 200.0 + s, target_kl=0.02) for s in range(3)]
    found = groups(runs)
    assert {name: len(group) for name, group in found.items()} == {
        "target_kl None": 3,
        "target_kl 0.02": 3,
    }
    assert runs[0].figures()["return"] == 100.0
    assert runs[0].figures()["rate"] == 1002.0
    assert list(groups(runs[:3])) == ["all"]
    with pytest.raises(ValueError, match="are the same run"):
        groups([runs[0], runs[1], runs[0]])


def test_welch():
    """By hand: means 2 and 5, variances 1 and 4, so t = -3 / sqrt(1/3 + 4/3)."""
    t, p = welch([1, 2, 3], [3, 5, 7])
    assert t == pytest.approx(-3 / np.sqrt(5 / 3))
    assert p == pytest.approx(0.105, abs=0.001)


def test_compare_runs_prints_and_draws(tmp_path, capsys):
    folders = []
    for lr in ("3e-4", "1e-3"):
        for seed in ("0", "1"):
            tag = f"{lr}-{seed}"
            options = "--n 2 --steps 128 --minibatches 2 --hidden 8 --total-steps 1024"
            run = ["--runs", str(tmp_path), "--tag", tag, "--learning-rate", lr, "--seed", seed]
            assert cli.main(["train", *run, *options.split()]) == 0
            folders.append(str(tmp_path / tag))
    plot, file = tmp_path / "c.png", tmp_path / "c.json"
    arguments = ["compare-runs", *folders, "--plot", str(plot), "--json", str(file)]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "learning_rate 0.0003" in out
    assert "Welch's t-test" in out
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert len(json.loads(file.read_text())["results"]["learning_rate 0.001"]) == 2
    assert cli.main(["compare-runs", str(tmp_path / "nothing")]) == 2
    assert "nothing/log.jsonl" in capsys.readouterr().err.replace("\n", "")
