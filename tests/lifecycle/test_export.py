"""From checkpoint to bundle: the same every time, whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from graph.checkpoints import TEXT, VL, tensors_of, write_checkpoint, write_safetensors
from lifecycle.conftest import write_golden
from orin_rerank.engines.bundle import MANIFEST_FILE, Bundle
from orin_rerank.errors import BundleError, CheckpointError
from orin_rerank.graph.builder import Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.weights import MARGIN_ROW
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.prompt.profile import PromptFamily

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parents[1]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy_of(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def test_an_export_is_the_same_twice(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_checkpoint(checkpoint, tmp_path / name, ExportOptions())
    export_checkpoint(checkpoint, tmp_path / "a", ExportOptions())  # over a bundle that is there
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_what_the_checkpoint_does_not_say_has_the_familys_defaults(checkpoint: Path, tmp_path: Path) -> None:
    manifest = export_checkpoint(checkpoint, tmp_path, ExportOptions()).bundle.manifest
    assert manifest.name == "tiny-reranker"
    assert (manifest.prompt.family, manifest.prompt.max_tokens) == (PromptFamily.VL, 10240)
    assert manifest.prompt.image is not None
    assert (manifest.prompt.image.min_pixels, manifest.prompt.image.max_pixels) == (4096, 1_843_200)
    assert {entry.licence for entry in manifest.files.values()} == {"Apache-2.0"}


def test_options_go_into_the_bundle(checkpoint: Path, tmp_path: Path) -> None:
    options = ExportOptions("n", 300, 2048, 50_000, "MIT", (Precision.FP16,))
    manifest = export_checkpoint(checkpoint, tmp_path, options).bundle.manifest
    image = manifest.prompt.image
    assert image is not None
    assert (manifest.name, manifest.prompt.max_tokens) == ("n", 300)
    assert (image.min_pixels, image.max_pixels) == (2048, 50_000)
    assert {graph.precision for graph in manifest.graphs} == {Precision.FP16}
    assert {entry.licence for entry in manifest.files.values()} == {"MIT"}


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"min_pixels": 8192, "max_pixels": 100_000}, (8192, 100_000)),
        ({"size": {"shortest_edge": 5000, "longest_edge": 1_310_720}}, (5000, 1_310_720)),
        ({"size": {"shortest_edge": 1, "longest_edge": 1 << 40}}, (4096, 1_843_200)),
        ({}, (4096, 1_843_200)),
    ],
)
def test_the_preprocessors_pixel_limits_are_kept_within_the_references(
    checkpoint: Path, tmp_path: Path, config: dict[str, Any], limits: tuple[int, int]
) -> None:
    copy = copy_of(checkpoint, tmp_path)
    (copy / "preprocessor_config.json").write_text(json.dumps(config))
    image = export_checkpoint(copy, tmp_path / "out", ExportOptions()).bundle.manifest.prompt.image
    assert image is not None
    assert (image.min_pixels, image.max_pixels) == limits


@pytest.mark.parametrize(("dtype", "stored"), [("F16", "F16"), ("BF16", "F16"), ("F32", "F32"), ("F64", "F32")])
def test_nothing_is_lost_that_the_checkpoint_has(tmp_path: Path, dtype: str, stored: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", TEXT, dtype)
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())
    source, bundle = Checkpoint.open(checkpoint), Checkpoint.open(tmp_path / "out")
    assert bundle.entry("model.layers.0.mlp.up_proj.weight").dtype == stored
    for name in bundle.entries:
        if name == MARGIN_ROW:
            continue
        before, after = source.read(name).astype(np.float32), bundle.read(name).astype(np.float32)
        # BF16 has fewer digits than float16, but smaller numbers, down to where a step is 2**-24
        assert np.abs(before - after).max() <= (2**-25 if dtype == "BF16" else 0), name


@pytest.mark.parametrize("tied", [True, False])
def test_the_margin_row_is_the_difference_of_two_rows_of_the_head(tmp_path: Path, tied: bool) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", {**TEXT, "tie_word_embeddings": tied})
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    head = Checkpoint.open(checkpoint).read("model.embed_tokens.weight" if tied else "lm_head.weight")
    expected = head[vocabulary["yes"]].astype(np.float32) - head[vocabulary["no"]].astype(np.float32)
    bundle = Checkpoint.open(tmp_path / "out")
    assert np.array_equal(bundle.read(MARGIN_ROW), expected)
    assert bundle.entry(MARGIN_ROW).dtype == "F32"
    assert "lm_head.weight" not in bundle


def test_overflow_of_bf16_is_clipped_and_reported(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", TEXT, "BF16")
    tensors = tensors_of(TEXT, checkpoint)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name][0, :3] = 1e5, -1e30, 65504
    write_safetensors(checkpoint / "model.safetensors", tensors, "BF16")
    report = export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())
    assert report.clipped == {name: 2}
    assert np.abs(Checkpoint.open(tmp_path / "out").read(name)).max() == 65504


def _without(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = tensors_of(VL, folder)
        del tensors[name]
        write_safetensors(folder / "model.safetensors", tensors)

    return damage


def _with(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = tensors_of(VL, folder)
        tensors[name] = change(tensors[name])
        write_safetensors(folder / "model.safetensors", tensors)

    return damage


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: _write_json(folder / "config.json", {**VL, **changes})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _nan(values: np.ndarray) -> np.ndarray:
    values.flat[-1] = np.nan
    return values


UP = "model.language_model.layers.2.mlp.up_proj.weight"
TAP = "model.visual.deepstack_merger_list.1.linear_fc2.bias"


@pytest.mark.parametrize(
    ("damage", "item"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (_cut, "model.safetensors"),
        (_without(UP), UP),
        (_without(TAP), TAP),
        (_with(UP, _nan), UP),
        (_with(TAP, _nan), TAP),
        (_with(UP, lambda values: values[:-1]), UP),
        (_with(UP, lambda values: values.T.copy()), UP),
        (_config(tie_word_embeddings=False), "lm_head.weight"),
        (_config(text_config={**VL["text_config"], "vocab_size": 12313}), "vocab_size"),
        (_config(text_config={**VL["text_config"], "num_hidden_layers": 4}), "layers.3"),
        (_config(model_type="qwen2_vl"), "model_type"),
        (lambda folder: (folder / "preprocessor_config.json").write_text("[]"), "preprocessor_config.json"),
    ],
)
def test_a_bad_checkpoint_is_named_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, damage: Callable[[Path], object], item: str
) -> None:
    copy = copy_of(checkpoint, tmp_path)
    damage(copy)
    with pytest.raises((CheckpointError, BundleError)) as caught:
        export_checkpoint(copy, tmp_path / "out", ExportOptions())
    assert item in (caught.value.item or "")
    assert not (tmp_path / "out").exists() or not contents(tmp_path / "out")


def test_a_bad_checkpoint_does_not_cost_the_bundle_that_is_there(checkpoint: Path, tmp_path: Path) -> None:
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())
    before = contents(tmp_path / "out")
    copy = copy_of(checkpoint, tmp_path)
    _without(UP)(copy)
    with pytest.raises(CheckpointError):
        export_checkpoint(copy, tmp_path / "out", ExportOptions())
    assert contents(tmp_path / "out") == before


def test_a_checkpoint_is_not_overwritten_by_its_bundle(checkpoint: Path, tmp_path: Path) -> None:
    copy = copy_of(checkpoint, tmp_path)
    before = contents(copy)
    with pytest.raises(CheckpointError, match="into its checkpoint"):
        export_checkpoint(copy, copy, ExportOptions())
    assert contents(copy) == before


def test_golden_pairs_go_along(checkpoint: Path, tmp_path: Path) -> None:
    golden = write_golden(tmp_path / "golden", [1.0, 2.0])
    bundle = export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(golden=golden)).bundle
    assert {"golden/pairs.jsonl", "golden/picture.png"} <= bundle.manifest.files.keys()
    again = ExportOptions(golden=tmp_path / "out" / "golden")  # from where they already are
    assert export_checkpoint(checkpoint, tmp_path / "out", again).bundle.digest == bundle.digest
    for missing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="golden pairs"):
            export_checkpoint(checkpoint, tmp_path / "out2", ExportOptions(golden=missing))


KILLED = """
    import os, sys
    from pathlib import Path
    from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
    checkpoint, out, stage, count = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    seen = 0
    def report(what):
        global seen
        seen += what.startswith(stage)
        if seen == count:
            os.kill(os.getpid(), 9)
    export_checkpoint(checkpoint, out, ExportOptions(), report)
