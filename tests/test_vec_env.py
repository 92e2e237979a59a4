"""What a VecEnv promises its user, on every backend, and how it refuses what it cannot do."""

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import mujoco
import numpy as np
import pytest

from mujoco_vecenv import MicroduckEnv, VecEnv
from mujoco_vecenv.engine import budget
from mujoco_vecenv.engine.simulations import PhysicsError
from mujoco_vecenv.microduck.config import SCENES
from mujoco_vecenv.microduck.robot import ModelError, scene_path
from mujoco_vecenv.vector.process import WorkerError
from mujoco_vecenv.vector.vec_env import BACKENDS

CPUS = budget.usable_cpus()


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def test_shapes_and_types(backend):
    with VecEnv(3, backend=backend) as envs:
        assert envs.reset().shape == (3, 48)
        obs, rewards, done, infos = envs.step(np.zeros((3, 14)))
    assert (obs.shape, obs.dtype) == ((3, 48), np.float32)
    assert (rewards.shape, rewards.dtype) == ((3,), np.float64)
    assert (done.shape, done.dtype) == ((3,), bool)
    assert len(infos) == 3
    assert list(infos[-1]) == [
        "trunk_height",
        "upright_cos",
        "fallen",
        "pushed",
        "t",
        "truncated",
        "terminated",
        "reward",
    ]
    assert [type(value) for value in infos[0].values()] == [
        float,
        float,
        bool,
        bool,
        int,
        bool,
        bool,
        str,
    ]


def test_terms_come_when_asked_for_and_sum_to_the_reward(backend):
    with VecEnv(2, backend=backend, with_terms=True) as envs:
        _, rewards, _, infos = envs.step(np.zeros((2, 14)))
    for reward, info in zip(rewards, infos, strict=True):
        total = 0.0
        for term in info["terms"].values():
            total += term
        assert reward == total
        assert list(info["terms"]) == [
            "upright",
            "height",
            "posture",
            "action_rate",
            "joint_vel",
            "effort",
        ]


def test_reset_without_a_seed_changes_nothing(backend):
    with VecEnv(2, backend=backend, sensor_noise=True) as one, VecEnv(2, sensor_noise=True) as two:
        obs, *_ = one.step(np.zeros((2, 14)))
        two.step(np.zeros((2, 14)))
        assert one.reset().tobytes() == one.reset().tobytes() == obs.tobytes()
        assert one.step(np.ones((2, 14)))[0].tobytes() == two.step(np.ones((2, 14)))[0].tobytes()


def test_reset_with_a_seed_begins_anew(backend):
    with VecEnv(3, seed=5, backend=backend, sensor_noise=True) as envs:
        first = envs.reset()
        envs.step(np.ones((3, 14)))
        assert envs.reset(seed=5).tobytes() == first.tobytes()
        assert envs.reset(seed=6)[0].tobytes() == first[1].tobytes()


def test_returned_arrays_are_the_callers(backend):
    with VecEnv(2, backend=backend) as envs:
        first = envs.reset()
        kept = [first, *envs.step(np.zeros((2, 14)))[:3]]
        copies = [array.copy() for array in kept]
        for _ in range(3):
            envs.step(np.ones((2, 14)))
        for array, copy in zip(kept, copies, strict=True):
            assert array.tobytes() == copy.tobytes()
        expected = envs.reset()
        envs.reset()[:] = 7
        kept[1][:] = 7
        assert envs.reset().tobytes() == expected.tobytes()


def test_an_episode_ends_in_a_truncation(backend):
    with VecEnv(2, backend=backend, episode_steps=3) as envs:
        for t in (1, 2, 3):
            obs, _, done, infos = envs.step(np.zeros((2, 14)))
            assert done.tolist() == [t == 3] * 2
            assert [info["t"] for info in infos] == [t, t]
            assert [info["truncated"] for info in infos] == [t == 3] * 2
            assert not any(info["terminated"] for info in infos)
        assert infos[0]["terminal_obs"].shape == (48,)
        assert infos[0]["terminal_obs"].tobytes() != obs[0].tobytes()
        assert "terminal_obs" not in envs.step(np.zeros((2, 14)))[3][0]
        # the episode ended, not the environment: the infos of its last step stay as they were
        assert infos[1]["t"] == 3


