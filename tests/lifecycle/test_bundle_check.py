"""Every part of a bundle, damaged or wrong by itself: found, named, and nothing else held against it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import struct
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import TensorProto

from lifecycle.conftest import write_golden
from lifecycle.int8_bundles import seal
from orin_rerank.engines.bundle import FORMAT, MANIFEST_FILE, WEIGHTS_FILE, Bundle, Manifest
from orin_rerank.lifecycle.bundle_check import check_bundle
from orin_rerank.lifecycle.bundle_report import BundleReport, Check, State
from orin_rerank.quantization.gate import GATE_FILE, GateRecord
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.calibrated import Made

TEXT_GRAPH = "text.fused.fp32.onnx"


@pytest.fixture
def folder(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.fixture
def int8(made: Made, tmp_path: Path) -> Path:
    return shutil.copytree(made.result.folder, tmp_path / "int8")


def states(report: BundleReport) -> dict[Check, State]:
    return {result.check: result.state for result in report.results}


def faults(report: BundleReport) -> list[tuple[str, str]]:
    return [(fault.item, fault.problem) for fault in report.faults]


def sealed(folder: Path, **changes: Any) -> Path:
    """Writes a manifest that vouches for the files as they are now."""
    manifest = dataclasses.replace(Bundle.open(folder).manifest, **changes)
    seal(folder, manifest, [name for name in manifest.files if (folder / name).exists()])
    return folder


def only_fault(folder: Path, check: Check, *, run: bool = False) -> tuple[str, str]:
    """The one fault of a bundle, which must be of this check."""
    report = check_bundle(folder, run=run)
    (fault,) = faults(report)
    assert [name for name, state in states(report).items() if state is State.FAILED] == [check]
    return fault


def test_a_whole_bundle_passes(folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = check_bundle(folder, run=True, report=lambda *what: seen.append(what))
    assert faults(report) == []
    assert states(report) == {check: State.PASSED for check in Check if check is not Check.INT8}
    assert report.notes == ()
    total = sum(entry.bytes for entry in Bundle.open(folder).manifest.files.values())
    assert seen[-1][1:] == (total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_whole_int8_bundle_passes(int8: Path, made: Made) -> None:
    report = check_bundle(int8, run=True)
    assert faults(report) == []
    assert states(report) == dict.fromkeys(Check, State.PASSED)
    detail = next(result.detail for result in report.results if result.check is Check.INT8)
    assert made.at.bundle.digest[:12] in detail
    assert "passed its gate" in detail or "passed a gate" in detail


@pytest.mark.parametrize("kind", ["folder", "int8"])
def test_every_damaged_file_is_named_and_no_other(request: pytest.FixtureRequest, kind: str) -> None:
    folder: Path = request.getfixturevalue(kind)
    for name in Bundle.open(folder).manifest.files:
        path = folder / name
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
        path.write_bytes(flipped)
        report = check_bundle(folder, run=True)
        assert [item for item, _ in faults(report)] == [name]
        assert states(report)[Check.SELF_TEST] is State.SKIPPED
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["model.safetensors", TEXT_GRAPH, "tokenizer.json", "golden/picture.png"])
def test_missing_empty_short_and_long_files_are_named(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    for damage, problem in (
        (whole[:-1], "bytes, not"),
        (whole + b"\n", "bytes, not"),
        (b"", "has 0 bytes"),
        (None, "No such"),
    ):
        path.unlink(missing_ok=True)
        if damage is not None:
            path.write_bytes(damage)
        item, found = only_fault(folder, Check.FILES)
        assert item == name
        assert problem in found
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is malformed"),
        (b"\xff\xfe{}", "is malformed"),
        (b"[1]", "no object with a format"),
        (b'{"format": %d, "sha256": "0"}' % FORMAT, "does not have the contents that its own SHA-256 names"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_the_only_fault(folder: Path, contents: bytes | None, problem: str) -> None:
    path = folder / MANIFEST_FILE
    path.unlink()
    if contents is not None:
        path.write_bytes(contents)
    report = check_bundle(folder)
    ((item, found),) = faults(report)
    assert item == MANIFEST_FILE
    assert problem in found
    assert report.bundle is None
    assert list(states(report)) == [Check.MANIFEST]


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads((folder / MANIFEST_FILE).read_text())
    del value["sha256"]
    change(value)
    value["sha256"] = hashlib.sha256((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()).hexdigest()
    (folder / MANIFEST_FILE).write_text(json.dumps(value))


@pytest.mark.parametrize(("number", "hint"), [(FORMAT + 1, "update this one"), (FORMAT - 1, ""), ("one", "")])
def test_another_format_is_refused_with_what_to_do_about_a_later_one(folder: Path, number: object, hint: str) -> None:
    rewrite_manifest(folder, lambda value: value.update(format=number))
    (fault,) = check_bundle(folder).faults
    assert fault.item == MANIFEST_FILE
    assert f"is of format {number!r}; this version reads {FORMAT}" in fault.problem
    assert hint in fault.hint
    assert bool(fault.hint) == bool(hint)


@pytest.mark.parametrize(
    ("change", "item"),
    [
        (lambda v: v["prompt"]["image"].update(patch_size=7), "prompt.image.patch_size"),
        (lambda v: v["prompt"]["image"].update(head_dim=8), "prompt.image.head_dim"),
        (lambda v: v["prompt"].update(image=None), "prompt.image"),
        (lambda v: v.update(graphs=[]), "graphs"),
        (lambda v: v.update(source="a" * 64), "source"),
    ],
)
def test_a_manifest_at_odds_with_itself(folder: Path, change: Callable[[dict[str, Any]], object], item: str) -> None:
    rewrite_manifest(folder, change)
    assert f"{MANIFEST_FILE}: {item}" in [found for found, _ in faults(check_bundle(folder))]


def test_files_that_do_not_belong_are_noted(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / ".model.safetensors.part").write_text("half")
    (folder / "old").mkdir()
    for name in "ab":
        (folder / "old" / name).write_text(name)
    report = check_bundle(folder)
    assert report.faults == ()
    (note,) = report.notes
    assert note.endswith(": .model.safetensors.part, notes.txt, old/ (2 files)")


def edit_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the header of the weight file, and leaves its length and the tensors alone."""
    path = folder / WEIGHTS_FILE
    whole = path.read_bytes()
    (length,) = struct.unpack_from("<Q", whole)
    header = json.loads(whole[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    path.write_bytes(whole[:8] + text.ljust(length) + whole[8 + length :])


def test_weights_of_another_architecture(folder: Path) -> None:
    name = "model.language_model.layers.0.mlp.down_proj.weight"

    def change(header: dict[str, Any]) -> None:
        header[name]["shape"].reverse()

    edit_header(folder, change)
    assert only_fault(sealed(folder), Check.WEIGHTS) == (f"{WEIGHTS_FILE}: {name}", "is F16 [48, 32], not F16 [32, 48]")


def test_a_weight_by_another_name_is_missing_to_all_that_use_it(folder: Path) -> None:
    name = "model.language_model.norm.weight"
    edit_header(folder, lambda header: header.update({"model.language_model.nurm.weight": header.pop(name)}))
    found = faults(check_bundle(sealed(folder)))
    assert found[0] == (f"{WEIGHTS_FILE}: {name}", "is missing; it should be F32 [32]")
    graphs = {graph.text for graph in Bundle.open(folder).manifest.graphs}
    assert set(found[1:]) == {(graph, f"weight {name}: {WEIGHTS_FILE} has no {name}") for graph in graphs}


def test_weights_with_a_hole_in_them(folder: Path) -> None:
    edit_header(folder, lambda header: header.pop("model.language_model.norm.weight"))
    report = check_bundle(sealed(folder))
    assert (WEIGHTS_FILE in faults(report)[0][0], states(report)[Check.WEIGHTS]) == (True, State.FAILED)


def edit_graph(folder: Path, change: Callable[[onnx.ModelProto], object], name: str = TEXT_GRAPH) -> Path:
    model = onnx.load(folder / name, load_external_data=False)
    change(model)
    (folder / name).write_bytes(model.SerializeToString())
    return sealed(folder)


def external(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    return [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]


def point(tensor: onnx.TensorProto, key: str, value: str) -> None:
    next(entry for entry in tensor.external_data if entry.key == key).value = value


def where(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def shift_all(model: onnx.ModelProto) -> None:
    for tensor in external(model):
        point(tensor, "offset", str(int(where(tensor)["offset"]) + 64))


def test_every_weight_of_every_graph_is_looked_at(folder: Path) -> None:
    names = [name for graph in Bundle.open(folder).manifest.graphs for name in (graph.text, graph.vision) if name]
    assert len(names) == 8
    for name in names:
        whole = (folder / name).read_bytes()
        weights = [tensor.name for tensor in external(onnx.load_from_string(whole))]
        assert len(weights) > 20
        edit_graph(folder, shift_all, name)
        found = faults(check_bundle(folder))
        assert [item for item, _ in found] == [name] * len(weights)
        assert all(
            f"weight {weight}: is bytes " in problem for weight, (_, problem) in zip(weights, found, strict=True)
        )
        (folder / name).write_bytes(whole)
    assert check_bundle(sealed(folder)).faults == ()


def swap_neighbours(model: onnx.ModelProto) -> None:
    """Two weights of one shape each take the other's bytes."""
    first, second = (t for t in external(model) if t.name.endswith(("0.mlp.gate_proj.weight", "0.mlp.up_proj.weight")))
    offsets = [where(tensor)["offset"] for tensor in (first, second)]
    for tensor, offset in zip((first, second), reversed(offsets), strict=True):
        point(tensor, "offset", offset)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: point(external(m)[0], "location", "../other.bin"), "lies in '../other.bin', not in"),
        (lambda m: point(external(m)[0], "length", "1"), "is bytes"),
        (lambda m: point(external(m)[0], "offset", "first"), "is bytes 0 to 0"),
        (lambda m: point(external(m)[0], "offset", str(1 << 62)), "is bytes"),
        (lambda m: external(m)[0].dims.append(2), "has the shape"),
        (lambda m: setattr(external(m)[0], "data_type", TensorProto.INT8), "is int8, and model.safetensors has F16"),
        (lambda m: setattr(external(m)[0], "name", "no.such"), "has no no.such"),
        (lambda m: m.graph.input.pop(0), "has no input ids"),
        (lambda m: m.graph.input.add(name="more"), "has an input more that no engine knows"),
        (lambda m: m.graph.output.pop(), "has no output kept"),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.INT64),
            "input ids is int64 [?], not int32 [?]",
        ),
        (
            lambda m: setattr(m.graph.input[1].type.tensor_type.shape.dim[1], "dim_value", 9),
            "input cos is float [?, 9], not float [?, 8]",
        ),
        (lambda m: setattr(m.graph.node[0], "op_type", "Nothing"), "is no valid ONNX graph"),
        (lambda m: m.graph.node.pop(0), "is no valid ONNX graph"),
    ],
)
def test_a_wrong_graph(folder: Path, change: Callable[[onnx.ModelProto], object], problem: str) -> None:
    edit_graph(folder, change)
    report = check_bundle(folder)
    assert {item for item, _ in faults(report)} == {TEXT_GRAPH}
    assert any(problem in found for _, found in faults(report)), faults(report)


