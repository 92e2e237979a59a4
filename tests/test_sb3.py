"""Every task is a VecEnv of Stable-Baselines3's, equal to its DummyVecEnv to the last bit."""

import re

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from mujoco_vecenv.engine import budget
from mujoco_vecenv.vector.sb3 import SB3VecEnv


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small train slower on more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_dummy(name, n=3, seed=None, **options):
    """Return Stable-Baselines3's own over Gymnasium's environments."""
    envs = DummyVecEnv([lambda: gymnasium.make(name, **options)] * n)
    if seed is not None:
        envs.seed(seed)
    return envs


def same(a, b, where="result"):
    """Assert that two results have the same keys, types, shapes and bits."""
    if isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{k}]")
    elif isinstance(a, dict):
        assert set(a) == set(b), where
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    else:
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), (where, a, b)


def drive(a, b, steps, dtype=np.float32):
    """Step two alike, assert that they stay the same; return the infos of the steps that ended."""
    rng = np.random.default_rng(0)
    low, high = np.tile(a.action_space.low, (3, 1)), np.tile(a.action_space.high, (3, 1))
    ended = []
    for t in range(steps):
        actions = rng.uniform(low, high).astype(dtype)
        step = a.step(actions)
        same(step, b.step(actions), f"step {t}")
        same(a.reset_infos, b.reset_infos, f"reset infos at {t}")
        ended += [info for info, done in zip(step[3], step[2], strict=True) if done]
    return ended


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "limit"), [("Hopper-v5", 20), ("Humanoid-v5", 4), ("Reacher-v5", None)]
)
def test_equal_to_dummy_vec_env(name, limit, dtype):
    a = SB3VecEnv(name, 3, seed=7, max_episode_steps=limit)
    b = make_dummy(name, seed=7, max_episode_steps=limit)
    assert isinstance(a, VecEnv)
    assert (a.num_envs, a.render_mode) == (3, None)
    assert (a.observation_space, a.action_space) == (b.observation_space, b.action_space)
    same(a.reset(), b.reset())
    same(a.reset_infos, b.reset_infos)
    ended = drive(a, b, 60, dtype)
    assert any(info["TimeLimit.truncated"] for info in ended)
    assert all(info["TimeLimit.truncated"] for info in ended) == (name != "Hopper-v5")
    assert all("terminal_observation" in info for info in ended)
    same(a.reset(), b.reset())  # goes on with the same stream
    assert a.seed(11) == b.seed(11)
    same(a.reset(), b.reset())
    drive(a, b, 5, dtype)


def test_an_end_that_is_both_is_no_time_limit():
    a = SB3VecEnv("InvertedPendulum-v5", 3, seed=0, max_episode_steps=1, reset_noise_scale=1.0)
    options = {"max_episode_steps": 1, "reset_noise_scale": 1.0}
    b = make_dummy("InvertedPendulum-v5", seed=0, **options)
    same(a.reset(), b.reset())
    limits = [info["TimeLimit.truncated"] for info in drive(a, b, 20)]
    assert len(limits) == 60
    assert set(limits) == {False, True}


def test_returned_arrays_are_the_callers():
    a, b = (SB3VecEnv("Hopper-v5", 3, seed=0, max_episode_steps=5) for _ in range(2))
    a.reset()[:] = 1
    b.reset()
    for _ in range(15):
        step = a.step(np.zeros((3, 3), np.float32))
        same(step, b.step(np.zeros((3, 3), np.float32)))
        for array in step[:3]:
            array[:] = 1
        for info in step[3]:
            info.clear()


def train(algorithm, envs, steps, **options):
    """Return the trained weights."""
    model = algorithm("MlpPolicy", envs, seed=3, device="cpu", **options).learn(steps)
    return {name: weight.numpy() for name, weight in model.policy.state_dict().items()}


@pytest.mark.parametrize(
    ("algorithm", "steps", "options"),
    [
        (PPO, 2048, {"n_steps": 128, "n_epochs": 3}),
        (SAC, 300, {"learning_starts": 60, "policy_kwargs": {"net_arch": [16]}}),
    ],
)
def test_training_gives_the_same_weights(algorithm, steps, options):
    name = "InvertedPendulum-v5"
    ours = train(algorithm, SB3VecEnv(name), steps, **options)
    same(ours, train(algorithm, make_dummy(name, n=4), steps, **options))