def test_infos_are_a_sequence():
    with VecEnv(3, episode_steps=1) as envs:
        infos = envs.step(np.zeros((3, 14)))[3]
    assert [info["t"] for info in infos[1:]] == [1, 1]
    assert infos[0] is infos[0]
    assert len(list(infos)) == 3
    with pytest.raises(IndexError):
        infos[3]
    with pytest.raises(TypeError):
        infos["terms"]


def test_closing(backend):
    envs = VecEnv(2, backend=backend)
    envs.close()
    envs.close()
    for use in (envs.reset, lambda: envs.reset(seed=1), lambda: envs.step(np.zeros((2, 14)))):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    with VecEnv(2, backend=backend) as envs:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        envs.step(np.zeros((2, 14)))


BAD_KEYWORDS = [
    ({"variant": "groundcontct"}, ValueError, "did you mean 'groundcontact'"),
    ({"variant": ["walk"]}, ValueError, "unknown variant"),
    ({"reward": "v3"}, ValueError, "unknown reward 'v3'"),
    ({"latencey": 1}, TypeError, "'latencey'.*did you mean 'latency'"),
    ({"thread": 1}, TypeError, "'thread'.*did you mean 'threads'"),
    ({"n": 0}, ValueError, "n must be 1 or more, got 0"),
    ({"n": 2.0}, TypeError, "n must be an integer, got 2.0"),
    ({"n": True}, TypeError, "n must be an integer"),
    ({"seed": -1}, ValueError, "seed must be 0 or more"),
    ({"seed": None}, TypeError, "seed must be an integer"),
    ({"threads": 0}, ValueError, "threads must be 1 or more"),
    ({"threads": "2"}, TypeError, "threads must be an integer"),
    ({"threads": CPUS + 1}, ValueError, f"threads={CPUS + 1}.*allow_overcommit"),
    ({"episode_steps": 0}, ValueError, "episode_steps must be 1 or more"),
    ({"latency": -1}, ValueError, "latency must be 0 or more"),
    ({"latency": 250}, ValueError, "latency=250 must be below episode_steps=250"),
    ({"latency": 1.5}, TypeError, "latency must be an integer"),
    ({"init_noise": -0.1}, ValueError, "init_noise must be 0 … 1e"),
    ({"init_noise": float("nan")}, ValueError, "init_noise must be finite"),
    ({"action_scale": float("inf")}, ValueError, "action_scale must be finite"),
    ({"action_scale": "big"}, TypeError, "action_scale must be a number"),
    ({"push_speed": (0.3, 0.1)}, ValueError, "push_speed must be 0 <= lowest <= highest"),
    ({"push_speed": 0.3}, TypeError, "push_speed must be two numbers"),
    ({"sensor_noise": 1}, TypeError, "sensor_noise must be True or False"),
    ({"assets_dir": "/nowhere"}, FileNotFoundError, "/nowhere/scene.xml does not exist"),
]


@pytest.mark.parametrize(("keywords", "error", "message"), BAD_KEYWORDS)
def test_bad_keywords_are_refused(backend, keywords, error, message):
    with pytest.raises(error, match=message):
        VecEnv(**{"n": 2, "backend": backend, **keywords})


def test_unknown_backend_is_refused():
    with pytest.raises(ValueError, match=r"unknown backend 'proces'.*did you mean 'process'"):
        VecEnv(2, backend="proces")


def bad_actions():
    nan, inf = np.zeros((2, 14)), np.zeros((2, 14))
    nan[1, 3], inf[0, 13] = np.nan, -np.inf
    return [
        (np.zeros((3, 14)), ValueError, r"must have shape \(2, 14\).*got \(3, 14\)"),
        (np.zeros(14), ValueError, r"must have shape \(2, 14\).*got \(14,\)"),
        (np.zeros((2, 14), bool), TypeError, "must be real numbers, got dtype bool"),
        (np.zeros((2, 14), complex), TypeError, "got dtype complex128"),
        (np.full((2, 14), "0"), TypeError, "must be real numbers"),
        (None, TypeError, "must be real numbers"),
        (nan, ValueError, r"environment 1, action 3 \(left_knee\) is nan"),
        (inf, ValueError, r"environment 0, action 13 \(right_ankle\) is -inf"),
        (nan.astype(np.float32), ValueError, "environment 1, action 3"),
    ]


