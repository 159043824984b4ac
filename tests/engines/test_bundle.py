"""Bundles: read back as written, and every kind of damage named."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from orin_rerank.engines.bundle import FORMAT, MANIFEST_FILE, Bundle, Manifest
from orin_rerank.errors import BundleError, NewerBundleError
from orin_rerank.graph.builder import Dialect, Precision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(vl_bundle: Bundle, tmp_path: Path) -> Path:
    shutil.copytree(vl_bundle.folder, tmp_path / "bundle")
    return tmp_path / "bundle"


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / MANIFEST_FILE
    value = json.loads(path.read_text())
    del value["sha256"]
    change(value)
    value["sha256"] = hashlib.sha256((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()).hexdigest()
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("name", ["vl_bundle", "text_bundle"])
def test_a_manifest_reads_back_as_it_was(request: pytest.FixtureRequest, name: str) -> None:
    bundle = request.getfixturevalue(name)
    assert Manifest.from_json(bundle.manifest.to_json()) == bundle.manifest
    assert (bundle.folder / MANIFEST_FILE).read_text() == bundle.manifest.to_json()
    reports: list[str] = []
    bundle.verify(reports.append)
    assert len(reports) == len(bundle.manifest.files)


def test_every_file_is_listed(vl_bundle: Bundle) -> None:
    present = {path.relative_to(vl_bundle.folder).as_posix() for path in vl_bundle.folder.rglob("*") if path.is_file()}
    assert present == {*vl_bundle.manifest.files, MANIFEST_FILE}


def test_a_flipped_bit_anywhere_is_found(folder: Path) -> None:
    bundle = Bundle.open(folder)
    for name in bundle.manifest.files:
        path = folder / name
        size = path.stat().st_size
        for place in (0, size // 2, size - 1):
            with path.open("r+b") as file:
                file.seek(place)
                (old,) = file.read(1)
                file.seek(place)
                file.write(bytes([old ^ 1]))
            with pytest.raises(BundleError) as caught:
                bundle.verify()
            assert caught.value.item == str(path)
            with path.open("r+b") as file:
                file.seek(place)
                file.write(bytes([old]))
    bundle.verify()


def test_a_flipped_bit_in_the_manifest_is_found(folder: Path) -> None:
    path = folder / MANIFEST_FILE
    whole = path.read_bytes()
    manifest = Bundle.open(folder).manifest
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            assert Bundle.open(folder).manifest == manifest, "read, but says something else"
        except BundleError as error:
            assert MANIFEST_FILE in str(error)  # noqa: PT017


def test_missing_short_and_long_files_are_found(folder: Path) -> None:
    bundle = Bundle.open(folder)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for damage in (path.unlink, lambda: path.write_bytes(whole[:-1]), lambda: path.write_bytes(whole + b"\0")):
        damage()
        with pytest.raises(BundleError) as caught:
            bundle.verify()
        assert caught.value.item == str(path)
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "text.fused.fp32.onnx"])
def test_what_is_used_must_be_listed(folder: Path, name: str) -> None:
    _edit(folder, lambda value: value["files"].pop(name))
    with pytest.raises(BundleError, match=name):
        Bundle.open(folder)


def test_a_graph_outside_the_bundle_is_refused(folder: Path) -> None:
    _edit(folder, lambda value: value["graphs"][0].update(text="../text.onnx"))
    with pytest.raises(BundleError, match=r"\.\./text\.onnx"):
        Bundle.open(folder)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", ""])
def test_a_file_outside_the_bundle_is_refused(folder: Path, path: str) -> None:
    _edit(folder, lambda value: value["files"].update({path: {"sha256": "", "bytes": 0, "licence": ""}}))
    with pytest.raises(BundleError, match="leads out"):
        Bundle.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("name"),
        lambda value: value.pop("prompt"),
        lambda value: value["prompt"].update(family="other"),
        lambda value: value["prompt"].update(max_tokens="many"),
        lambda value: value["prompt"]["image"].update(extra=1),
        lambda value: value["architecture"]["text"].pop("heads"),
        lambda value: value["architecture"].update(vision=3),
        lambda value: value["graphs"][0].update(dialect="other"),
        lambda value: value.update(graphs=3),
        lambda value: value.update(files=[]),
        lambda value: value["files"].update({"a": {"sha256": ""}}),
    ],
)
def test_malformed_manifests_are_refused(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    _edit(folder, change)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b'{"format": 1}'])
def test_a_manifest_that_is_none(folder: Path, text: bytes) -> None:
    (folder / MANIFEST_FILE).write_bytes(text)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(folder)


def test_another_format_is_refused(folder: Path) -> None:
    _edit(folder, lambda value: value.update(format=FORMAT + 1))
    with pytest.raises(NewerBundleError, match=f"format {FORMAT + 1}"):
        Bundle.open(folder)
    _edit(folder, lambda value: value.update(format=FORMAT - 1))
    with pytest.raises(BundleError, match=f"format {FORMAT - 1}.*export it again") as caught:
        Bundle.open(folder)
    assert not isinstance(caught.value, NewerBundleError)


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(tmp_path / "nowhere")


def test_a_graph_that_was_not_written(folder: Path) -> None:
    bundle = Bundle.open(folder)
    assert bundle.graph(Dialect.FUSED, Precision.FP16).text == "text.fused.fp16.onnx"
    _edit(folder, lambda value: value.update(graphs=value["graphs"][:1]))
    with pytest.raises(BundleError, match="no fused graph in fp16"):
        Bundle.open(folder).graph(Dialect.FUSED, Precision.FP16)


def test_the_digest_follows_the_manifest(folder: Path, vl_bundle: Bundle) -> None:
    assert Bundle.open(folder).digest == vl_bundle.digest
    _edit(folder, lambda value: value.update(name="other"))
    assert Bundle.open(folder).digest != vl_bundle.digest


def test_a_derived_bundle_names_its_source(vl_bundle: Bundle) -> None:
    derived = dataclasses.replace(vl_bundle.manifest, source="a" * 64)
    assert Manifest.from_json(derived.to_json()) == derived
    assert "source" not in json.loads(vl_bundle.manifest.to_json()), "present bundles keep their digest"


@pytest.mark.parametrize("source", ["", "A" * 64, "../" * 21 + "a", 3, ["a" * 64]])
def test_a_source_is_a_digest(folder: Path, source: object) -> None:
    _edit(folder, lambda value: value.update(source=source))
    with pytest.raises(BundleError, match="malformed"):
        Bundle.open(folder)


@pytest.mark.parametrize(
    ("where", "field", "wrong"),
    [
        (("architecture", "text"), "layers", "28"),
        (("architecture", "text"), "heads", 0),
        (("architecture", "text"), "hidden", -1),
        (("architecture", "text"), "kv_heads", 2.0),
        (("architecture", "text"), "vocabulary", True),
        (("architecture", "text"), "tied", "yes"),
        (("architecture", "text"), "rope_theta", None),
        (("architecture", "text"), "rms_norm_eps", -1e-6),
        (("architecture", "text"), "mrope_section", [1, "2", 3]),
        (("architecture", "vision"), "deepstack_layers", [0, None]),
        (("prompt", "image"), "max_pixels", 1e6),
        (("files", "config.json"), "bytes", "12"),
        (("files", "config.json"), "sha256", 0),
    ],
)
def test_values_of_another_type_are_refused(folder: Path, where: tuple[str, str], field: str, wrong: object) -> None:
    _edit(folder, lambda value: value[where[0]][where[1]].update({field: wrong}))
    with pytest.raises(BundleError, match=f"is malformed: ValueError: {field} cannot be"):
        Bundle.open(folder)
