"""Training: PPO as defined, the same policy whatever the environments run on, exact resumption."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mujoco_vecenv import VecEnv, archive, cli, microduck
from mujoco_vecenv.contract import same_bits
from mujoco_vecenv.microduck.config import MicroduckConfig
from mujoco_vecenv.train import folder as folders
from mujoco_vecenv.train import ppo as ppo_module
from mujoco_vecenv.train import run as run_module
from mujoco_vecenv.train import verify
from mujoco_vecenv.train.config import PRESETS, PPOConfig
from mujoco_vecenv.train.folder import RunConfig, read_checkpoint, read_log
from mujoco_vecenv.train.policy import LAYERS, Normalizer, Policy
from mujoco_vecenv.train.ppo import PPO
from mujoco_vecenv.train.run import Run

TINY = {"n": 2, "steps": 16, "minibatches": 2, "epochs": 2, "hidden": 8, "total_steps": 640}
SMALL = ["--n", "2", "--steps", "16", "--minibatches", "2", "--hidden", "8"]
SHORT = MicroduckConfig(reward="v2", episode_steps=12)


def tiny(**changes) -> RunConfig:
    return RunConfig(PPOConfig(**TINY | changes), SHORT)


@pytest.fixture
def often(monkeypatch):
    """Evaluate a little and write checkpoints, after every other update."""
    monkeypatch.setattr(run_module, "EVERY", 2)
    monkeypatch.setattr(run_module, "EVALUATION_EPISODES", 1)


@pytest.fixture
def learner():
    with VecEnv(2, 5, **vars(SHORT)) as envs:
        learner = PPO(PPOConfig(**TINY | {"target_kl": None}), envs, 14, seed=3)
        yield learner
        learner.close()


# The algorithm.


def test_defaults_are_those_of_the_contract():
    config = PPOConfig()
    assert (config.n, config.steps, config.epochs, config.minibatches) == (8, 256, 5, 8)
    assert (config.learning_rate, config.gamma, config.gae_lambda) == (3e-4, 0.99, 0.95)
    assert (config.clip, config.entropy, config.value, config.max_grad_norm) == (0.2, 0, 0.5, 0.5)
    assert (config.initial_log_std, config.hidden, config.target_kl) == (-0.5, 256, None)


def test_first_weights_are_orthogonal_and_scaled(learner):
    for network, gain in ((learner.actor, 0.01), (learner.critic, 1.0)):
        weights = [layer.weight.detach() for layer in network if hasattr(layer, "weight")]
        for weight, scale in zip(weights, (math.sqrt(2), math.sqrt(2), gain), strict=True):
            wide = weight if weight.shape[0] <= weight.shape[1] else weight.T
            torch.testing.assert_close(wide @ wide.T, scale**2 * torch.eye(len(wide)))
        assert all((layer.bias == 0).all() for layer in network if hasattr(layer, "bias"))
    assert (learner.log_std == -0.5).all()


def test_every_end_is_bootstrapped_from_the_last_observation(learner):
    """Advantages as the textbook has them: one environment, one step at a time, in float64."""
    rollout = learner._collect()
    _, values, advantages = learner._advantages(rollout)
    terminal = rollout.terminal
    config = learner.config
    offset, scale = learner.normalizer.offset_and_scale()

    def value(obs):
        x = torch.from_numpy(np.clip((obs - offset) * scale, -10, 10))
        return float(learner.critic(x).detach())

    assert sorted(terminal) == [(11, 0), (11, 1)]
    for i in range(config.n):
        ahead = 0.0
        for t in reversed(range(config.steps)):
            if (t, i) in terminal:
                following, ahead = value(terminal[t, i]), 0.0
            elif t == config.steps - 1:
                following = value(rollout.following[i])
            else:
                following = value(learner._obs[t + 1, i])
            now = value(learner._obs[t, i])
            delta = learner._rewards[t, i] + config.gamma * following - now
            ahead = delta + config.gamma * config.gae_lambda * ahead
            assert values[t * config.n + i] == pytest.approx(now, abs=1e-5)
            assert advantages[t * config.n + i] == pytest.approx(ahead, abs=1e-4)


def test_an_update_is_that_of_one_adam_over_all_parameters(learner):
    """Two threads, a side each, take the steps that PPO written the usual way takes."""
    config = learner.config
    before = learner.policy_arrays()
    rng = np.random.default_rng((3, 1))
    learner.update()

    actor, critic = (
        ppo_module._mlp(48, config.hidden, outputs, 1.0, torch.Generator()) for outputs in (14, 1)
    )
    log_std = torch.nn.Parameter(torch.from_numpy(before["log_std"]))
    for name, network in (("actor", actor), ("critic", critic)):
        network.load_state_dict(
            {k: torch.from_numpy(before[f"{name}.{k}"]) for k in network.state_dict()}
        )
    optimizer = torch.optim.Adam(
        [*actor.parameters(), log_std, *critic.parameters()], config.learning_rate, eps=1e-5
    )
    with VecEnv(2, 5, **vars(SHORT)) as envs, torch.no_grad():
        noise = torch.from_numpy(rng.standard_normal((16, 2, 14), dtype=np.float32))
        seen, actions, log_probs, values, rewards, ends = [], [], [], [], [], []
        obs = envs.reset()
        for t in range(config.steps):
            x = torch.from_numpy(obs)
            action = actor(x) + noise[t] * log_std.exp()
            normal = torch.distributions.Normal(actor(x), log_std.exp())
            obs, reward, done, infos = envs.step(action.numpy())
            seen.append(x)
            actions.append(action)
            log_probs.append(normal.log_prob(action).sum(1))
            values.append(critic(x)[:, 0])
            rewards.append(torch.from_numpy(reward).float())
            ends.append({i: infos[i]["terminal_obs"] for i in np.flatnonzero(done)})
        values.append(critic(torch.from_numpy(obs))[:, 0])
        advantages = torch.zeros(16, 2)
        for i in range(2):
            ahead = torch.tensor(0.0)
            for t in reversed(range(16)):
                following = values[t + 1][i]
                if i in ends[t]:
                    following, ahead = critic(torch.from_numpy(ends[t][i]))[0], ahead * 0
                delta = rewards[t][i] + config.gamma * following - values[t][i]
                ahead = delta + config.gamma * config.gae_lambda * ahead
                advantages[t, i] = ahead
        x, a, old = (torch.cat(parts) for parts in (seen, actions, log_probs))
        advantages = advantages.reshape(-1)
        targets = advantages + torch.cat(values[:-1])
    for _ in range(config.epochs):
        order = torch.from_numpy(rng.permutation(32))
        for part in order.split(16):
            normal = torch.distributions.Normal(actor(x[part]), log_std.exp())
            ratio = (normal.log_prob(a[part]).sum(1) - old[part]).exp()
            gain = advantages[part]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
            value_loss = 0.5 * (critic(x[part])[:, 0] - targets[part]).square().mean()
            optimizer.zero_grad()
            (policy_loss + value_loss).backward()
            torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            optimizer.step()

    after = learner.policy_arrays()
    moved = 0.0
    for name, network in (("actor", actor), ("critic", critic)):
        for k, value in network.state_dict().items():
            np.testing.assert_allclose(after[f"{name}.{k}"], value, atol=2e-6)
            moved = max(moved, np.abs(after[f"{name}.{k}"] - before[f"{name}.{k}"]).max())
    np.testing.assert_allclose(after["log_std"], log_std.detach(), atol=2e-6)
    assert moved > 5e-4


def test_the_normaliser_has_seen_every_observation_once(learner):
    seen, ended = [], []
    step = learner.envs.step

    def watched(actions):
        result = step(actions)
        ended.extend(result[3][i]["terminal_obs"][None] for i in np.flatnonzero(result[2]))
        return result

    learner.envs.step = watched
    for _ in range(3):
        returns = learner.update().returns
        seen.append(learner._obs.reshape(-1, 48).copy())
        assert len(returns) == (2 if len(seen) < 3 else 4)
    normalizer = learner.normalizer
    assert normalizer.count == 3 * 32 + 8  # the last observations of 8 episodes too
    every = np.concatenate(seen + ended)
    np.testing.assert_allclose(normalizer.mean, every.mean(0, np.float64), atol=1e-12)
    variance = normalizer.squares / normalizer.count
    np.testing.assert_allclose(variance, every.var(0, np.float64), atol=1e-12)


def test_the_normaliser_is_mean_and_variance():
    rng = np.random.default_rng(0)
    values = (5 + 3 * rng.standard_normal((1000, 4))).astype(np.float32)
    values[:, 3] = 7  # never varies
    normalizer = Normalizer(4)
    assert [a.tolist() for a in normalizer.offset_and_scale()] == [[0] * 4, [1] * 4]
    for block in np.split(values, [1, 10, 500]):
        normalizer.update(block)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, exact.mean(0), rtol=1e-13)
    np.testing.assert_allclose(normalizer.squares / 1000, exact.var(0), rtol=1e-12, atol=1e-20)
    offset, scale = normalizer.offset_and_scale()
    assert offset.dtype == scale.dtype == np.float32
    assert scale[3] == np.float32(1e4)  # 1 / sqrt(0 + 1e-8)


def test_the_learning_rate_anneals_to_zero():
    with Run(tiny()) as run:
        lines = [run.update() for _ in range(20)]
    rates = [line["learning_rate"] for line in lines]
    assert rates == [3e-4 * (1 - 32 * k / 640) for k in range(20)]
    assert lines[-1]["steps"] == 640


def test_the_noise_is_learned_or_annealed():
    with Run(tiny()) as run:
        for _ in range(3):
            line = run.update()
        assert run.ppo.policy_arrays()["log_std"].std() > 0
    with Run(tiny(initial_log_std=-1.0, final_log_std=-2.0)) as run:
        lines = [run.update() for _ in range(20)]
    assert [round(math.log(line["std"]), 4) for line in lines] == [
        round(-1 - k / 20, 4) for k in range(20)
    ]
    assert line["std"] != lines[-1]["std"]


def test_correlated_noise_is_standard_normal_at_every_step():
    config = PPOConfig(n=400, steps=16, hidden=8, noise_correlation=0.8)
    with VecEnv(400, **vars(SHORT)) as envs:
        learner = PPO(config, envs, 14, seed=0)
        noise = learner._draw_noise()
        learner.close()
    assert noise.shape == (16, 400, 14)
    assert noise.dtype == np.float32
    for t in range(16):
        assert noise[t].mean() == pytest.approx(0, abs=0.05)
        assert noise[t].std() == pytest.approx(1, abs=0.05)
    for apart in (1, 2, 5):
        products = noise[apart:] * noise[:-apart]
        assert products.mean() == pytest.approx(0.8**apart, abs=0.02)
    assert (noise[3, :, 0] * noise[3, :, 1]).mean() == pytest.approx(0, abs=0.15)


def test_target_kl_ends_an_update_after_the_epoch_that_exceeds_it():
    with Run(tiny(target_kl=1e-9, epochs=5)) as run:
        line = run.update()
    assert line["epochs"] == 1
    assert line["kl"] > 1e-9
    with Run(tiny(target_kl=1e9, epochs=5)) as run:
        assert run.update()["epochs"] == 5


def test_the_step_size_adapts_to_the_kl():
    with Run(tiny(adaptive_kl=1e-9)) as run:
        rates = [run.update()["learning_rate"] for _ in range(8)]
    assert rates == pytest.approx([3e-4 / 1.5**k for k in range(8)])
    with Run(tiny(adaptive_kl=1e9)) as run:
        rates = [run.update()["learning_rate"] for _ in range(8)]
    assert rates == pytest.approx([3e-4 * 1.5**k for k in range(8)])


def test_the_rate_is_watched(monkeypatch):
    with Run(tiny()) as run:
        for rate in [100.0] * 20:
            run._watch(rate)
            assert not run.slow
        run._watch(79.9)
        assert run.slow
        run._watch(80.1)
        assert not run.slow


# The same policy.


@pytest.mark.parametrize("dr", [False, True])
def test_every_backend_trains_the_same_policy(dr, often):
    config = RunConfig(
        PPOConfig(n=3, steps=32, minibatches=4, hidden=32, total_steps=576),
        MicroduckConfig(reward="v2", episode_steps=40, dr=dr),
    )
    trained = {
        name: verify.train(config, **placement) for name, placement in verify.CONTESTANTS.items()
    }
    first = trained["sync"]
    assert len(first.log) == 6
    assert [("evaluation" in line) for line in first.log] == [False, True] * 3
    for result in trained.values():
        assert result.differences(first) == []
        assert archive.digest(result.arrays) == archive.digest(first.arrays)


def test_another_seed_or_a_changed_last_bit_is_noticed(often):
    first = verify.train(tiny())
    other = verify.train(RunConfig(tiny().ppo, SHORT, seed=1))
    assert "actor.0.weight" in first.differences(other)
    assert "log" in first.differences(other)
    arrays = dict(first.arrays)
    arrays["log_std"] = np.nextafter(arrays["log_std"], np.float32(9))
    assert first.differences(verify.Trained(arrays, first.log)) == ["log_std"]


def test_verify_backends_says_so(capsys):
    assert cli.main(["train", "--verify-backends", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "The same policy, byte for byte." in out
    assert out.count(" none") == 4


# Checkpoints.


def run_to_end(folder, config=None, checkpoint=None):
    with Run(config or tiny(), folder, threads=1, checkpoint=checkpoint) as run:
        while run.ppo.steps_done < run.config.ppo.total_steps:
            run.update()
        run.checkpoint()


def left_behind(folder):
    """Return all that must not depend on interruptions."""
    log = [verify.timeless(line) for line in read_log(folder)]
    files = [(folder / name).read_bytes() for name in (folders.CHECKPOINT, "policy.npz")]
    return log, files


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path, often):
    run_to_end(tmp_path / "whole")
    with Run(tiny(), tmp_path / "parts", backend="sync") as run:
        for _ in range(7):  # one more than the last checkpoint
            run.update()
    checkpoint = read_checkpoint(tmp_path / "parts")
    assert int(checkpoint.arrays["updates"]) == 6
    assert len(checkpoint.log) == 6
    run_to_end(tmp_path / "parts", checkpoint.config, checkpoint)
    assert left_behind(tmp_path / "parts") == left_behind(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from mujoco_vecenv.train import run as run_module
from mujoco_vecenv.train.run import Run
sys.path.insert(0, {tests!r})
from test_train import tiny

run_module.EVERY = 2
run_module.EVALUATION_EPISODES = 1
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
calls = 0
if {moment!r} == "half written":
    savez = np.savez
    def half(file, **arrays):
        global calls
        calls += 1
        savez(file, **arrays)
        if calls == 3:  # the checkpoint of update 2; each is followed by the policy
            file.truncate(file.tell() // 2)
            file.flush()
            kill()
    np.savez = half
else:
    replace = Path.replace
    def killed(self, target):
        global calls
        # The log's own, three of the first checkpoint, then four of that of update 2.
        if calls == 4 + {moment!r}:
            kill()
        calls += 1
        return replace(self, target)
    Path.replace = killed
with Run(tiny(), Path({folder!r}), threads=1) as run:
    for _ in range(20):
        run.update()
"""


