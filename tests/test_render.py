"""Pictures, where this machine can draw, and a helpful refusal where it cannot."""

import sys
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
from PIL import Image

from mujoco_vecenv import cli, render


def test_the_portrait_is_drawn_or_the_missing_package_named(tmp_path, capsys):
    path = tmp_path / "duck.png"
    status = cli.main(["render", str(path)])
    if status == 0:
        pixels = np.asarray(Image.open(path))
        assert pixels.shape == (600, 900, 3)
        orange = (pixels[..., 0] > 180) & (pixels[..., 1] < 160) & (pixels[..., 2] < 80)
        assert 2000 < orange.sum() < 60_000  # beak and feet
    else:
        assert status == 2
        message = " ".join(capsys.readouterr().err.split())
        assert "libosmesa6" in message or "libegl1" in message


def test_png_files_hold_the_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (4, 5, 3), np.uint8)
    render.save_png(tmp_path / "x.png", pixels)
    assert np.asarray(Image.open(tmp_path / "x.png")).tobytes() == pixels.tobytes()


def test_without_pillow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"mujoco-vecenv\[render\]"):
        render.save_png(tmp_path / "x.png", np.zeros((1, 1, 3), np.uint8))


def test_without_any_opengl_a_package_is_named(monkeypatch):
    def missing(library):
        raise OSError(library)

    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(render, "ctypes", SimpleNamespace(CDLL=missing))
    with pytest.raises(render.NoOpenGLError, match="libosmesa6"):
        render._headless_backend()


def test_pictures_larger_than_the_buffer_are_refused():
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(ValueError, match="does not fit the model's off-screen buffer of 640 x 480"):
        render.Canvas(model, 800, 600)


def test_unknown_cameras_are_refused():
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><camera name="side"/></worldbody></mujoco>'
    )
    with pytest.raises(ValueError, match=r"no camera 'top'; it has \['side'\]"):
        render._view(model, "top")