def test_weights_that_have_changed_places(folder: Path) -> None:
    edit_graph(folder, swap_neighbours)
    found = faults(check_bundle(folder))
    assert len(found) == 2
    assert all(item == TEXT_GRAPH and ": is bytes " in problem for item, problem in found)


def test_a_graph_that_is_none(folder: Path) -> None:
    (folder / TEXT_GRAPH).write_bytes(b"not a graph")
    assert only_fault(sealed(folder), Check.GRAPHS)[0] == TEXT_GRAPH


def test_a_vision_graph_that_is_not_named(folder: Path) -> None:
    graphs = Bundle.open(folder).manifest.graphs
    sealed(folder, graphs=(dataclasses.replace(graphs[0], vision=None), *graphs[1:]))
    item, problem = only_fault(folder, Check.GRAPHS)
    assert item == f"{MANIFEST_FILE}: graphs: {graphs[0].text}"
    assert "vision graph" in problem


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    value = json.loads((folder / "tokenizer.json").read_text())
    change(value)
    (folder / "tokenizer.json").write_text(json.dumps(value))
    return sealed(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda v: v["added_tokens"].pop(1), "has no token <|im_start|>"),
        (lambda v: v.update(normalizer=None), "not a Qwen tokenizer"),
        (
            lambda v: v["added_tokens"].append({"content": "<more>", "id": 12_314}),
            "has a token 12314, and the embedding",
        ),
        (lambda v: v["model"].update(merges=[]), '"yes" is not a single token'),
    ],
)
def test_a_wrong_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object], problem: str) -> None:
    item, found = only_fault(edit_tokenizer(folder, change), Check.TOKENIZER)
    assert item == "tokenizer.json"
    assert problem in found


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is malformed"),
        ('{"query": [{"text": "a"}], "document": [{"image": "none.png"}], "margin": 1}', "'none.png' cannot be read"),
        ('{"query": [{"text": "a"}], "document": [{"text": "b"}], "margin": NaN}', "its margin is nan"),
        ('{"query": [{"text": " "}], "document": [{"text": "b"}], "margin": 1}', "query: holds neither text nor image"),
    ],
)
def test_a_wrong_golden_pair(folder: Path, line: str, problem: str) -> None:
    with (folder / "golden" / "pairs.jsonl").open("a") as file:
        file.write(line + "\n")
    item, found = only_fault(sealed(folder), Check.GOLDEN)
    assert item == "golden/pairs.jsonl:3"
    assert problem in found