"""


@pytest.mark.parametrize(("stage", "count"), [("writing weights", 20), ("writing graphs", 1), ("hashing", 1)])
def test_a_killed_export_leaves_no_bundle_and_can_be_run_again(
    checkpoint: Path, tmp_path: Path, stage: str, count: int
) -> None:
    whole = export_checkpoint(checkpoint, tmp_path / "whole", ExportOptions()).bundle
    out = tmp_path / "out"
    export_checkpoint(checkpoint, out, ExportOptions(max_tokens=999))
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(checkpoint), str(out), stage, str(count)]
    assert subprocess.run(command, check=False).returncode == -9
    assert not (out / MANIFEST_FILE).exists()
    with pytest.raises(BundleError):
        Bundle.open(out)
    assert export_checkpoint(checkpoint, out, ExportOptions()).bundle.digest == whole.digest
    assert contents(out) == contents(tmp_path / "whole")


MEASURED = """
    import resource, sys
    from pathlib import Path
    import onnx, transformers, tokenizers
    from transformers import AutoConfig
    from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
    export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), ExportOptions())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    export_checkpoint(Path(sys.argv[3]), Path(sys.argv[4]), ExportOptions())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    large = {**TEXT, "hidden_size": 4096, "intermediate_size": 4096, "num_hidden_layers": 1, "head_dim": 64}
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**large, "tie_word_embeddings": True}))
    shutil.copy(checkpoint / "tokenizer.json", folder)
    header: dict[str, Any] = {}
    shapes = {name: spec.shape for name, spec in _shapes(folder).items()}
    with (folder / "model.safetensors").open("wb") as file:
        begin = 0
        for name, shape in shapes.items():
            size = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, begin + size]}
            begin += size
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + begin)  # zeros, that take no room on the disk
    assert begin > 200e6
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(MEASURED),
        *map(str, (checkpoint, tmp_path / "a", folder, tmp_path / "b")),
    ]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1024
    # Its largest tensor has 100 MB as BF16, and 400 MB in the course of widening it whole.
    assert grown < 110e6
    (tmp_path / "b" / "model.safetensors").unlink()


def _shapes(folder: Path) -> dict[str, Any]:
    from orin_rerank.graph.architecture import read_architecture
    from orin_rerank.graph.text import text_weights

    return {
        spec.name: spec for spec in text_weights(read_architecture(folder).text, vl=False) if spec.name != MARGIN_ROW
    }