@pytest.mark.parametrize(("actions", "error", "message"), bad_actions())
def test_bad_actions_are_refused_and_nothing_moves(backend, actions, error, message):
    with VecEnv(2, backend=backend, latency=1) as envs, VecEnv(2, latency=1) as untouched:
        envs.step(np.ones((2, 14)))
        untouched.step(np.ones((2, 14)))
        with pytest.raises(error, match=message):
            envs.step(actions)
        for _ in range(3):
            ours, theirs = envs.step(np.zeros((2, 14))), untouched.step(np.zeros((2, 14)))
            assert ours[0].tobytes() == theirs[0].tobytes()
            assert ours[1].tobytes() == theirs[1].tobytes()


def test_integers_lists_and_other_memory_orders_are_actions(backend):
    with VecEnv(2, backend=backend) as envs, VecEnv(2) as other:
        ours = envs.step([[1] * 14, [0] * 14])
        theirs = other.step(np.asfortranarray([[1.0] * 14, [0.0] * 14]))
        assert ours[0].tobytes() == theirs[0].tobytes()


def test_single_environment_refuses_too():
    env = MicroduckEnv()
    with pytest.raises(RuntimeError, match="before the first reset"):
        env.step(np.zeros(14))
    env.reset()
    with pytest.raises(ValueError, match=r"shape \(14,\)"):
        env.step(np.zeros(13))
    with pytest.raises(ValueError, match=r"action 4 \(left_ankle\) is inf"):
        env.step(np.r_[np.zeros(4), np.inf, np.zeros(9)])
    with pytest.raises(TypeError, match=r"'varient'.*did you mean 'variant'"):
        MicroduckEnv(varient="walk")


def copy_of_models(folder, old, new):
    """Copy the packaged models to a folder, replacing a text in all of them."""
    for variant, name in SCENES.items():
        text = scene_path_of(variant).read_text()
        (folder / name).write_text(text.replace(old, new))
    return folder


def scene_path_of(variant):
    from mujoco_vecenv.microduck.config import MicroduckConfig

    return scene_path(MicroduckConfig(variant=variant))


BAD_MODELS = [
    ('name="head_yaw"', 'name="head_yew"', "no joint named 'head_yaw'"),
    ('name="orientation"', 'name="orient"', "no sensor named 'orientation'"),
    ('<key name="STAND"', '<key name="STOOD"', "no keyframe named 'STAND'"),
    ('name="trunk_base"', 'name="trunk"', "no body named 'trunk_base'"),
    ('name="floor" type', 'name="ground" type', "no geom named 'floor'"),
]

UNFIT_MODELS = [
    ('timestep="0.002"', 'timestep="0.004"', "timestep is 0.004 s; it must be 0.002 s"),
    ("<option ", '<option><flag sensor="disable"/></option><option ', "flag 'sensor'"),
    ("<option ", '<option><flag actuation="disable"/></option><option ', "flag 'actuation'"),
    ('noise="0.005"', 'noise="0.005" cutoff="3"', "'angular-velocity' must have no cutoff"),
    ('noise="0.005"', 'nsample="5" interval="0.03"', "'angular-velocity' must have no"),
    ('noise="0.001"', 'reftype="body" refname="neck"', "'orientation' must be relative to"),
    ("<option ", '<option><flag sleep="enable"/></option><option ', "flag 'sleep'"),
]


@pytest.mark.parametrize(("old", "new", "message"), UNFIT_MODELS)
def test_a_model_that_does_not_fit_the_task_is_refused(tmp_path, backend, old, new, message):
    folder = copy_of_models(tmp_path, old, new)
    with pytest.raises(ModelError, match=f"scene.xml: .*{message}"):
        VecEnv(2, backend=backend, assets_dir=folder)


UNFIT_SERVOS = [
    ('kp="0.55"', 'kp="0.55" delay="0.03" nsample="20"', "must have no delay"),
    ('kp="0.55"', 'kp="0.55" group="1"', "group of actuator 'left_hip_yaw' must not be disabled"),
    ('ctrlrange="-10 10"', 'ctrlrange="-0.1 0.1"', "which must contain its joint's range"),
    ('kp="0.55" kv="0"', 'kp="0.55" kv="0" timeconst="0.1"', "must be a position servo"),
]


@pytest.mark.parametrize(("old", "new", "message"), UNFIT_SERVOS)
def test_servos_whose_force_batch_would_not_reproduce_are_refused(tmp_path, old, new, message):
    folder = copy_of_models(tmp_path, old, new)
    if "group" in new:
        folder = copy_of_models(tmp_path, "<option ", '<option actuatorgroupdisable="1" ')
        for path in folder.iterdir():
            path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ModelError, match=message):
        VecEnv(2, assets_dir=folder)