@pytest.mark.parametrize("moment", ["half written", 0, 1, 2, 3])
def test_killed_while_writing_a_checkpoint(tmp_path, often, moment):
    """Whenever it is killed, a checkpoint is whole and the run goes on from it to the same end."""
    script = KILLED.format(
        moment=moment, folder=str(tmp_path / "killed"), tests=os.path.dirname(__file__)
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    checkpoint = read_checkpoint(tmp_path / "killed")
    assert int(checkpoint.arrays["updates"]) == (2 if moment in (2, 3) else 0)
    run_to_end(tmp_path / "killed", checkpoint.config, checkpoint)
    run_to_end(tmp_path / "whole")
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")


def test_the_command_killed_and_resumed(tmp_path):
    """`kill -9` at whatever moment, twice, then to the end; and Ctrl-C, which loses nothing."""
    options = [*SMALL, "--total-steps", "3200", "--threads", "1"]
    base = [sys.executable, "-m", "mujoco_vecenv", "train", "--runs", str(tmp_path)]
    assert cli.main([*base[3:], "--tag", "whole", *options]) == 0

    command = [*base, "--tag", "killed", *options]
    for stop in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        log = tmp_path / "killed" / folders.LOG
        before = len(log.read_text().splitlines()) if log.exists() else 0
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and len(log.read_text().splitlines()) >= before + 25:
                break
            time.sleep(0.01)
        process.send_signal(stop)
        process.wait(60)
        command = [*base, "--tag", "killed", "--resume", "--threads", "2"]
    if process.returncode != 0:
        assert cli.main(command[3:]) == 0
    assert left_behind(tmp_path / "killed") == left_behind(tmp_path / "whole")


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, often):
    with Run(tiny(), tmp_path) as run:
        for _ in range(4):
            run.update()
    damage(tmp_path / folders.CHECKPOINT)
    with pytest.raises(ValueError, match="or it is damaged"):
        read_checkpoint(tmp_path / folders.CHECKPOINT)
    told = []
    checkpoint = read_checkpoint(tmp_path, told.append)
    assert int(checkpoint.arrays["updates"]) == 2
    assert "going on from" in told[0]
    # The damaged one takes the place of the good one while the next is written: still one is whole.
    (tmp_path / folders.CHECKPOINT).replace(tmp_path / folders.PREVIOUS)
    with Run(tiny(), tmp_path / "other", checkpoint=checkpoint) as run:
        run.update()
        run.checkpoint()
    (tmp_path / "other" / folders.CHECKPOINT).replace(tmp_path / "checkpoint.next.npz")
    with open(tmp_path / folders.LOG, "w") as log:
        log.writelines((tmp_path / "other" / folders.LOG).read_text())
    assert int(read_checkpoint(tmp_path, told.append).arrays["updates"]) == 3


