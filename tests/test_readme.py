"""What the README and the documents show is run as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

ROOT = Path(__file__).parents[1]


def blocks(document):
    """Return the Python of a document, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"value": lambda obs: np.zeros(len(obs))}  # the reader's own critic
    for source in blocks("README.md"):
        exec(compile(source, "README.md", "exec"), known)
    assert known["obs"].shape == (64, 48)
    assert known["values_next"].shape == (64,)
    assert (tmp_path / "fall.npz").is_file()
    assert known["model"].num_timesteps >= 1000


def test_a_policy_acts_as_training_md_says(monkeypatch):
    monkeypatch.chdir(ROOT / "results" / "training")
    (source,) = blocks("docs/training.md")
    known = {"obs": np.zeros((5, 48), np.float32)}
    exec(compile(source.replace("runs/first", "minute"), "training.md", "exec"), known)
    assert known["actions"].shape == (5, 14)
    assert known["actions"].dtype == np.float32
