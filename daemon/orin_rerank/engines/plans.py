"""Compiled engines ("plans") as files, with everything that they depend on.

A plan fits one machine as it is set up now: it bakes in the GPU, the TensorRT that compiled it and the libraries
beneath. TensorRT refuses some of what does not fit and runs the rest to wrong or slow results, so everything that a
plan depends on is in its key, and one of another key is never loaded. Nor is one that is not what the compiler wrote:
a truncated or altered plan is found before TensorRT sees it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import mmap
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import replace_file
from orin_rerank.engines.bundle import hash_file
from orin_rerank.engines.sealed import seal, unseal
from orin_rerank.errors import PlanError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["MANIFEST_FILE", "PlanEntry", "PlanKey", "PlanManifest", "PlanSet", "checked_name"]

FORMAT: Final = 1
MANIFEST_FILE: Final = "manifest.json"
_PLAN_FILE: Final = re.compile(r"[a-z0-9][a-z0-9._-]*\.plan")


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that a plan depends on.

    Attributes:
        bundle: Digest of the bundle whose graphs and weights were compiled: an INT8 bundle has one of its own.
        runtime: The compiler and its version, such as `tensorrt 10.3.0`.
        gpu: Name of the GPU as CUDA gives it, such as `Orin`.
        compute_capability: Such as `8.7`.
        multiprocessors: Of the GPU. Those of an AGX Orin, an Orin NX and a Nano have one name and one compute
            capability, and a disk that is cloned from one to another brings along plans that were made for the first.
        platform: Release of what lies beneath CUDA: `L4T 36.4.7` on a Jetson, the driver's version elsewhere.
        precision: What the graphs compute in, such as `int8-fp16`.
        precision_plan: SHA-256 of the plan by which places are INT8 or wide; None for graphs in one precision.
        profiles: SHA-256 of the optimisation profiles.
    """

    bundle: str
    runtime: str
    gpu: str
    compute_capability: str
    multiprocessors: int
    platform: str
    precision: str
    precision_plan: str | None
    profiles: str

    @property
    def digest(self) -> str:
        """SHA-256 of the key, in hexadecimal."""
        return hashlib.sha256(seal(dataclasses.asdict(self)).encode()).hexdigest()

    def differences(self, other: PlanKey) -> list[str]:
        """What differs in another key, for people: `runtime: tensorrt 10.3.0, not tensorrt 10.16.2`."""
        names = [
            field.name for field in dataclasses.fields(self) if getattr(self, field.name) != getattr(other, field.name)
        ]
        return [f"{name}: {getattr(other, name)}, not {getattr(self, name)}" for name in names]


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One compiled graph.

    Attributes:
        sha256: Of the file, in hexadecimal.
        bytes: Its size.
        build_s: How long compiling it took, in seconds.
    """

    sha256: str
    bytes: int
    build_s: float


@dataclass(frozen=True, slots=True)
class PlanManifest:
    """What a set of plans holds.

    Attributes:
        key: What the plans depend on.
        plans: By file name.
    """

    key: PlanKey
    plans: Mapping[str, PlanEntry]

    def to_json(self) -> str:
        """The manifest's text, the same for the same set."""
        plans = {name: dataclasses.asdict(entry) for name, entry in sorted(self.plans.items())}
        return seal({"format": FORMAT, "key": dataclasses.asdict(self.key), "plans": plans})

    @classmethod
    def read(cls, folder: Path) -> PlanManifest:
        """Reads the manifest in a folder.

        Raises:
            PlanError: If it is missing, damaged or of another format.
        """
        path = folder / MANIFEST_FILE
        try:
            value = unseal(path.read_text(encoding="utf-8", errors="replace"), FORMAT)
        except OSError as error:
            raise PlanError(f"cannot be read: {error.strerror}", item=str(path)) from error
        except ValueError as error:
            raise PlanError(str(error), item=str(path)) from error
        try:
            plans = {checked_name(name): PlanEntry(**entry) for name, entry in value["plans"].items()}
            return cls(PlanKey(**value["key"]), plans)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"is malformed: {type(error).__name__}: {error}", item=str(path)) from error


@dataclass(frozen=True, slots=True)
class PlanSet:
    """Plans of one key. Their bytes are verified when they are opened.

    Attributes:
        folder: Where they lie.
        manifest: What it says.
    """

    folder: Path
    manifest: PlanManifest

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[mmap.mmap]:
        """Compares a plan with the manifest, then lends it as a mapping of the file.

        A mapping and not a copy: on a Jetson the plan and what TensorRT makes of it share one RAM, and pages of a file
        are dropped where memory is short; at the end of the context all are. The comparison reads the file instead,
        since a disk that fails is an error to a read and the end of the process to a mapping.

        Args:
            name: Such as `text.plan`.

        Raises:
            PlanError: If the plan is missing, truncated or altered.
        """
        path = self.folder / name
        with contextlib.ExitStack() as held:
            try:
                self.verify(name)
                file = held.enter_context(path.open("rb"))
                held.callback(os.posix_fadvise, file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                mapping = held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError) as error:  # mmap calls it a wrong value if the file has become empty
                raise PlanError(f"cannot be read: {error}", item=str(path)) from error
            yield mapping

    def verify(self, name: str) -> None:
        """Compares a plan with the manifest.

        Raises:
            PlanError: If it is missing, truncated or altered.
        """
        path = self.folder / name
        entry = self.manifest.plans.get(name)
        if entry is None:
            raise PlanError("is not in the manifest", item=str(path))
        try:
            size = path.stat().st_size
            digest = hash_file(path) if size == entry.bytes else ""
        except OSError as error:
            raise PlanError(f"cannot be read: {error.strerror}", item=str(path)) from error
        if size != entry.bytes:
            raise PlanError(f"has {size} bytes, not {entry.bytes}", item=str(path))
        if digest != entry.sha256:
            raise PlanError("does not have the contents that the manifest names", item=str(path))

    def attach(self, name: str, text: str) -> None:
        """Writes a record beside the plans, whole or not at all.

        Args:
            name: Of the file, such as `gate.json`; replaced if it is there.
            text: Its contents.

        Raises:
            StoreError: If it cannot be written.
        """
        path = self.folder / name
        try:
            replace_file(path, text.encode())
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", item=str(path)) from error

    @property
    def bytes(self) -> int:
        """Bytes of all plans."""
        return sum(entry.bytes for entry in self.manifest.plans.values())


def checked_name(name: str) -> str:
    """Returns the file name of a plan.

    Raises:
        ValueError: If it is none, or leads elsewhere.
    """
    if not _PLAN_FILE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a plan")
    return name