def test_a_run_has_a_checkpoint_from_the_start(tmp_path, capsys):
    base = ["train", "--runs", str(tmp_path)]
    with Run(tiny(), tmp_path / "a"):
        pass
    assert cli.main([*base, "--tag", "a", "--resume", "--chunk-steps", "32"]) == 0
    assert len(read_log(tmp_path / "a")) == 1
    with Run(tiny(), tmp_path / "b", checkpoint=read_checkpoint(tmp_path / "a")):
        pass
    assert int(read_checkpoint(tmp_path / "b").arrays["updates"]) == 1


def test_one_process_trains_in_a_folder(tmp_path, capsys):
    with Run(tiny(), tmp_path / "a") as run:
        run.update()
        arguments = ["train", "--runs", str(tmp_path), "--tag", "a", "--resume"]
        assert cli.main(arguments) == 2
        assert f"another process is training in {tmp_path / 'a'}" in capsys.readouterr().err
        run.checkpoint()
    assert len(read_checkpoint(tmp_path / "a").log) == 1


@pytest.mark.parametrize("harm", ["lost lines", "garbage", "foreign"])
def test_a_log_that_does_not_lead_to_the_checkpoint_is_refused(tmp_path, often, harm):
    with Run(tiny(), tmp_path) as run:
        for _ in range(4):
            run.update()
    log = tmp_path / folders.LOG
    text = log.read_text()
    lines = text.splitlines(keepends=True)
    log.write_text(
        {
            "foreign": text.replace('"update": ', '"update": 1'),
            "lost lines": "".join(lines[:1] + lines[2:]),
            "garbage": "\x00" + text,
        }[harm]
    )
    with pytest.raises(ValueError, match="does not lead up to update 4"):
        read_checkpoint(tmp_path)
    # A checkpoint by itself, with no log beside it, is enough to go on from.
    log.unlink()
    with Run(tiny(), tmp_path / "on", checkpoint=read_checkpoint(tmp_path)) as run:
        run.update()
        run.checkpoint()
    assert [line["update"] for line in read_log(tmp_path / "on")] == [5]
    assert len(read_checkpoint(tmp_path / "on").log) == 1