@pytest.mark.parametrize(("old", "new", "message"), BAD_MODELS)
def test_a_model_that_lacks_something_is_refused(tmp_path, backend, old, new, message):
    folder = copy_of_models(tmp_path, old, new)
    for path in folder.iterdir():  # sensors and actuators refer to what was renamed
        text = path.read_text()
        name_old, name_new = old.split('"')[1], new.split('"')[1]
        for attribute in ("body", "joint"):
            text = text.replace(f'{attribute}="{name_old}"', f'{attribute}="{name_new}"')
        path.write_text(text)
    with pytest.raises(ModelError, match=f"scene.xml: .*{message}"):
        VecEnv(2, backend=backend, assets_dir=folder)


def test_a_model_that_does_not_stand_is_refused(tmp_path):
    folder = copy_of_models(tmp_path, 'qpos="0 0 0.12 ', 'qpos="0 0 0.1215 ')
    with pytest.raises(ModelError, match=r"scene_walk.xml: keyframe STAND .* at 0.1215 m"):
        VecEnv(2, assets_dir=folder, variant="walk")


def test_an_assets_folder_replaces_the_models(tmp_path, backend, monkeypatch):
    # Extra sensors, geoms and bodies are allowed, and change nothing.
    extra = '<body name="lamp" pos="5 5 5"><geom size="0.1" contype="0" conaffinity="0"/></body>'
    copy_of_models(tmp_path, "</worldbody>", f"{extra}</worldbody>")
    monkeypatch.setenv("MUJOCO_VECENV_ASSETS", str(tmp_path))
    with VecEnv(2, backend=backend) as envs:
        assert envs.config.assets_dir == str(tmp_path)
        with_lamp = envs.step(np.ones((2, 14)))
    monkeypatch.delenv("MUJOCO_VECENV_ASSETS")
    with VecEnv(2, backend=backend) as envs:
        without = envs.step(np.ones((2, 14)))
    assert with_lamp[0].tobytes() == without[0].tobytes()
    heavier = copy_of_models(tmp_path, 'mass="0.199224"', 'mass="0.299224"')
    with VecEnv(2, backend=backend, assets_dir=heavier) as envs:
        assert envs.step(np.ones((2, 14)))[0].tobytes() != without[0].tobytes()


def test_thread_budget(monkeypatch):
    assert VecEnv(1).threads == 1
    assert VecEnv(64).threads == CPUS
    assert VecEnv(2, threads=CPUS + 3, allow_overcommit=True).threads == CPUS + 3
    monkeypatch.setenv("MUJOCO_VECENV_MAX_THREADS", "1")
    assert VecEnv(64).threads == 1
    if CPUS > 1:
        with pytest.raises(ValueError, match="MUJOCO_VECENV_MAX_THREADS=1"):
            VecEnv(64, threads=2)
    for text in ("0", "two", "-1", ""):
        monkeypatch.setenv("MUJOCO_VECENV_MAX_THREADS", text)
        with pytest.raises(ValueError, match="MUJOCO_VECENV_MAX_THREADS must be a positive"):
            VecEnv(2)


def workers():
    return [c for c in multiprocessing.active_children() if "mujoco-vecenv" in c.name]


def test_a_killed_worker_is_named_and_none_is_left():
    envs = VecEnv(3, backend="process")
    victim = next(worker for worker in workers() if worker.name.endswith("1"))
    victim.kill()
    victim.join()
    with pytest.raises(WorkerError, match=r"environment 1.*killed by SIGKILL"):
        envs.step(np.zeros((3, 14)))
    assert workers() == []
    with pytest.raises(RuntimeError, match="closed, because a call failed"):
        envs.reset()


def test_a_failing_worker_is_named_with_its_cause():
    envs = VecEnv(2, backend="process")
    envs._envs._workers._pipes[1].send(("step", np.zeros(3)))  # a request no environment can serve
    with pytest.raises(WorkerError, match=r"(?s)environment 1\) failed.*got \(3,\)"):
        envs.step(np.zeros((2, 14)))
    assert workers() == []


def test_dropped_processes_end():
    envs = VecEnv(2, backend="process")
    assert len(workers()) == 2
    del envs
    assert workers() == []


