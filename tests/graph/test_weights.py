"""Writing the weight file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

from graph.checkpoints import uniform, write_safetensors
from orin_rerank.errors import CheckpointError, InternalError
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.weights import MARGIN_ROW, CheckpointTensors, WeightFile, WeightSpec

if TYPE_CHECKING:
    from pathlib import Path

SPECS = [WeightSpec("a", "F16", (6, 4)), WeightSpec("n", "F32", (4,)), WeightSpec(MARGIN_ROW, "F32", (4,))]
ROW = np.arange(4, dtype=np.float32)


def _write(tmp_path: Path, a: np.ndarray, dtype: str, n: np.ndarray | None = None) -> dict[str, int]:
    tensors = {"n": uniform("n", (4,)) if n is None else n, "a": a}
    write_safetensors(tmp_path / "model.safetensors", tensors, dtype)
    (tmp_path / "out").mkdir(exist_ok=True)
    reports: list[tuple[int, int]] = []
    source = CheckpointTensors(Checkpoint.open(tmp_path), ROW)
    clipped = WeightFile("w.safetensors", SPECS).write(
        tmp_path / "out", source, lambda done, total: reports.append((done, total))
    )
    assert reports == [(48, 80), (64, 80), (80, 80)]
    return clipped


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_the_library_reads_what_was_written(tmp_path: Path, dtype: str) -> None:
    a = uniform("a", (6, 4)).astype(np.float16)
    assert _write(tmp_path, a, dtype) == {}
    written = load_file(tmp_path / "out" / "w.safetensors")
    source = Checkpoint.open(tmp_path)
    assert np.array_equal(written["a"], source.read("a").astype(np.float16))
    assert np.array_equal(written["n"], source.read("n").astype(np.float32))
    assert np.array_equal(written[MARGIN_ROW], ROW)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F64"])
def test_what_float16_cannot_hold_is_clipped_and_counted(tmp_path: Path, dtype: str) -> None:
    a = np.zeros((6, 4), np.float64)
    a[0, :3] = 65504, 70000, -1e30
    a[5, 3] = 3e38
    n = np.array([1e38, 1, 1, 1])
    assert _write(tmp_path, a, dtype, n) == {"a": 3}
    written = load_file(tmp_path / "out" / "w.safetensors")
    assert np.abs(written["a"]).max() == 65504
    assert written["a"][0].tolist()[1:] == [65504, -65504, 0]
    assert written["n"][0] > 9e37


def test_a_float64_beyond_float32_is_clipped_too(tmp_path: Path) -> None:
    assert _write(tmp_path, np.zeros((6, 4)), "F64", np.array([1e300, 0, 0, 0])) == {"n": 1}
    assert load_file(tmp_path / "out" / "w.safetensors")["n"][0] == np.finfo(np.float32).max


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["a", "n"])
def test_nan_and_infinity_are_refused_and_nothing_is_left(tmp_path: Path, dtype: str, value: float, name: str) -> None:
    a, n = uniform("a", (6, 4)), uniform("n", (4,))
    {"a": a, "n": n}[name].flat[-1] = value
    with pytest.raises(CheckpointError) as caught:
        _write(tmp_path, a, dtype, n)
    assert caught.value.item == name
    assert not list((tmp_path / "out").iterdir())


def test_large_tensors_are_written_in_pieces_of_whole_rows(tmp_path: Path) -> None:
    shape = (2100, 4099)  # more than two pieces, and no multiple of one
    values = uniform("big", shape)
    write_safetensors(tmp_path / "model.safetensors", {"big": values}, "F32")
    weights = WeightFile("w.safetensors", [WeightSpec("big", "F16", shape)])
    weights.write(tmp_path, CheckpointTensors(Checkpoint.open(tmp_path), ROW), lambda *_: None)
    assert np.array_equal(load_file(tmp_path / "w.safetensors")["big"], values.astype(np.float16))


def test_the_layout_is_checked() -> None:
    weights = WeightFile("w", [*SPECS, WeightSpec("b", "F16", (2, 4)), WeightSpec("c", "F16", (2, 4))])
    for names in (("a", "n"), ("c", "b"), ("a", "b")):
        with pytest.raises(InternalError):
            weights.slice(*names)
    with pytest.raises(InternalError):
        WeightFile("w", [SPECS[0], SPECS[0]])