def test_a_log_that_was_cut_leads_to_the_checkpoint_before(tmp_path, often):
    with Run(tiny(), tmp_path) as run:
        for _ in range(4):
            run.update()
    log = tmp_path / folders.LOG
    log.write_text(log.read_text()[:-20])
    told = []
    checkpoint = read_checkpoint(tmp_path, told.append)
    assert int(checkpoint.arrays["updates"]) == len(checkpoint.log) == 2
    assert "does not lead up to update 4" in told[0]


def test_a_checkpoint_without_a_log_is_not_overwritten(tmp_path):
    with Run(tiny(), tmp_path):
        pass
    (tmp_path / folders.LOG).unlink()
    with pytest.raises(FileExistsError, match="holds a run already"):
        Run(tiny(), tmp_path)


def test_a_finished_run_says_so_and_mends_its_policy(tmp_path, capsys):
    base = ["train", "--runs", str(tmp_path), "--tag", "a"]
    assert cli.main([*base, *SMALL, "--total-steps", "64"]) == 0
    policy = tmp_path / "a" / "policy.npz"
    whole = policy.read_bytes()
    policy.write_bytes(b"stale")
    assert cli.main([*base, "--resume"]) == 0
    assert "has done its 64 steps" in capsys.readouterr().out
    assert policy.read_bytes() == whole
    arguments = ["train", "--runs", str(tmp_path), "--tag", "b", "--resume", str(tmp_path / "a")]
    assert cli.main(arguments) == 2
    assert not (tmp_path / "b").exists()


