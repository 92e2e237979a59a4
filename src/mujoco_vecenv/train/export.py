"""A policy as an ONNX file: raw observations in, mean actions for the environment out."""

from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mujoco_vecenv.train.policy import CLIP, LAYERS, Policy

OPSET: Final = 17
"""ONNX's operators as of 2022: old enough for the runtimes on robots."""
LIMIT: Final = 1e-5
"""Most that an action may differ from PyTorch's."""
OBSERVATIONS: Final = 1000
"""Observations of the policy's own episodes that the file is checked on."""


def export(policy: Policy, path: Path) -> None:
    """Write a policy as an ONNX file, its normaliser folded in, without checking it.

    The input `obs` is (batch, observations) float32, otherwise as the environments return it; the
    output `action` (batch, actions) float32, what to pass to them. So the Microduck's are yet to be
    clipped to [-1, 1], and those of other tasks are within their limits already.

    Raises:
        ImportError: onnx is not installed.
    """
    onnx = _needed("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    offset, spread = policy.offset_and_scale
    scale = policy.scale
    constants = {
        "offset": offset,
        "scale": spread,
        "least": np.array(-CLIP, np.float32),
        "most": np.array(CLIP, np.float32),
    }
    nodes = [
        helper.make_node("Sub", ["obs", "offset"], ["centred"]),
        helper.make_node("Mul", ["centred", "scale"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "least", "most"], ["x0"]),
    ]
    for number, k in enumerate(LAYERS):
        weight, bias = f"actor.{k}.weight", f"actor.{k}.bias"
        constants |= {weight: policy.arrays[weight], bias: policy.arrays[bias]}
        last = k == LAYERS[-1]
        out = f"linear{number}"
        if last:
            out = "action" if scale is None else "unscaled"
        nodes.append(helper.make_node("Gemm", [f"x{number}", weight, bias], [out], transB=1))
        if not last:
            nodes.append(helper.make_node("Tanh", [out], [f"x{number + 1}"]))
    if scale is not None:
        names = ("factor", "offset", "low", "high")
        constants |= {f"action.{name}": getattr(scale, name) for name in names}
        nodes += [
            helper.make_node("Mul", ["unscaled", "action.factor"], ["stretched"]),
            helper.make_node("Add", ["stretched", "action.offset"], ["moved"]),
            helper.make_node("Max", ["moved", "action.low"], ["above"]),
            helper.make_node("Min", ["above", "action.high"], ["action"]),
        ]
    float32 = onnx.TensorProto.FLOAT
    actions = len(policy.arrays["log_std"])
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("obs", float32, ["batch", len(offset)])],
        [helper.make_tensor_value_info("action", float32, ["batch", actions])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(
        graph, opset_imports=[opset], ir_version=8, producer_name="mujoco-vecenv"
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save_model(model, str(path))


def largest_difference(policy: Policy, path: Path, obs: NDArray[np.float32]) -> float:
    """Return how far the file's actions are from PyTorch's, at most.

    Args:
        policy: the policy.
        path: the file.
        obs: (n, observations) float32.

    Returns:
        The largest difference, in units in which the range of every limited action is [-1, 1].

    Raises:
        ImportError: torch or onnxruntime is not installed.
    """
    torch = _needed("torch")
    offset, spread = policy.offset_and_scale
    x = torch.from_numpy(np.clip((obs - offset) * spread, -CLIP, CLIP))
    for k in LAYERS:
        weight, bias = (
            torch.from_numpy(policy.arrays[f"actor.{k}.{p}"]) for p in ("weight", "bias")
        )
        x = torch.nn.functional.linear(x, weight, bias)
        if k != LAYERS[-1]:
            x = x.tanh()
    (actions,) = _session(path).run(None, {"obs": obs})
    if (scale := policy.scale) is None:
        return float(np.abs(actions - x.numpy()).max())
    return float(np.abs((actions - scale(x.numpy())) / scale.factor).max())


def latency(path: Path, obs: NDArray[np.float32]) -> dict[str, float]:
    """Return the microseconds of one action on one thread: `p50` and `p99`, over all observations.

    Raises:
        ImportError: onnxruntime is not installed.
    """
    session = _session(path)
    rows = [{"obs": row[None]} for row in obs]
    times = []
    for row in rows[:100] + rows:  # the first are not counted
        start = perf_counter_ns()
        session.run(None, row)
        times.append(perf_counter_ns() - start)
    p50, p99 = np.percentile(times[100:], [50, 99]) / 1000
    return {"p50": float(p50), "p99": float(p99)}


def _session(path: Path) -> Any:
    runtime = _needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _needed(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}: pip install 'mujoco-vecenv[train]'") from error
