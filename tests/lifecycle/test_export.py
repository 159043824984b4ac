"""From checkpoint to bundle: the same every time, whole or not at all."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fakes.full_size import PUBLISHED, shapes_of, write_full_size, write_shards
from graph.checkpoints import TEXT, VL, tensors_of, write_checkpoint, write_safetensors, write_sharded
from lifecycle.conftest import write_golden
from orin_rerank.errors import BundleError, CheckpointError
from orin_rerank.graph.architecture import read_architecture
from orin_rerank.graph.builder import Precision
from orin_rerank.graph.checkpoint import Checkpoint
from orin_rerank.graph.weights import MARGIN_ROW
from orin_rerank.lifecycle.export import ExportOptions, export_checkpoint
from orin_rerank.lifecycle.export_source import read_source
from orin_rerank.prompt.profile import PromptFamily

if TYPE_CHECKING:
    from collections.abc import Callable

PARAMETERS = {
    "vl-2b": 2_127_532_032,
    "vl-8b": 8_767_123_696,
    "0.6b": 595_776_512,
    "4b": 4_021_784_576,
    "8b": 8_188_548_096,
}
"""What the model cards and transformers count."""


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


def test_transformers_5_keeps_the_preprocessor_elsewhere(checkpoint: Path, tmp_path: Path) -> None:
    copy = copy_of(checkpoint, tmp_path)
    size = {"shortest_edge": 5000, "longest_edge": 100_000}
    processor = {"image_processor": {"size": size, "rescale_factor": 1 / 255}, "processor_class": "Qwen3VLProcessor"}
    (copy / "processor_config.json").write_text(json.dumps(processor))
    image = export_checkpoint(copy, tmp_path / "out", ExportOptions()).bundle.manifest.prompt.image
    assert image is not None
    assert (image.min_pixels, image.max_pixels) == (5000, 100_000)


@pytest.mark.parametrize("config", [TEXT, VL])
def test_shards_and_other_names_give_the_same_bundle(tmp_path: Path, config: dict[str, Any]) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", config, "BF16")
    expected = export_checkpoint(checkpoint, tmp_path / "expected", ExportOptions())
    assert (expected.renamed, expected.ignored, expected.resumed) == ({}, (), 0)
    tensors = tensors_of(config, checkpoint)
    write_sharded(checkpoint, tensors, "BF16")
    assert export_checkpoint(checkpoint, tmp_path / "a", ExportOptions()).bundle.digest == expected.bundle.digest
    wrapped = {f"base_model.model.{name}": values for name, values in tensors.items()}
    write_sharded(checkpoint, {**wrapped, "v_head.weight": np.zeros(3)}, "BF16", shards=2)
    report = export_checkpoint(checkpoint, tmp_path / "b", ExportOptions())
    assert contents(tmp_path / "b") == contents(tmp_path / "expected")
    assert report.ignored == ("v_head.weight",)
    parts = {"model."} if config is TEXT else {"model.language_model.", "model.visual."}
    assert report.renamed == {f"base_model.model.{part}": part for part in parts}


@pytest.mark.parametrize("published", PUBLISHED)
def test_a_published_folder_is_understood_up_to_its_weights(tmp_path: Path, published: str) -> None:
    write_full_size(tmp_path / "folder", PUBLISHED[published], shard_bytes=1 << 60, sparse=True)
    source = read_source(tmp_path / "folder", None)
    assert source.architecture == PUBLISHED[published]
    assert (source.renamed, source.ignored) == ({}, ())
    stored = sum(math.prod(spec.shape) for spec in source.weights.specs)
    head = 0 if source.architecture.text.tied else source.architecture.text.vocabulary * source.architecture.text.hidden
    assert stored - source.architecture.text.hidden + head == PARAMETERS[published]


def test_a_head_that_is_the_embedding_may_be_stored_besides(checkpoint: Path, tmp_path: Path) -> None:
    copy = copy_of(checkpoint, tmp_path)
    _with_head(1.0)(copy)
    expected = export_checkpoint(checkpoint, tmp_path / "a", ExportOptions(name="n")).bundle
    assert export_checkpoint(copy, tmp_path / "b", ExportOptions(name="n")).bundle.digest == expected.digest


def test_an_adapter_beside_the_weights_is_said_not_to_be_used(checkpoint: Path, tmp_path: Path) -> None:
    """transformers would apply it; whether it is merged already, nobody can tell."""
    copy = copy_of(checkpoint, tmp_path)
    _write_json(copy / "adapter_config.json", {"peft_type": "LORA"})
    write_safetensors(copy / "adapter_model.safetensors", {"x.lora_A.weight": np.zeros((2, 2))})
    assert export_checkpoint(copy, tmp_path / "out", ExportOptions()).ignored == ("adapter_model.safetensors",)


def test_a_conversion_to_sequence_classification_has_its_margin_row(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", TEXT)
    tensors = tensors_of(TEXT, checkpoint)
    head = tensors.pop("lm_head.weight")
    _write_json(checkpoint / "config.json", {**TEXT, "architectures": ["Qwen3ForSequenceClassification"]})
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())
    assert caught.value.item == "score.weight"
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    row = (head[vocabulary["yes"]] - head[vocabulary["no"]]).astype(np.float16)
    write_safetensors(checkpoint / "model.safetensors", {**tensors, "score.weight": row[None]})
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())
    assert np.array_equal(Checkpoint.open(tmp_path / "out").read(MARGIN_ROW), row.astype(np.float32))
    write_safetensors(checkpoint / "model.safetensors", {**tensors, "score.weight": np.stack([row, -row])})
    with pytest.raises(CheckpointError, match=r"shape \[2, 32\]"):  # which of the two is "yes" is anyone's guess
        export_checkpoint(checkpoint, tmp_path / "out", ExportOptions())


@pytest.mark.parametrize(("matrices", "dtype"), [("F16", "F32"), ("F32", "BF16")])
def test_matrices_are_stored_as_asked(tmp_path: Path, matrices: Any, dtype: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", TEXT, dtype)
    export_checkpoint(checkpoint, tmp_path / "out", ExportOptions(matrices=matrices))
    name = "model.layers.0.mlp.up_proj.weight"
    bundle = Checkpoint.open(tmp_path / "out")
    assert bundle.entry(name).dtype == matrices
    assert np.array_equal(bundle.read(name), Checkpoint.open(checkpoint).read(name).astype(bundle.read(name).dtype))


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
    assert report.losses[name].values == tensors[name].size
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


def _with_head(factor: float) -> Callable[[Path], None]:
    """A head besides the embedding, a multiple of it."""

    def damage(folder: Path) -> None:
        tensors = tensors_of(VL, folder)
        tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"] * np.float32(factor)
        write_safetensors(folder / "model.safetensors", tensors)

    return damage


def _added(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        write_safetensors(folder / "model.safetensors", tensors_of(VL, folder) | {name: np.zeros(3, np.float32)})

    return damage


def _shards(damage: Callable[[Path], object]) -> Callable[[Path], None]:
    def in_shards(folder: Path) -> None:
        write_sharded(folder, tensors_of(VL, folder))
        damage(folder)

    return in_shards


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _preprocessor(**config: Any) -> Callable[[Path], None]:
    return lambda folder: _write_json(folder / "preprocessor_config.json", config)


def _without_token(content: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        definition = json.loads(path.read_text())
        definition["added_tokens"] = [one for one in definition["added_tokens"] if one["content"] != content]
        _write_json(path, definition)

    return damage


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
        (_with_head(0.5), "lm_head.weight"),
        (_config(architectures=["Qwen3VLModel"]), "architectures"),
        (_config(quantization_config={"quant_method": "gptq", "bits": 4}), "quantization_config"),
        (_config(image_token_id=7), "image_token_id"),
        (_config(vision_start_token_id=12298), "vision_start_token_id"),
        (_added(UP.replace(".2.", ".3.")), UP.replace(".2.", ".3.")),
        (_added(UP.replace("weight", "bias")), UP.replace("weight", "bias")),
        (_added(UP.replace("weight", "lora_A.default.weight")), "lora_A"),
        (_shards(lambda folder: (folder / "model-00002-of-00003.safetensors").unlink()), "model-00002-of-00003"),
        (_shards(lambda folder: _append(folder / "model-00003-of-00003.safetensors")), "model-00003-of-00003"),
        (lambda folder: _write_json(folder / "modules.json", [{"type": "x.models.Pooling"}]), "modules.json"),
        (_without_token("<|image_pad|>"), "tokenizer.json"),
        (_without_token("<|im_end|>"), "tokenizer.json"),
        (_config(text_config={**VL["text_config"], "vocab_size": 12313}), "vocab_size"),
        (_config(text_config={**VL["text_config"], "num_hidden_layers": 4}), "layers.3"),
        (_config(model_type="qwen2_vl"), "model_type"),
        (lambda folder: (folder / "preprocessor_config.json").write_text("[]"), "preprocessor_config.json"),
        (_preprocessor(image_mean=[0.48, 0.46, 0.41]), "image_mean"),
        (_preprocessor(patch_size=14), "patch_size"),
        (_preprocessor(rescale_factor=1.0), "rescale_factor"),
        (_preprocessor(do_resize=False), "do_resize"),
        (_preprocessor(size=[3]), "size"),
        (_preprocessor(min_pixels=100_000, max_pixels=9_999), "preprocessor_config.json"),
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
    shapes = shapes_of(read_architecture(folder))
    write_shards(folder, shapes, sparse=True)
    assert sum(2 * math.prod(shape) for shape in shapes.values()) > 200e6
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
