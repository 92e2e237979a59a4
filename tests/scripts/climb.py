"""A training script as people have them: it hill-climbs a linear policy on its own vec_env."""

import argparse

import numpy as np
from helpers import REWARD
from vec_env import MAX_WORKERS, VecEnv


class DRConfig:
    """The script's own ranges, in an object that this package has never seen."""

    def __init__(self):
        self.actuator = True
        self.mass_scale = (0.9, 1.1)
        self.floor_friction = (0.8, 1.0)
        self.latency = (0, 1)
        self.init_noise = (0.02, 0.05)
        self.sensor_noise = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--dr", action="store_true")
    options = parser.parse_args()
    keywords = {"dr": DRConfig()} if options.dr else {}
    envs = VecEnv(n=min(3, MAX_WORKERS), seed=7, reward=REWARD, episode_steps=30, **keywords)
    rng = np.random.default_rng(0)
    best, weights, log = -np.inf, np.zeros((48, 14)), []
    for _ in range(3):
        trial = weights + 0.1 * rng.standard_normal(weights.shape)
        obs, total = envs.reset(), 0.0
        for _ in range(30):
            obs, reward, done, infos = envs.step(np.tanh(obs @ trial))
            total += reward.sum()
        last = np.stack([infos[i]["terminal_obs"] for i in np.flatnonzero(done)])
        log.append(np.append(last.ravel(), total))
        if total > best:
            best, weights = total, trial
    envs.close()
    np.savez(options.out, weights=weights, log=np.array(log))
    print(type(envs).__module__, best)


if __name__ == "__main__":
    main()
