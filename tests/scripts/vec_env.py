"""A vector environment of the usual kind: a process per environment, behind a pipe."""

import multiprocessing

import numpy as np

from mujoco_vecenv import MicroduckEnv

MAX_WORKERS = 8


def work(pipe, seed, keywords):
    env = MicroduckEnv(seed=seed, **keywords)
    pipe.send(env.reset(seed=seed))
    while (action := pipe.recv()) is not None:
        obs, reward, done, info = env.step(action)
        if done:
            info["terminal_obs"] = obs
            obs = env.reset()
        pipe.send((obs, reward, done, info))


class VecEnv:
    def __init__(self, n=4, seed=0, with_terms=False, **keywords):
        context = multiprocessing.get_context("forkserver")
        self.n, self.pipes, self.workers = n, [], []
        for i in range(n):
            ours, theirs = context.Pipe()
            worker = context.Process(target=work, args=(theirs, seed + i, keywords), daemon=True)
            worker.start()
            self.pipes.append(ours)
            self.workers.append(worker)
        self.obs = np.stack([pipe.recv() for pipe in self.pipes])

    def reset(self):
        return self.obs

    def step(self, actions):
        for pipe, action in zip(self.pipes, actions, strict=True):
            pipe.send(action)
        obs, reward, done, infos = zip(*[pipe.recv() for pipe in self.pipes], strict=True)
        self.obs = np.stack(obs)
        return self.obs, np.array(reward), np.array(done), list(infos)

    def close(self):
        for pipe, worker in zip(self.pipes, self.workers, strict=True):
            pipe.send(None)
            worker.join()
