"""Reading safetensors, whole and damaged."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from graph.checkpoints import uniform, write_index, write_safetensors, write_sharded
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
    values = {name: uniform(name, (3, 2)) for name in "abcd"}
    write_sharded(tmp_path, values, "F32", shards=2)
    checkpoint = Checkpoint.open(tmp_path)
    assert [path.name for path in checkpoint.files] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert all(np.array_equal(checkpoint.read(name), values[name]) for name in "abcd")


def _in_two_shards(folder: Path) -> None:
    write_safetensors(folder / "2", {"a": uniform("a", (1,)), "b": uniform("b", (1,))})


@pytest.mark.parametrize(
    ("damage", "item", "message"),
    [
        (lambda folder: (folder / "2").unlink(), "/2", "lacks this file"),
        (lambda folder: write_index(folder, {"a": "1", "b": "2", "c": "2"}), "c", "is not in 2"),
        (lambda folder: write_index(folder, {"a": "2", "b": "2"}), "a", "is not in 2"),
        (lambda folder: write_index(folder, {"a": "2", "b": "1"}), "1: a", "says that it is in 2"),
        (lambda folder: write_index(folder, {"a": "1", "b": "../2"}), "../2", "outside its folder"),
        (_in_two_shards, "2: a", "stands in 1 too"),
        (lambda folder: (folder / "2").write_bytes((folder / "2").read_bytes()[:-1]), "2: b", "truncated"),
        (lambda folder: (folder / "2").write_bytes((folder / "2").read_bytes() + b"x"), "/2", "1 bytes follow"),
        (lambda folder: (folder / "2").write_bytes(_LFS_POINTER), "/2", "Git LFS pointer"),
        (lambda folder: (folder / "2").write_bytes(b""), "/2", "not in safetensors format"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "model.safetensors", "lacks this file"),
    ],
)
def test_shards_that_do_not_fit_together_are_named(
    tmp_path: Path, damage: Callable[[Path], object], item: str, message: str
) -> None:
    for file, name in (("1", "a"), ("2", "b")):
        write_safetensors(tmp_path / file, {name: uniform(name, (1,))})
    write_index(tmp_path, {"a": "1", "b": "2"})
    assert set(Checkpoint.open(tmp_path).entries) == {"a", "b"}
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint.open(tmp_path)
    assert (caught.value.item or "").endswith(item)


def test_weights_that_are_not_where_they_should_be_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="save them as safetensors"):
        Checkpoint.open(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="this index of them is missing"):
        Checkpoint.open(tmp_path)


def test_an_empty_tensor_between_others_does_no_harm(tmp_path: Path) -> None:
    values = {"a": uniform("a", (2,)), "b": uniform("b", (0, 3)), "c": uniform("c", (2,))}
    write_safetensors(tmp_path / "model.safetensors", values, "F32")
    assert np.array_equal(Checkpoint.open(tmp_path).read("c"), values["c"])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": 3}', "\xff"])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"index\.json"):
        Checkpoint.open(tmp_path)


def _no_file(_: Path) -> None:
    pass


_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4967215360\n"
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
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [0.5, 8]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [0, float("inf")]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [False, 8]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "shape": [2.5]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "shape": "2"}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "shape": [-2]}}),
        lambda path: _with_header(path, {"a": {**_ENTRY, "data_offsets": [4, 8]}}),
        lambda path: _with_header(path, {"a": _ENTRY, "b": _ENTRY}),
        lambda path: _with_header(path, {"a": _ENTRY}, b"\0" * 9),
        lambda path: _with_header(path, b'{"a": %s, "a": %s}' % ((json.dumps(_ENTRY).encode(),) * 2)),
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
        "short": {"dtype": "F32", "shape": [3], "data_offsets": [8, 16]},
        "good": {**_ENTRY, "data_offsets": [16, 24]},
    }
    _with_header(path, header, b"\0" * 24)
    checkpoint = Checkpoint.open(tmp_path)  # a buffer of integers that nothing needs does no harm
    assert checkpoint.read("good").tolist() == [0.0, 0.0]
    for name, shape in (("buffer", None), ("short", None), ("good", (1, 2)), ("absent", None)):
        with pytest.raises(CheckpointError, match=name):
            checkpoint.entry(name, shape)