def test_another_model_is_refused(tmp_path, monkeypatch, capsys):
    with Run(tiny(), tmp_path / "a"):
        pass
    assets = tmp_path / "assets"
    models = Path(microduck.__file__).parent / "models"
    shutil.copytree(models, assets)
    scene = assets / "scene.xml"
    monkeypatch.setenv("MUJOCO_VECENV_ASSETS", str(assets))
    base = ["train", "--runs", str(tmp_path), "--tag", "a", "--resume", "--chunk-steps", "32"]
    assert cli.main(base) == 0  # the same model elsewhere
    scene.write_text(scene.read_text().replace('mass="0.199224"', 'mass="0.5"'))
    assert cli.main(base) == 2
    assert "model is '" in capsys.readouterr().err


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_ends_after_the_update(tmp_path, stop):
    command = [sys.executable, "-m", "mujoco_vecenv", "train", "--runs", str(tmp_path), *SMALL]
    process = subprocess.Popen(
        [*command, "--tag", "a", "--backend", "process"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = tmp_path / "a" / folders.LOG
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
        time.sleep(0.01)
    os.killpg(process.pid, stop)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert f"mjvec train --resume --runs {tmp_path} --tag a" in out
    assert len(read_log(tmp_path / "a")) == int(read_checkpoint(tmp_path / "a").arrays["updates"])


def test_divergence_is_named_and_not_kept(tmp_path, capsys):
    base = ["train", "--runs", str(tmp_path), "--tag", "a", *SMALL]
    assert cli.main([*base, "--learning-rate", "1e30"]) == 2
    assert "lower --learning-rate (1e+30)" in capsys.readouterr().err
    assert np.isfinite(Policy.load(tmp_path / "a").arrays["actor.0.weight"]).all()


@pytest.mark.parametrize("name", ["[red]a[/b]", "$a^{$", "a b"])
def test_names_are_names(tmp_path, capsys, name):
    base = ["train", "--runs", str(tmp_path), "--tag", name]
    assert cli.main([*base, *SMALL, "--total-steps", "640"]) == 0
    folder = str(tmp_path / name)
    few = ["--episodes", "1", "--seeds", "1"]
    assert cli.main(["eval", folder, *few, "--plot", str(tmp_path / "e.png")]) == 0
    assert cli.main(["gap", folder, *few, "--variants", "walk"]) == 0
    assert cli.main(["compare-runs", folder, "--plot", str(tmp_path / "c.png")]) == 0
    assert name in capsys.readouterr().out.replace("\n", "")
    damage(Path(folder, folders.CHECKPOINT))
    assert cli.main([*base, "--resume"]) == 0
    assert f"going on from {folder}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("arrays", "rng", np.full(6, 2**64 - 1, np.uint64)),
        ("arrays", "steps_done", np.array(-1)),
        ("arrays", "updates", np.zeros(3)),
        ("arrays", "log_std", np.full(14, np.nan, np.float32)),
        ("header", "seed", "x"),
        ("header", "config", []),
        ("header", "ppo", {"n": 0}),
    ],
)
def test_damaged_contents_are_refused(tmp_path, capsys, where, name, value):
    with Run(tiny(), tmp_path / "a"):
        pass
    path = tmp_path / "a" / folders.CHECKPOINT
    header, arrays = archive.load(path, "mujoco-vecenv checkpoint", 1)
    {"arrays": arrays, "header": header}[where][name] = value
    archive.save(tmp_path / "bad.npz", "mujoco-vecenv checkpoint", 1, header, arrays)
    base = ["train", "--runs", str(tmp_path), "--tag", "b", "--resume"]
    assert cli.main([*base, str(tmp_path / "bad.npz")]) == 2
    assert capsys.readouterr().err.startswith("mjvec train: ")
    assert not (tmp_path / "b").exists()


