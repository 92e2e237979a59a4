"""Proximal policy optimisation, in the order in which the data flows.

Actor and critic are two networks that share nothing but the norm of their gradients, so each has a
thread of its own in an update, and PyTorch's own threads stay out of it: they would spin on the
cores that the environments step on, and the numbers would depend on how many there are.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mujoco_vecenv.archive import Arrays
from mujoco_vecenv.engine.generators import check_rng, rng_words, set_rng
from mujoco_vecenv.train.config import PPOConfig
from mujoco_vecenv.train.environments import ActionScale, Envs
from mujoco_vecenv.train.policy import CLIP, Normalizer

_LEAST_RATE: Final = 1e-5
_MOST_RATE: Final = 1e-2
_HALF_LOG_TWO_PI: Final = 0.5 * math.log(2 * math.pi)


class DivergedError(RuntimeError):
    """Training left the finite numbers."""


@dataclass
class Update:
    """What an update did.

    Attributes:
        returns: returns of the episodes that ended, in order of time, then of environment.
        clip_fraction: share of probability ratios outside the clipping range, over all minibatches.
        kl: approximate KL divergence from the policy that acted, mean over the last epoch.
        std: mean standard deviation of the action noise that was acted with.
        learning_rate: Adam's step size.
        policy_loss, value_loss: means over all minibatches.
        epochs: passes made over the rollout.
        explained_variance: share of the returns' variance that the critic foresaw.
        seconds: where the time went, by part.
    """

    returns: list[float]
    clip_fraction: float
    kl: float
    std: float
    learning_rate: float
    policy_loss: float
    value_loss: float
    epochs: int
    explained_variance: float
    seconds: dict[str, float]


@dataclass
class Rollout:
    """What acting left behind, beside the buffers that PPO keeps.

    Attributes:
        returns: returns of the episodes that ended, in order of time, then of environment.
        terminal: (step, environment) to the last observation of an episode that ended there.
        terminated: those of them where the task itself ended the episode, and no reward follows.
        following: (n, channels) the observations after the last step.
        seconds: where the time went, by part.
    """

    returns: list[float]
    terminal: dict[tuple[int, int], NDArray[np.float32]]
    terminated: set[tuple[int, int]]
    following: NDArray[np.float32]
    seconds: dict[str, float]


class PPO:
    """An actor, a critic and their optimisers, and the environments that they learn from.

    Args:
        config: the algorithm's choices.
        envs: `config.n` environments.
        actions: numbers in an action.
        seed: seed of the first weights, the action noise and the shuffling.
        scale: what actions pass on their way to the environments; None passes them as they are.

    Attributes:
        steps_done: environment steps so far.
        learning_rate: Adam's step size, as far as it is adapted.
    """

    def __init__(
        self,
        config: PPOConfig,
        envs: Envs,
        actions: int,
        seed: int,
        scale: ActionScale | None = None,
    ):
        self.config = config
        self.envs = envs
        self.scale = scale
        self.steps_done = 0
        self.learning_rate = config.learning_rate
        obs = envs.reset()
        weights = torch.Generator().manual_seed(seed)
        self.actor = _mlp(obs.shape[1], config.hidden, actions, 0.01, weights)
        self.critic = _mlp(obs.shape[1], config.hidden, 1, 1.0, weights)
        self.log_std = nn.Parameter(torch.full((actions,), config.initial_log_std))
        self.normalizer = Normalizer(obs.shape[1])
        self.rng = np.random.default_rng((seed, 1))  # not environment 0's stream
        learned_std = [self.log_std] if config.final_log_std is None else []
        self._sides = (
            _Side("actor", [*self.actor.parameters(), *learned_std]),
            _Side("critic", [*self.critic.parameters()]),
        )
        self._helper = ThreadPoolExecutor(1, "critic")

        T, n = config.steps, config.n
        self._obs = np.empty((T, n, obs.shape[1]), np.float32)
        self._rewards = np.empty((T, n))
        self._done = np.empty((T, n), bool)
        self._x = torch.empty(T, n, obs.shape[1])
        self._noise = torch.empty(T, n, actions)
        self._actions = torch.empty(T, n, actions)
        self._hidden = [torch.empty(n, config.hidden) for _ in range(2)]
        self._returns = np.zeros(n)

    def close(self) -> None:
        """End the helping thread."""
        self._helper.shutdown()

    def policy_arrays(self) -> Arrays:
        """Return what acts and judges, see Policy.arrays."""
        normalizer = self.normalizer
        arrays: Arrays = {
            "normalizer.count": np.array(normalizer.count, np.int64),
            "normalizer.mean": normalizer.mean,
            "normalizer.squares": normalizer.squares,
            "log_std": self.log_std.detach().numpy(),
        }
        for name, network in (("actor", self.actor), ("critic", self.critic)):
            for parameter, value in network.state_dict().items():
                arrays[f"{name}.{parameter}"] = value.numpy()
        return {name: array.copy() for name, array in arrays.items()}

    def state_arrays(self) -> Arrays:
        """Return everything that decides how training goes on, the environments included."""
        arrays = self.policy_arrays() | {
            "steps_done": np.array(self.steps_done, np.int64),
            "learning_rate": np.array(self.learning_rate),
            "running_returns": self._returns.copy(),
            "rng": rng_words(self.rng),
        }
        for name, tensor in self._optimizer_state().items():
            arrays[name] = tensor.numpy().copy()
        for name, array in self.envs.get_state().items():
            arrays[f"envs.{name}"] = array
        return arrays

    def set_state(self, arrays: Arrays) -> None:
        """Go on from what `state_arrays` returned.

        Raises:
            ValueError: it is of another configuration, or damaged. The message names
                what does not fit, and nothing has changed.
        """
        ours = self.state_arrays()
        for name, array in ours.items():
            if name.startswith("envs."):
                continue  # their shapes depend on the episodes, and set_state checks them
            if name not in arrays:
                raise ValueError(f"the checkpoint has no {name!r}")
            theirs = arrays[name]
            if theirs.dtype.kind == "f" and not np.isfinite(theirs).all():
                raise ValueError(f"{name!r} is not finite")
            if theirs.dtype != array.dtype or theirs.shape != array.shape:
                raise ValueError(
                    f"{name!r} is {theirs.dtype} {theirs.shape}, expected {array.dtype} "
                    f"{array.shape}"
                )
        for name in ("steps_done", "normalizer.count"):
            if arrays[name] < 0:
                raise ValueError(f"{name!r} is negative")
        check_rng(arrays["rng"])
        prefix = "envs."
        self.envs.set_state(
            {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        )
        for name, network in (("actor", self.actor), ("critic", self.critic)):
            network.load_state_dict(
                {p: torch.from_numpy(arrays[f"{name}.{p}"]) for p in network.state_dict()}
            )
        for name, tensor in self._optimizer_state().items():
            tensor.copy_(torch.from_numpy(arrays[name]))
        with torch.no_grad():
            self.log_std.copy_(torch.from_numpy(arrays["log_std"]))
        self.normalizer.count = int(arrays["normalizer.count"])
        self.normalizer.mean = arrays["normalizer.mean"].copy()
        self.normalizer.squares = arrays["normalizer.squares"].copy()
        self.steps_done = int(arrays["steps_done"])
        if self.config.adaptive_kl is not None:
            self.learning_rate = float(arrays["learning_rate"])
        self._returns = arrays["running_returns"].copy()
        set_rng(self.rng, arrays["rng"])

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Return Adam's moments and counters themselves, not copies, by name."""
        return {
            f"adam.{side.name}.{k}.{name}": tensor
            for side in self._sides
            for k, parameter in enumerate(side.parameters)
            for name, tensor in side.optimizer.state[parameter].items()
        }

    def update(self) -> Update:
        """Collect a rollout and learn from it.

        Raises:
            DivergedError: the weights are not finite any more.
        """
        start = perf_counter()
        config = self.config
        left = max(0.0, 1 - self.steps_done / config.total_steps)
        if (final := config.final_log_std) is not None:
            self.log_std.data.fill_(final + left * (config.initial_log_std - final))
        rollout = self._collect()
        collected = perf_counter()
        x, values, advantages = self._advantages(rollout)
        noise = self._noise.reshape(len(values), -1)
        with torch.no_grad():
            std = float(self.log_std.exp().mean())
            old_log_prob = -(0.5 * noise.square() + self.log_std + _HALF_LOG_TWO_PI).sum(1)
        targets = advantages + values
        spread = float(targets.var())
        explained = 1 - float((targets - values).var()) / spread if spread else math.nan
        rate = self.learning_rate if config.adaptive_kl else config.learning_rate * left
        for side in self._sides:
            side.optimizer.param_groups[0]["lr"] = rate
        estimated = perf_counter()
        learned = self._learn(x, old_log_prob, advantages, targets)
        if not all(bool(p.isfinite().all()) for side in self._sides for p in side.parameters):
            raise DivergedError(
                f"training diverged after {self.steps_done:,} steps, the weights are not finite: "
                f"lower --learning-rate ({config.learning_rate}) or --reward-scale "
                f"({config.reward_scale})"
            )
        if config.adaptive_kl is not None:
            # As rsl_rl does: by half as much again, once the KL is off by a factor of 2.
            if learned["kl"] > 2 * config.adaptive_kl:
                self.learning_rate = max(_LEAST_RATE, rate / 1.5)
            elif learned["kl"] < config.adaptive_kl / 2:
                self.learning_rate = min(_MOST_RATE, rate * 1.5)
        self.normalizer.update(self._obs.reshape(len(values), -1))
        if rollout.terminal:
            self.normalizer.update(np.stack(list(rollout.terminal.values())))
        self.steps_done += config.batch
        seconds = rollout.seconds | {
            "advantages": estimated - collected,
            "learning": perf_counter() - estimated,
            "all": perf_counter() - start,
        }
        return Update(
            returns=rollout.returns,
            std=std,
            learning_rate=rate,
            explained_variance=explained,
            seconds=seconds,
            **learned,
        )

    def _collect(self) -> Rollout:
        """Act for a rollout, and fill the buffers."""
        self._noise.copy_(torch.from_numpy(self._draw_noise()))
        offset, spread = self.normalizer.offset_and_scale()
        scale = self.scale
        rollout = Rollout([], {}, set(), _float32(self.envs.reset()), {})
        stepping = 0.0
        start = perf_counter()
        with torch.inference_mode():
            std = self.log_std.exp()
            offsets = self._noise * std
            layers = _layers(self.actor)
            actions = [a.numpy() for a in self._actions]
            x = self._x.numpy()
            obs = rollout.following
            for t in range(self.config.steps):
                self._obs[t] = obs
                normalize(obs, offset, spread, x[t])
                hidden = self._x[t]
                for (weight, bias), out in zip(layers, self._hidden, strict=False):
                    hidden = torch.addmm(bias, hidden, weight, out=out).tanh_()
                weight, bias = layers[-1]
                torch.addmm(bias, hidden, weight, out=self._actions[t])
                self._actions[t] += offsets[t]
                before = perf_counter()
                obs, rewards, done, infos = self.envs.step(
                    actions[t] if scale is None else scale(actions[t])
                )
                stepping += perf_counter() - before
                obs = _float32(obs)
                self._rewards[t] = rewards
                self._done[t] = done
                self._returns += rewards
                if done.any():
                    for i in np.flatnonzero(done).tolist():
                        rollout.terminal[t, i] = _float32(infos[i]["terminal_obs"])
                        if infos[i]["terminated"]:
                            rollout.terminated.add((t, i))
                        rollout.returns.append(float(self._returns[i]))
                        self._returns[i] = 0
        total = perf_counter() - start
        rollout.following = obs
        rollout.seconds = {"environments": stepping, "acting": total - stepping}
        return rollout

    def _draw_noise(self) -> NDArray[np.float32]:
        """Return (T, n, actions) standard normal noise, each joint's correlated in time.

        Correlation begins anew with each rollout, and runs on where an episode ends within it.

        Correlated noise moves a robot whose servos would filter white noise away. As in
        Hollenstein et al., https://arxiv.org/abs/2312.11091, the probability of an action stays
        that of its own step: the noise of each step is standard normal, whatever the others are.
        """
        noise = self.rng.standard_normal(self._noise.shape, dtype=np.float32)
        if r := np.float32(self.config.noise_correlation):
            for before, now in pairwise(noise):
                now *= np.sqrt(1 - r**2)
                now += r * before
        return noise

    @torch.inference_mode()
    def _advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Estimate advantages, each truncated episode bootstrapped from its last observation.

        Where the task itself ended an episode, nothing follows, and that is worth 0.

        Returns:
            (batch, observations) normalised, (batch,) values, (batch,) advantages.
        """
        T, n = self.config.steps, self.config.n
        x = self._x.reshape(T * n, -1)
        beyond = np.concatenate([rollout.following, *(o[None] for o in rollout.terminal.values())])
        normalize(beyond, *self.normalizer.offset_and_scale(), beyond)
        all_values = self.critic(torch.cat([x, torch.from_numpy(beyond)])).squeeze(1)
        values = all_values[: T * n].reshape(T, n).numpy()
        ends = all_values[T * n + n :].numpy()
        following = np.concatenate([values[1:], all_values[None, T * n : T * n + n].numpy()])
        for (t, i), value in zip(rollout.terminal, ends, strict=True):
            following[t, i] = 0 if (t, i) in rollout.terminated else value
        rewards = (self.config.reward_scale * self._rewards).astype(np.float32)
        surprise = rewards + np.float32(self.config.gamma) * following - values
        carry = np.float32(self.config.gamma * self.config.gae_lambda) * ~self._done
        advantages = np.empty_like(values)
        ahead = np.zeros(n, np.float32)
        for t in reversed(range(T)):
            ahead = advantages[t] = surprise[t] + carry[t] * ahead
        return x, all_values[: T * n], torch.from_numpy(advantages.reshape(-1))

    def _learn(
        self, x: Tensor, old_log_prob: Tensor, advantages: Tensor, targets: Tensor
    ) -> dict[str, Any]:
        """Take the gradient steps."""
        config = self.config
        actions = self._actions.reshape(len(x), -1)
        actor, critic = self._sides
        size = config.batch // config.minibatches
        totals = np.zeros(3)
        kl = 0.0
        passes = count = 0
        for _ in range(config.epochs):
            order = torch.from_numpy(self.rng.permutation(config.batch))
            shuffled = [a[order] for a in (x, actions, old_log_prob, advantages, targets)]
            divergences = []
            for batch in zip(*(torch.split(a, size) for a in shuffled), strict=True):
                critic_loss = self._helper.submit(
                    critic.differentiate, self._value_loss, batch[0], batch[4]
                )
                policy_loss, clipped, divergence = actor.differentiate(
                    self._policy_loss, *batch[:4]
                )
                (value_loss,) = critic_loss.result()
                norm = math.hypot(actor.norm, critic.norm)
                scale = min(1.0, config.max_grad_norm / (norm + 1e-6))
                stepped = self._helper.submit(critic.step, scale)
                actor.step(scale)
                stepped.result()
                totals += (policy_loss, value_loss, clipped)
                divergences.append(divergence)
                count += 1
            passes += 1
            kl = sum(divergences) / len(divergences)
            if config.target_kl is not None and kl > config.target_kl:
                break
        policy_loss, value_loss, clip_fraction = totals / count
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "clip_fraction": clip_fraction,
            "kl": kl,
            "epochs": passes,
        }

    def _policy_loss(
        self, x: Tensor, actions: Tensor, old_log_prob: Tensor, advantages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, and the clipped share and the approximate KL."""
        z = (actions - self.actor(x)) * torch.exp(-self.log_std)
        log_prob = -(0.5 * z.square() + self.log_std + _HALF_LOG_TWO_PI).sum(1)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clip = self.config.clip
        gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip))
        loss = -gain.mean()
        if self.config.entropy:
            loss = loss - self.config.entropy * (self.log_std + 0.5 + _HALF_LOG_TWO_PI).sum()
        with torch.no_grad():
            clipped = ((ratio - 1).abs() > clip).float().mean()
            divergence = (ratio - 1 - log_ratio).mean()  # http://joschu.net/blog/kl-approx.html
        return loss, clipped, divergence

    def _value_loss(self, x: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (self.config.value * (self.critic(x).squeeze(1) - targets).square().mean(),)


class _Side:
    """The parameters of the actor or of the critic, and their optimiser."""

    def __init__(self, name: str, parameters: list[nn.Parameter]):
        self.name = name
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, eps=1e-5, fused=True)
        for parameter in parameters:
            # What Adam itself begins with, made now, so that a checkpoint has a place to go.
            self.optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.norm = 0.0

    def differentiate(
        self, loss: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[float, ...]:
        """Compute gradients and their norm, and return what the loss returned."""
        results = loss(*inputs)
        gradients = torch.autograd.grad(results[0], self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.norm = float(nn.utils.get_total_norm(gradients))
        return tuple(float(result.detach()) for result in results)

    def step(self, scale: float) -> None:
        """Take a step along the gradients times scale."""
        if scale < 1:
            for parameter in self.parameters:
                assert parameter.grad is not None
                parameter.grad *= scale
        self.optimizer.step()


def _float32(obs: NDArray[Any]) -> NDArray[np.float32]:
    """Return observations as the networks take them: those of most tasks are float64."""
    return obs.astype(np.float32, copy=False)


def normalize(
    obs: NDArray[np.float32],
    offset: NDArray[np.float32],
    scale: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write into `out` what networks see of (n, channels) observations, see Normalizer."""
    np.subtract(obs, offset, out=out)
    out *= scale
    np.clip(out, -CLIP, CLIP, out=out)


def _mlp(
    inputs: int, hidden: int, outputs: int, gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Return two tanh layers and a linear one, their weights orthogonal and biases 0."""
    sizes = (inputs, hidden, hidden, outputs)
    gains = (math.sqrt(2), math.sqrt(2), gain)
    layers: list[nn.Module] = []
    for size, following, scale in zip(sizes, sizes[1:], gains, strict=False):
        layer = nn.Linear(size, following)
        nn.init.orthogonal_(layer.weight, scale, generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def network(arrays: Mapping[str, NDArray[Any]], name: str) -> nn.Sequential:
    """Return a copy of a policy's network, `actor` or `critic`."""
    weights = {
        key.removeprefix(f"{name}."): torch.from_numpy(array.copy())
        for key, array in arrays.items()
        if key.startswith(f"{name}.")
    }
    hidden, inputs = weights["0.weight"].shape
    copy = _mlp(inputs, hidden, len(weights["4.bias"]), 1.0, torch.Generator())
    copy.load_state_dict(weights)
    return copy


def _layers(network: nn.Sequential) -> list[tuple[Tensor, Tensor]]:
    """Return the (inputs, outputs) weights and the biases of the linear layers."""
    return [(m.weight.t(), m.bias) for m in network if isinstance(m, nn.Linear)]