def timeless(step):
    """Take the wall-clock time out of the episodes' statistics."""
    for info in step[3]:
        info.get("episode", {}).pop("t", None)
    return step


def test_wrappers():
    a, b = (
        VecNormalize(VecMonitor(envs))
        for envs in (
            SB3VecEnv("Hopper-v5", 3, seed=0, max_episode_steps=15),
            make_dummy("Hopper-v5", seed=0, max_episode_steps=15),
        )
    )
    same(a.reset(), b.reset())
    episodes = 0
    for _ in range(60):
        actions = np.ones((3, 3), np.float32)
        step = timeless(a.step(actions))
        same(step, timeless(b.step(actions)))
        episodes += sum("episode" in info for info in step[3])
    assert episodes == a.venv.episode_count >= 12
    same(a.obs_rms.mean, b.obs_rms.mean)
    same(a.ret_rms.var, b.ret_rms.var)


def test_evaluate_policy():
    model = PPO("MlpPolicy", SB3VecEnv("Hopper-v5", 2), seed=0, device="cpu")
    with pytest.warns(UserWarning, match="not wrapped with a ``Monitor`` wrapper"):
        evaluate_policy(model, SB3VecEnv("Hopper-v5", 2, seed=5), n_eval_episodes=1)
    results = [
        evaluate_policy(model, VecMonitor(envs), 6, return_episode_rewards=True)
        for envs in (SB3VecEnv("Hopper-v5", 2, seed=5), make_dummy("Hopper-v5", n=2, seed=5))
    ]
    same(*results)


def test_what_a_batch_has_no_separate_environments_for():
    envs = SB3VecEnv("Hopper-v5", 3)
    assert envs.get_attr("render_mode") == [None] * 3
    assert envs.get_attr("action_space", indices=1) == [envs.action_space]
    assert envs.env_is_wrapped(Monitor) == [False] * 3
    assert envs.env_is_wrapped(Monitor, indices=[0, 2]) == [False] * 2
    assert envs.has_attr("metadata")
    assert not envs.has_attr("unwrapped_model")
    with pytest.raises(AttributeError, match="no attribute 'model' to get; they share action_sp"):
        envs.get_attr("model")
    with pytest.raises(AttributeError, match="no attribute 'frame_skip' to set: pass the task's"):
        envs.set_attr("frame_skip", 3)
    with pytest.raises(AttributeError, match="no method 'render' to call"):
        envs.env_method("render")
    with pytest.warns(UserWarning, match="no `render_mode` was passed"):
        assert envs.render() is None


def test_wrong_arguments():
    a, b = (SB3VecEnv("Hopper-v5", 3, seed=0) for _ in range(2))
    with pytest.raises(RuntimeError, match=r"step\(\) before the first reset\(\)"):
        a.step(np.zeros((3, 3), np.float32))
    same(a.reset(), b.reset())
    with pytest.raises(ValueError, match=re.escape("actions must have shape (3, 3)")):
        a.step(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="actions must be finite"):
        a.step(np.full((3, 3), np.nan))
    drive(a, b, 3)
    with pytest.raises(ValueError, match="seed must be 0 or more, got -1"):
        SB3VecEnv("Hopper-v5", seed=-1)
    with pytest.raises(TypeError, match=re.escape("'frame_skp' (did you mean 'frame_skip'?)")):
        SB3VecEnv("Hopper-v5", frame_skp=3)
    with pytest.raises(ValueError, match=re.escape("'Hoper-v5' (did you mean 'Hopper-v5'?)")):
        SB3VecEnv("Hoper-v5")
    with pytest.raises(ValueError, match="is more than the"):
        SB3VecEnv("Hopper-v5", threads=budget.usable_cpus() + 1)


def test_closing():
    envs = SB3VecEnv("Hopper-v5")
    envs.reset()
    envs.close()
    envs.close()
    with pytest.raises(RuntimeError, match="is closed"):
        envs.reset()