def test_foreign_files_are_refused(tmp_path, often):
    with Run(tiny(), tmp_path / "run") as run:
        run.update()
        run.checkpoint()
    policy = tmp_path / "run" / "policy.npz"
    with pytest.raises(ValueError, match="'mujoco-vecenv policy' of version 1; expected"):
        read_checkpoint(policy)
    with pytest.raises(ValueError, match="expected 'mujoco-vecenv policy' of version 1"):
        Policy.load(tmp_path / "run" / folders.CHECKPOINT)
    torch.save({"a": 1}, tmp_path / "foreign.pt")
    for load in (read_checkpoint, Policy.load):
        with pytest.raises(ValueError, match="or it is damaged"):
            load(tmp_path / "foreign.pt")
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "nothing")


def test_files_that_would_run_code_do_not(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    np.savez(tmp_path / "evil.npz", header=np.array([Evil()], dtype=object))
    for load in (read_checkpoint, Policy.load):
        with pytest.raises(ValueError, match="allow_pickle=False"):
            load(tmp_path / "evil.npz")
    assert not (tmp_path / "evil").exists()


def test_a_checkpoint_that_does_not_fit_is_named(tmp_path, often):
    with Run(tiny(), tmp_path / "run") as run:
        run.update()
        run.checkpoint()
    checkpoint = read_checkpoint(tmp_path / "run")
    del checkpoint.arrays["adam.actor.0.exp_avg"]
    with pytest.raises(ValueError, match=r"no 'adam\.actor\.0\.exp_avg'"):
        Run(tiny(), None, checkpoint=checkpoint)
    checkpoint = read_checkpoint(tmp_path / "run")
    checkpoint.arrays["critic.0.bias"] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"'critic\.0\.bias' is float32 \(3,\)"):
        Run(tiny(), None, checkpoint=checkpoint)
    with pytest.raises(FileExistsError, match="holds a run already"):
        Run(tiny(), tmp_path / "run")


