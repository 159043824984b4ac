"""Writes an INT8 bundle from a full-precision one by a plan: weights, graphs, golden pairs, plan and manifest."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from orin_rerank.durable import replace_file
from orin_rerank.engines.bundle import GOLDEN_FILE, WEIGHTS_FILE, Bundle, FileEntry, Manifest, hash_file, write_manifest
from orin_rerank.graph.places import model_places
from orin_rerank.lifecycle.judging import REFERENCE_FILE
from orin_rerank.quantization.gate import GATE_FILE, GateRecord
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE
from orin_rerank.quantization.write import write_graphs, write_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from orin_rerank.engines.bundle import GraphEntry
    from orin_rerank.graph.checkpoint import Checkpoint
    from orin_rerank.quantization.plan import QuantizationPlan

__all__ = ["COVERAGE_FILE", "DerivedBundle"]

COVERAGE_FILE: Final = "quantization/coverage.json"
_OWN_LICENCE: Final = "Apache-2.0"


class DerivedBundle:
    """An INT8 bundle while it is being written.

    Args:
        source: The full-precision bundle.
        folder: Where to write; exists.
    """

    def __init__(self, source: Bundle, folder: Path) -> None:
        self.source = source
        self.folder = folder
        self._graphs: list[GraphEntry] = []
        self._golden: list[str] = []
        self._hashed: dict[str, FileEntry] = {}

    def write_model(
        self,
        checkpoint: Checkpoint,
        plan: QuantizationPlan,
        scales: Mapping[str, npt.NDArray[np.float32]],
        steps: Mapping[str, npt.NDArray[np.float32]],
        progress: Callable[[int, int], None],
    ) -> Bundle:
        """Writes weights and graphs, in place of what an earlier plan gave; the bundle then runs, but is not whole.

        Args:
            checkpoint: The source's weights.
            plan: What is INT8.
            scales: The smoothing of every place.
            steps: What `rounding.weight_steps` gives for some of the weights so smoothed.
            progress: Called with bytes of weights written and bytes in all.

        Raises:
            CheckpointError: If a weight is not finite; the item names its tensor.
        """
        architecture = self.source.manifest.architecture
        scheme = plan.scheme(scales)
        self._hashed.clear()
        self._golden = []
        smoothed = {w for p in model_places(architecture) if p.name in scheme.smoothing for w in p.weights}
        known = {name: step for name, step in steps.items() if name in smoothed}
        weights = write_weights(checkpoint, architecture, scheme, self.folder, steps=known, progress=progress)
        self._graphs = write_graphs(self.folder, architecture, weights, scheme)
        for name in self._copied():
            shutil.copyfile(self.source.folder / name, self.folder / name)
        replace_file(self._made(PLAN_FILE), plan.to_json().encode())
        return self.seal()

    def add_golden(self, names: list[str]) -> Bundle:
        """Takes in the files that `self_test.record_golden_pairs` wrote."""
        self._golden = names
        return self.seal()

    def write_text(self, name: str, text: str) -> None:
        """Writes a file of `quantization/`."""
        replace_file(self._made(name), text.encode())

    def seal(self) -> Bundle:
        """Writes the manifest over what is there."""
        entries = self.source.manifest.files
        weights = entries[WEIGHTS_FILE].licence
        names = [WEIGHTS_FILE, *(name for g in self._graphs for name in (g.text, g.vision) if name is not None)]
        licences = dict.fromkeys(names, weights)
        licences |= {name: entries[name].licence for name in (*self._copied(), *self._golden)}
        own = (PLAN_FILE, SMOOTHING_FILE, COVERAGE_FILE, REFERENCE_FILE, GATE_FILE)
        licences |= dict.fromkeys((name for name in own if (self.folder / name).exists()), _OWN_LICENCE)
        files = {name: self._entry(name, licence) for name, licence in licences.items()}
        manifest = self.source.manifest
        write_manifest(
            self.folder,
            Manifest(
                name=manifest.name,
                prompt=manifest.prompt,
                architecture=manifest.architecture,
                graphs=tuple(self._graphs),
                files=files,
                source=self.source.digest,
            ),
        )
        return Bundle.open(self.folder)

    def add_gate(self, record: GateRecord) -> Bundle:
        """Writes the gate's record, which makes the bundle one that may be served if it passed."""
        self.write_text(GATE_FILE, record.to_json())
        return self.seal()

    def _copied(self) -> list[str]:
        """What the source has besides weights, graphs and golden pairs: tokenizer, configuration, licences."""
        manifest = self.source.manifest
        graphs = {name for g in manifest.graphs for name in (g.text, g.vision) if name is not None}
        golden = PurePosixPath(GOLDEN_FILE).parent
        return [
            name
            for name in manifest.files
            if name != WEIGHTS_FILE and name not in graphs and golden not in PurePosixPath(name).parents
        ]

    def _entry(self, name: str, licence: str) -> FileEntry:
        if name not in self._hashed:  # each file is written once a plan, and the weights may be many GB
            path = self.folder / name
            self._hashed[name] = FileEntry(hash_file(path), path.stat().st_size, licence)
        return self._hashed[name]

    def _made(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