def test_workers_end_with_a_parent_that_is_killed():
    script = textwrap.dedent(
        """
        import multiprocessing, os, signal
        from mujoco_vecenv import VecEnv
        if __name__ == "__main__":
            envs = VecEnv(2, backend="process")
            print(*[c.pid for c in multiprocessing.active_children()], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in result.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        for _ in range(100):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                break
            subprocess.run(["sleep", "0.05"], check=True)
        else:
            pytest.fail(f"worker {pid} outlived its parent")


def test_an_error_in_mujoco_names_the_environment(monkeypatch):
    envs = VecEnv(2)

    def fail(*_):
        raise mujoco.batch.SimulationError(np.array([1]), "out of memory", 2)

    monkeypatch.setattr(envs._envs._envs.sims._batch, "step", fail)
    with pytest.raises(PhysicsError, match=r"1 of 2 simulations \(1\).*out of memory"):
        envs.step(np.zeros((2, 14)))
    with pytest.raises(RuntimeError, match="closed, because a call failed"):
        envs.step(np.zeros((2, 14)))


@pytest.mark.parametrize("call", ["reset", "get_state", "record"])
def test_any_call_that_fails_inside_closes(backend, call, monkeypatch):
    envs = VecEnv(2, backend=backend)
    inner = {"reset": "reset", "get_state": "get_states", "record": "record"}[call]

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(envs._envs, inner, interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.reset(seed=1) if call == "reset" else getattr(envs, call)()
    with pytest.raises(RuntimeError, match=r"because a call failed \(KeyboardInterrupt"):
        envs.reset()
    assert workers() == []


def test_a_value_error_from_within_a_step_closes():
    envs = VecEnv(2, threads=1)
    mujoco.set_mjcb_control(lambda model, data: None)  # which mujoco.batch refuses
    try:
        with pytest.raises(ValueError, match="callback"):
            envs.step(np.zeros((2, 14)))
    finally:
        mujoco.set_mjcb_control(None)
    with pytest.raises(RuntimeError, match="closed, because a call failed"):
        envs.step(np.zeros((2, 14)))


def test_copies_and_pickles_are_refused(backend):
    with VecEnv(2, backend=backend) as envs:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="get_state"):
                attempt(envs)
        envs.step(np.zeros((2, 14)))


def test_a_forked_process_is_told_and_can_make_its_own():
    with VecEnv(4) as envs:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                envs.step(np.zeros((4, 14)))
            except RuntimeError as error:
                VecEnv(2).step(np.zeros((2, 14)))
                code = 0 if "forked" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        envs.step(np.zeros((4, 14)))


def test_a_forked_process_collects_what_is_left_of_closed_environments():
    envs = VecEnv(4)
    cycle = [envs._envs]
    cycle.append(cycle)
    envs.close()
    gc.disable()
    try:
        del envs, cycle
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)  # where it waits for threads that it does not have
            code = 1
            try:
                gc.collect()
                VecEnv(2).step(np.zeros((2, 14)))
                code = 0
            finally:
                os._exit(code)
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_worker_that_cannot_begin_is_named_with_its_cause(tmp_path, monkeypatch):
    folder = copy_of_models(tmp_path, "", "")
    start = multiprocessing.context.ForkServerProcess.start

    def start_without_models(self):
        for path in folder.iterdir():
            path.unlink()
        start(self)

    monkeypatch.setattr(multiprocessing.context.ForkServerProcess, "start", start_without_models)
    with pytest.raises(WorkerError, match=r"(?s)environment 0\) failed.*scene.xml does not exist"):
        VecEnv(3, backend="process", assets_dir=folder)
    assert workers() == []


def test_a_forked_process_leaves_the_workers_alone():
    script = textwrap.dedent(
        """
        import os, sys, time
        import numpy as np
        from mujoco_vecenv import VecEnv
        if __name__ == "__main__":
            envs = VecEnv(2, backend="process")
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            envs.step(np.zeros((2, 14)))
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            start = time.monotonic()
            envs.close()
            assert time.monotonic() - start < 1.5
            print("fine", flush=True)
            os.killpg(0, 9)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, start_new_session=True
    )
    assert result.stdout == "fine\n"
    assert result.stderr == ""


def test_a_sensor_with_history_keeps_snapshots_portable(tmp_path):
    sensor = '<jointpos joint="left_knee" delay="0.01" nsample="5"/></sensor>'
    folder = copy_of_models(tmp_path, "</sensor>", sensor)
    with VecEnv(1, backend="sync", assets_dir=folder) as one, VecEnv(1, assets_dir=folder) as two:
        one.step(np.ones((1, 14)))
        two.set_state(one.get_state())
        assert one.step(np.ones((1, 14)))[0].tobytes() == two.step(np.ones((1, 14)))[0].tobytes()