def test_what_a_resumed_run_cannot_change(tmp_path, capsys):
    base = ["train", "--runs", str(tmp_path), "--tag", "a"]
    options = [*SMALL, "--total-steps", "64"]
    assert cli.main([*base, *options, "--chunk-steps", "32"]) == 0
    for wrong, message in {
        "--n 4": "keeps n=2",
        "--hidden 16": "keeps hidden=8",
        "--seed 1": "has seed 0",
        "--reward v1": "has reward 'v2'",
        "--dr": "has dr None",
        "--preset stand": "leave --preset out",
        "--learning-rate 0": "learning_rate must be positive",
    }.items():
        assert cli.main([*base, "--resume", *wrong.split()]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
    assert cli.main(base) == 2
    assert "holds a run already" in capsys.readouterr().err.replace("\n", " ")
    # Another folder goes on from it with another stop, and leaves it alone.
    branch = ["train", "--runs", str(tmp_path), "--tag", "b", "--resume", str(tmp_path / "a")]
    assert cli.main([*branch, "--target-kl", "0.02"]) == 0
    assert [len(read_log(tmp_path / tag)) for tag in "ab"] == [1, 2]
    assert read_checkpoint(tmp_path / "b").config.ppo.target_kl == 0.02


# The command.


def test_training_leaves_a_log_a_curve_and_a_policy(tmp_path, capsys):
    options = [*SMALL, "--total-steps", "672", "--dr"]
    assert cli.main(["train", "--runs", str(tmp_path), "--tag", "a", *options]) == 0
    out = capsys.readouterr().out
    assert "640 steps" in out
    assert "evaluated" in out
    folder = tmp_path / "a"
    log = read_log(folder)
    assert [line["steps"] for line in log] == list(range(32, 704, 32))
    assert log[-1]["return"] is not None
    assert set(log[19]["evaluation"]) == {"return", "sd_episodes", "upright", "height_median"}
    assert (folder / "curve.png").read_bytes()[:4] == b"\x89PNG"
    policy = Policy.load(folder)
    assert policy.header["steps"] == 672
    assert policy.config.dr is not None
    assert policy.arrays["actor.4.weight"].shape == (14, 8)
    assert len(LAYERS) == 3


def test_presets_are_valid():
    for preset in PRESETS.values():
        PPOConfig(**preset.ppo)
        MicroduckConfig(**preset.env)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.5}, "gamma must be 1 or less, got 1.5"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"clip": float("nan")}, "clip must be finite, got nan"),
        ({"n": 0}, "n must be 1 or more, got 0"),
        ({"minibatches": 7}, "8 x 256 = 2048 observations cannot be split into 7"),
        ({"target_kl": -1.0}, "target_kl must be positive, got -1.0"),
        ({"entropy": -0.1}, "entropy must be 0 or more, got -0.1"),
        ({"minibatches": 2048}, "minibatches=2048 leaves fewer than two of the n x steps = 2048"),
        ({"noise_correlation": 1.0}, "from 0 to below 1, got 1.0"),
    ],
)
def test_unusable_values(values, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**values)


def test_training_without_torch_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mujoco_vecenv import cli\n"
        f"sys.exit(cli.main(['train', '--runs', {str(tmp_path)!r}]))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 2
    assert "pip install 'mujoco-vecenv[train]'" in process.stderr.replace("\n", " ")


def test_state_round_trip(learner):
    learner.update()
    state = learner.state_arrays()
    learner.update()
    after = learner.state_arrays()
    learner.set_state(state)
    for name, array in learner.state_arrays().items():
        assert same_bits(array, state[name]), name
    learner.update()
    for name, array in learner.state_arrays().items():
        assert same_bits(array, after[name]), name
    assert json.loads(str(state["envs.header"]))["n"] == 2


def test_tensorboard_gets_the_log(tmp_path):
    base = ["train", "--runs", str(tmp_path), "--tag", "a", "--tensorboard"]
    assert cli.main([*base, *SMALL, "--total-steps", "96", "--chunk-steps", "64"]) == 0
    assert cli.main([*base, "--resume"]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("kl")] == [32, 64, 96]
    assert [event.value for event in events.Scalars("kl")] == pytest.approx(
        [line["kl"] for line in read_log(tmp_path / "a")], abs=1e-7
    )