def test_a_golden_picture_that_is_cut_short(folder: Path) -> None:
    path = folder / "golden" / "picture.png"
    path.write_bytes(path.read_bytes()[:-400])
    item, problem = only_fault(sealed(folder), Check.GOLDEN)
    assert item == "golden/pairs.jsonl:2"
    assert "documents[0].content[0]" in problem


def test_golden_margins_that_the_model_does_not_give(folder: Path, margins: list[float]) -> None:
    write_golden(folder / "golden", [margins[0], margins[1] + 0.5])
    sealed(folder)
    assert check_bundle(folder).faults == (), "only a run can tell"
    item, problem = only_fault(folder, Check.SELF_TEST, run=True)
    assert item == "golden/pairs.jsonl:2"
    assert "the model gives" in problem


def test_what_cannot_be_looked_at_is_skipped(folder: Path) -> None:
    shutil.rmtree(folder / "golden")
    report = check_bundle(sealed(folder), run=True)
    assert report.faults == ()
    assert {check for check, state in states(report).items() if state is State.SKIPPED} == {
        Check.GOLDEN,
        Check.SELF_TEST,
    }


def test_a_bundle_without_graphs_for_processors_is_not_run(folder: Path) -> None:
    graphs = Bundle.open(folder).manifest.graphs
    report = check_bundle(sealed(folder, graphs=tuple(g for g in graphs if g.precision.half)), run=True)
    assert report.faults == ()
    assert report.results[-1].state is State.SKIPPED
    assert "no graphs in fp32" in report.results[-1].detail


