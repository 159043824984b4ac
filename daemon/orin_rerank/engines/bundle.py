"""A model bundle on disk: everything that serving one model needs, and a manifest that says so.

::

    manifest.json            what is here, with the SHA-256 of every file and of itself; written last
    model.safetensors        the weights, which both graphs point into
    config.json              as the checkpoint had it
    tokenizer.json
    text.<dialect>.<precision>.onnx, vision.<dialect>.<precision>.onnx
    golden/pairs.jsonl       pairs with the margins that the reference implementation gives, and their pictures

A derived bundle is a bundle too: one in INT8, made from the full-precision one that its manifest names as its source.
Its golden margins are its own, recorded when it was made, and quantization/ holds how it came about.

The format is versioned: a reader refuses a `format` that it does not know. docs/bundle.md describes it for who writes
or reads bundles by other means.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orin_rerank.durable import replace_file
from orin_rerank.engines.sealed import FormatError, seal, unseal
from orin_rerank.errors import BundleError, NewerBundleError
from orin_rerank.graph.architecture import Architecture, TextArchitecture, VisionArchitecture
from orin_rerank.graph.builder import Dialect, Precision
from orin_rerank.prompt.profile import ImageProfile, PromptFamily, PromptProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "FORMAT",
    "GOLDEN_FILE",
    "MANIFEST_FILE",
    "TOKENIZER_FILE",
    "WEIGHTS_FILE",
    "Bundle",
    "FileEntry",
    "GraphEntry",
    "Manifest",
    "hash_file",
    "write_manifest",
]

FORMAT: Final = 2
"""2: float16 graphs hand image features on in float16. In format 1 they did in float32."""
MANIFEST_FILE: Final = "manifest.json"
TOKENIZER_FILE: Final = "tokenizer.json"
WEIGHTS_FILE: Final = "model.safetensors"
GOLDEN_FILE: Final = "golden/pairs.jsonl"

_T = TypeVar("_T", "FileEntry", ImageProfile, TextArchitecture, VisionArchitecture)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a bundle."""

    sha256: str
    bytes: int
    licence: str


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """A pair of graphs over the bundle's weights; `vision` is None for a text-only model."""

    dialect: Dialect
    precision: Precision
    text: str
    vision: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle holds.

    Attributes:
        name: The model's, by which requests may ask for it.
        prompt: What the prompt path must know.
        architecture: The model's dimensions.
        graphs: The graphs to choose from.
        files: Every file but the manifest, by its path inside the bundle.
        source: Digest of the full-precision bundle that this one was derived from; None if it is one itself.
    """

    name: str
    prompt: PromptProfile
    architecture: Architecture
    graphs: tuple[GraphEntry, ...]
    files: Mapping[str, FileEntry]
    source: str | None = None

    def to_json(self) -> str:
        """The manifest's text, the same for the same bundle."""
        value = {
            "format": FORMAT,
            "name": self.name,
            # Left out where there is none, so that such a bundle has the digest that it always had.
            **({} if self.source is None else {"source": self.source}),
            "prompt": {**dataclasses.asdict(self.prompt), "family": self.prompt.family.value},
            "architecture": dataclasses.asdict(self.architecture),
            "graphs": [
                {**dataclasses.asdict(g), "dialect": g.dialect.value, "precision": g.precision.value}
                for g in self.graphs
            ],
            "files": {path: dataclasses.asdict(entry) for path, entry in sorted(self.files.items())},
        }
        return seal(value)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads a manifest's text.

        Raises:
            NewerBundleError: If it is of a later format.
            BundleError: If it is malformed or of another format.
        """
        try:
            value = unseal(text, FORMAT)
        except FormatError as error:
            if error.newer:
                raise NewerBundleError(str(error), item=MANIFEST_FILE) from error
            raise BundleError(f"{error}: export it again", item=MANIFEST_FILE) from error
        except ValueError as error:
            raise BundleError(str(error), item=MANIFEST_FILE) from error
        try:
            manifest = cls(
                name=str(value["name"]),
                prompt=_prompt(value["prompt"]),
                architecture=_architecture(value["architecture"]),
                graphs=tuple(
                    GraphEntry(Dialect(g["dialect"]), Precision(g["precision"]), g["text"], g["vision"])
                    for g in value["graphs"]
                ),
                files={_inside(path): _typed(FileEntry, entry, least=0) for path, entry in value["files"].items()},
                source=_source(value),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(f"is malformed: {type(error).__name__}: {error}", item=MANIFEST_FILE) from error
        # What is used must be what was verified.
        graphs = [name for graph in manifest.graphs for name in (graph.text, graph.vision) if name is not None]
        for name in (TOKENIZER_FILE, WEIGHTS_FILE, *graphs):
            if name not in manifest.files:
                raise BundleError("is used, but is not among the files", item=f"{MANIFEST_FILE}: {name}")
        return manifest


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose manifest has been read.

    Attributes:
        folder: Where it lies.
        manifest: What it says.
        digest: SHA-256 of the manifest, in hexadecimal: the bundle's identity.
    """

    folder: Path
    manifest: Manifest
    digest: str

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """Reads a bundle's manifest; `verify` checks the files.

        Raises:
            BundleError: If there is none, or it is malformed.
        """
        path = folder / MANIFEST_FILE
        try:
            text = path.read_bytes()
        except OSError as error:
            raise BundleError(f"cannot be read: {error.strerror}", item=str(path)) from error
        return cls(folder, Manifest.from_json(text.decode("utf-8", "replace")), hashlib.sha256(text).hexdigest())

    def verify(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Compares every file with the manifest.

        Args:
            report: Told which file is being read.

        Raises:
            BundleError: If a file is missing or altered; the item names it.
        """
        for name in self.manifest.files:
            report(f"verifying {name}")
            self.verify_file(name)

    def verify_file(self, name: str, progress: Callable[[int], None] = lambda _: None) -> None:
        """Compares one file with the manifest.

        Args:
            name: A file that the manifest names.
            progress: Told the bytes of each piece that was read.

        Raises:
            BundleError: If it is missing or altered; the item names it.
        """
        entry, path = self.manifest.files[name], self.folder / name
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                raise BundleError(f"has {size} bytes, not {entry.bytes}", item=str(path))
            digest = hash_file(path, progress)
        except OSError as error:
            raise BundleError(f"cannot be read: {error.strerror}", item=str(path)) from error
        if digest != entry.sha256:
            raise BundleError("does not have the contents that the manifest names", item=str(path))

    def graph(self, dialect: Dialect, precision: Precision) -> GraphEntry:
        """Finds a pair of graphs.

        Raises:
            BundleError: If the bundle has none such.
        """
        for graph in self.manifest.graphs:
            if (graph.dialect, graph.precision) == (dialect, precision):
                return graph
        raise BundleError(f"has no {dialect.value} graph in {precision.value}", item=str(self.folder))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest of a bundle that is complete otherwise; it appears whole or not at all."""
    replace_file(folder / MANIFEST_FILE, manifest.to_json().encode())


def hash_file(path: Path, progress: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a file, in hexadecimal, read in pieces, whose bytes `progress` is told."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def _source(value: dict[str, Any]) -> str | None:
    source = value.get("source")
    if source is not None and not re.fullmatch(r"[0-9a-f]{64}", source):
        raise ValueError("source is no SHA-256 in hexadecimal")
    return source


def _inside(path: str) -> str:
    """Refuses a path that leads out of the bundle."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise BundleError("leads out of the bundle", item=f"{MANIFEST_FILE}: files: {path}")
    return path


def _prompt(value: dict[str, Any]) -> PromptProfile:
    image = value["image"]
    return PromptProfile(
        family=PromptFamily(value["family"]),
        max_tokens=int(value["max_tokens"]),
        default_instruction=str(value["default_instruction"]),
        image=None if image is None else _typed(ImageProfile, image),
    )


def _architecture(value: dict[str, Any]) -> Architecture:
    text, vision = value["text"], value["vision"]
    section = text["mrope_section"]
    return Architecture(
        _typed(TextArchitecture, {**text, "mrope_section": None if section is None else tuple(section)}),
        None
        if vision is None
        else _typed(VisionArchitecture, {**vision, "deepstack_layers": tuple(vision["deepstack_layers"])}),
    )


def _typed(kind: type[_T], value: dict[str, Any], *, least: int = 1) -> _T:
    """Makes a dataclass whose fields have their types, and whole numbers that are not less than `least`."""
    made = kind(**value)
    for field in dataclasses.fields(made):
        found = getattr(made, field.name)
        fits = {
            "bool": isinstance(found, bool),
            "float": type(found) in (int, float) and 0 < found < math.inf,
            "int": type(found) is int and found >= least,
            "str": isinstance(found, str),
        }.get(str(field.type), not isinstance(found, tuple) or all(type(one) is int and one >= 0 for one in found))
        if not fits:
            raise ValueError(f"{field.name} cannot be {found!r}")
    return made
