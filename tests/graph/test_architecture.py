"""A configuration is understood as transformers understands it, or refused by the key that is to blame."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from fakes.full_size import PUBLISHED, published_config
from graph.checkpoints import TEXT, VL
from orin_rerank.errors import CheckpointError
from orin_rerank.graph.architecture import Architecture, read_architecture

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = {"text": TEXT, "vl": VL}


def _read(folder: Path, config: Any) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config))
    return read_architecture(folder)


def _with(kind: str, path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIGS[kind])
    *way, key = path.split(".")
    place = config
    for step in way:
        place = place[step]
    place[key] = value
    return config


def test_reads_both_families(tmp_path: Path) -> None:
    text = _read(tmp_path, TEXT)
    assert text.vision is None
    assert (text.text.heads, text.text.kv_heads, text.text.head_dim, text.text.tied) == (4, 2, 16, False)
    assert text.text.mrope_section is None
    vl = _read(tmp_path, VL)
    assert vl.vision is not None
    assert vl.text.mrope_section == (4, 2, 2)
    assert (vl.vision.head_dim, vl.vision.patch_values, vl.vision.position_grid) == (16, 384, 6)
    assert vl.text.tied


def test_the_spelling_of_transformers_4_means_the_same(tmp_path: Path) -> None:
    new = _read(tmp_path, VL)
    old = copy.deepcopy(VL)
    rope = old["text_config"].pop("rope_parameters")
    old["text_config"]["rope_theta"] = rope.pop("rope_theta")
    old["text_config"]["rope_scaling"] = rope
    assert _read(tmp_path, old) == new


def test_what_a_configuration_leaves_out_is_as_transformers_has_it(tmp_path: Path) -> None:
    config = copy.deepcopy(VL)
    for key in ("mrope_section", "mrope_interleaved"):
        del config["text_config"]["rope_parameters"][key]
    del config["vision_config"]["num_position_embeddings"]
    del config["text_config"]["rms_norm_eps"]
    architecture = _read(tmp_path, config)
    assert architecture.text.mrope_section == (24, 20, 20)
    assert architecture.text.rms_norm_eps == 1e-6
    assert architecture.vision is not None
    assert architecture.vision.position_grid == 48


@pytest.mark.parametrize(
    ("kind", "path", "value", "item"),
    [
        ("text", "model_type", "llama", "model_type"),
        ("text", "model_type", "qwen3_vl_moe", "model_type"),
        ("text", "model_type", None, "model_type"),
        ("text", "hidden_act", "gelu", "hidden_act"),
        ("text", "attention_bias", True, "attention_bias"),
        ("text", "use_sliding_window", True, "use_sliding_window"),
        ("text", "layer_types", ["full_attention", "sliding_attention"], "layer_types"),
        ("text", "architectures", ["Qwen3Model"], "architectures"),
        ("text", "architectures", "Qwen3ForCausalLM", "architectures"),
        ("text", "quantization_config", {"quant_method": "fp8"}, "quantization_config"),
        ("text", "compression_config", {"quant_method": "compressed-tensors"}, "compression_config"),
        ("vl", "architectures", ["Qwen3ForCausalLM"], "architectures"),
        ("vl", "text_config.quantization_config", {"quant_method": "awq"}, "text_config.quantization_config"),
        ("vl", "text_config.rope_scaling", {"rope_type": "yarn", "factor": 4}, "text_config.rope_scaling.rope_type"),
        ("vl", "text_config.attention_bias", True, "text_config.attention_bias"),
        ("text", "num_key_value_heads", 3, "num_key_value_heads"),
        ("text", "rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "rope_scaling.rope_type"),
        ("text", "rope_scaling", {"type": "dynamic", "factor": 4.0}, "rope_scaling.type"),
        ("text", "model_type", ["qwen3"], "model_type"),
        ("text", "num_hidden_layers", 0, "num_hidden_layers"),
        ("text", "rms_norm_eps", -1e-6, "rms_norm_eps"),
        ("text", "rms_norm_eps", float("inf"), "rms_norm_eps"),
        ("text", "rope_parameters.rope_theta", float("inf"), "rope_theta"),
        ("text", "rope_parameters.rope_type", "yarn", "rope_parameters.rope_type"),
        ("text", "rope_parameters.attention_factor", 2.0, "rope_parameters.attention_factor"),
        ("text", "rope_parameters.partial_rotary_factor", 0.5, "rope_parameters.partial_rotary_factor"),
        ("vl", "text_config.hidden_act", "gelu", "text_config.hidden_act"),
        ("vl", "text_config.rope_parameters.frequencies", 3, "text_config.rope_parameters.frequencies"),
        ("vl", "text_config.rope_parameters.rope_type", "linear", "text_config.rope_parameters.rope_type"),
        ("vl", "text_config.rope_parameters.mrope_section", [8], "text_config.rope_parameters.mrope_section"),
        (
            "vl",
            "text_config.rope_parameters.mrope_interleaved",
            False,
            "text_config.rope_parameters.mrope_interleaved",
        ),
        ("vl", "vision_config.hidden_act", "gelu", "vision_config.hidden_act"),
        ("vl", "vision_config.out_hidden_size", 48, "vision_config.out_hidden_size"),
        ("vl", "vision_config.num_heads", 3, "vision_config.num_heads"),
        ("vl", "vision_config.in_channels", 1, "vision_config.in_channels"),
        ("vl", "vision_config.num_position_embeddings", 35, "vision_config.num_position_embeddings"),
        ("vl", "vision_config.deepstack_visual_indexes", [0, 3], "vision_config.deepstack_visual_indexes"),
        ("vl", "vision_config.deepstack_visual_indexes", [1, 1], "vision_config.deepstack_visual_indexes"),
        ("vl", "vision_config.deepstack_visual_indexes", [0, 1, 2], "vision_config.deepstack_visual_indexes"),
    ],
)
def test_refusals_name_the_key(tmp_path: Path, kind: str, path: str, value: Any, item: str) -> None:
    config = _with(kind, path, value)
    if value == [0, 1, 2]:
        config["text_config"]["num_hidden_layers"] = 2
    with pytest.raises(CheckpointError) as caught:
        _read(tmp_path, config)
    assert caught.value.item == item


@pytest.mark.parametrize("value", ["many", [3], {"a": 1}, None, True, -5])
@pytest.mark.parametrize(
    ("kind", "path"), [("text", "hidden_size"), ("text", "vocab_size"), ("vl", "vision_config.depth")]
)
def test_a_wrong_type_is_refused(tmp_path: Path, kind: str, path: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        _read(tmp_path, _with(kind, path, value))
    assert path.rsplit(".", maxsplit=1)[-1] in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\udcff"])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError) as caught:
        read_architecture(tmp_path)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(("name", "config"), [(name, published_config(one)) for name, one in PUBLISHED.items()])
def test_the_published_models_are_read_as_they_are(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    assert _read(tmp_path, config) == PUBLISHED[name]


@pytest.mark.parametrize(("outer", "inner", "tied"), [(False, True, False), (True, False, True), (None, False, False)])
def test_the_outer_word_on_the_head_counts(tmp_path: Path, outer: bool | None, inner: bool, tied: bool) -> None:
    config = _with("vl", "text_config.tie_word_embeddings", inner)
    del config["tie_word_embeddings"]
    if outer is not None:
        config["tie_word_embeddings"] = outer
    assert _read(tmp_path, config).text.tied is tied


def test_an_odd_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        _read(tmp_path, _with("text", "head_dim", 15))
    assert caught.value.item in {"head_dim", "config.json"}  # here, or by transformers 5 itself


def test_an_adapter_without_its_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="merge_and_unload"):
        read_architecture(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")  # what was merged may lie in the same folder
    assert _read(tmp_path, TEXT).vision is None


def test_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_architecture(tmp_path)