def without(manifest: Manifest, name: str) -> dict[str, Any]:
    return {"files": {key: value for key, value in manifest.files.items() if key != name}}


@pytest.mark.parametrize("name", [PLAN_FILE, SMOOTHING_FILE, GATE_FILE])
def test_int8_without_its_papers(int8: Path, name: str) -> None:
    sealed(int8, **without(Bundle.open(int8).manifest, name))
    assert f"{MANIFEST_FILE}: {name}" in [item for item, _ in faults(check_bundle(int8))]


def test_int8_with_a_plan_of_another_bundle(int8: Path) -> None:
    sealed(int8, source="b" * 64)
    found = dict(faults(check_bundle(int8)))
    assert "and this is bbbbbbbbbbbb" in found[PLAN_FILE]


def test_int8_with_another_smoothing(int8: Path) -> None:
    path = int8 / SMOOTHING_FILE
    path.write_bytes(path.read_bytes() + b" ")
    assert (PLAN_FILE, f"was made with another {SMOOTHING_FILE}") in faults(check_bundle(sealed(int8)))


def test_int8_whose_weights_are_another_plans(int8: Path) -> None:
    name = "model.language_model.layers.0.mlp.down_proj.weight.scale"
    edit_header(int8, lambda header: header.update({name.replace("scale", "skale"): header.pop(name)}))
    found = dict(faults(check_bundle(sealed(int8))))
    assert "is missing" in found[f"{WEIGHTS_FILE}: {name}"]


def test_int8_that_its_gate_refuses(int8: Path) -> None:
    path = int8 / GATE_FILE
    record = GateRecord.from_json(path.read_text())
    thresholds = dataclasses.replace(record.thresholds, min_queries=10_000)
    path.write_text(dataclasses.replace(record, thresholds=thresholds).to_json())
    item, problem = only_fault(sealed(int8), Check.INT8)
    assert item == GATE_FILE
    assert "the gate refuses INT8" in problem


def test_int8_that_is_not_what_the_gate_saw(int8: Path) -> None:
    (int8 / "config.json").write_text("{}")
    item, problem = only_fault(sealed(int8), Check.INT8)
    assert item == GATE_FILE
    assert "the gate's record is of INT8 engine" in problem
