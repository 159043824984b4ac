"""Reading safetensors, whole and damaged."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from graph.checkpoints import uniform, write_safetensors
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _with_header(path: Path, header: Any, body: bytes = b"\0" * 8) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_reads_wholes_and_parts(tmp_path: Path, dtype: str) -> None:
    stored = uniform("a", (7, 3, 2)).astype(np.float16)
    if dtype == "BF16":
        stored = (stored.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    write_safetensors(tmp_path / "model.safetensors", {"b": uniform("b", (5,)), "a": stored}, dtype)
    checkpoint = Checkpoint.open(tmp_path)
    assert "a" in checkpoint
    whole = checkpoint.read("a")
    assert whole.dtype == {"F64": np.float64, "F16": np.float16}.get(dtype, np.float32)
    assert np.array_equal(whole, stored)
    assert np.array_equal(checkpoint.read("a", 2, 5), stored[2:5])
    assert np.array_equal(checkpoint.read("a", 6, 9), stored[6:])


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    values = uniform("x", (4, 4)).astype(np.float16)
    save_file({"x": values, "y": np.array(3, np.float32)}, tmp_path / "model.safetensors", {"format": "pt"})
    checkpoint = Checkpoint.open(tmp_path)
    assert np.array_equal(checkpoint.read("x"), values)
    assert checkpoint.entry("y", ()).shape == ()


def test_shards(tmp_path: Path) -> None:
    values = {name: uniform(name, (3, 2)) for name in "abc"}
    for number, names in enumerate(("ab", "c")):
        write_safetensors(tmp_path / f"{number}.safetensors", {name: values[name] for name in names}, "F32")
    index = {"weight_map": {"a": "0.safetensors", "b": "0.safetensors", "c": "1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = Checkpoint.open(tmp_path)
    assert all(np.array_equal(checkpoint.read(name), values[name]) for name in "abc")

    (tmp_path / "1.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"1\.safetensors"):
        Checkpoint.open(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "1.safetensors")
    index["weight_map"]["d"] = "1.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    assert caught.value.item == "d"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": 3}', "\xff"])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"index\.json"):
        Checkpoint.open(tmp_path)


def _no_file(_: Path) -> None:
    pass


_ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "damage",
    [
        _no_file,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\1\2\3"),
        lambda path: path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
        lambda path: _with_header(path, b"no json"),
        lambda path: _with_header(path, b"\xff\xfe"),
        lambda path: _with_header(path, [1, 2]),
        lambda path: _with_header(path, {"a": 3}),
        lambda path: _with_header(path, {"a": {"dtype": "F32"}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [0]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [0, 16]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [-8, 0]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [8, 0]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "shape": [-2]}}),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint.open(tmp_path)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": uniform("a", (3, 4)), "b": uniform("b", (2,))})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            Checkpoint.open(tmp_path)


def test_a_tensor_is_checked_when_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {
        "buffer": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
        "short": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        "good": _ENTRY,
    }
    _with_header(path, header)
    checkpoint = Checkpoint.open(tmp_path)  # a buffer of integers that nothing needs does no harm
    assert checkpoint.read("good").tolist() == [0.0, 0.0]
    for name, shape in (("buffer", None), ("short", None), ("good", (1, 2)), ("absent", None)):
        with pytest.raises(CheckpointError, match=name):
            checkpoint.entry(name, shape)
