"""Checks a bundle from end to end, and says everything that is wrong with it rather than the first thing.

The loader (`lifecycle.startup`) compares a bundle's files with its manifest and runs it. This also looks into files
that are what the manifest names, for a bundle that was put together wrongly. What a check needs and another found
damaged, it leaves alone: one fault is told once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orin_rerank.engines.bundle import FORMAT, GOLDEN_FILE, MANIFEST_FILE, TOKENIZER_FILE, WEIGHTS_FILE, Bundle
from orin_rerank.engines.graph_check import graph_faults
from orin_rerank.engines.graph_files import graph_pair, model_weights
from orin_rerank.errors import BundleError, NewerBundleError, OrinRerankError
from orin_rerank.graph.safetensors_header import TensorEntry, read_header
from orin_rerank.graph.text import embedding_name
from orin_rerank.lifecycle.bundle_report import BundleReport, Check, CheckResult, Fault, State
from orin_rerank.lifecycle.bundle_trial import NoTrialError, run_golden_pairs
from orin_rerank.lifecycle.int8_check import int8_layout, read_plan, trusted
from orin_rerank.lifecycle.self_test import GoldenPair, read_golden_pairs
from orin_rerank.prompt.content import ImagePart, RerankInput
from orin_rerank.prompt.encoder import PromptEncoder
from orin_rerank.prompt.tokenizer import PromptTokenizer
from orin_rerank.quantization.gate import GATE_FILE
from orin_rerank.quantization.plan import PLAN_FILE, SMOOTHING_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from orin_rerank.graph.weights import WeightFile

    _Report: TypeAlias = Callable[[str, int, int], None]

__all__ = ["check_bundle"]


def check_bundle(
    folder: Path, *, run: bool = False, report: _Report = lambda _what, _done, _total: None
) -> BundleReport:
    """Checks a bundle, full-precision or INT8.

    Args:
        folder: Where it lies.
        run: Whether to score the golden pairs too, on the processor, which has to hold the weights.
        report: Told what is being read, and how many bytes of how many.
    """
    try:
        bundle = Bundle.open(folder)
    except BundleError as error:
        hint = ""
        if isinstance(error, NewerBundleError):
            hint = "a later orin-rerank wrote it: update this one, or export the checkpoint again with it"
        item = (error.item or MANIFEST_FILE).removeprefix(f"{folder}/")
        result = CheckResult(Check.MANIFEST, State.FAILED, "", (Fault(item, error.message, hint),))
        return BundleReport(folder, None, (result,), ())
    return BundleReport(folder, bundle, tuple(_Checker(bundle, report).results(run=run)), tuple(_notes(bundle)))


class _SkippedError(Exception):
    """A check that cannot be made; says why."""


class _Checker:
    """Makes one check after another, and remembers what later ones can rely on."""

    def __init__(self, bundle: Bundle, report: _Report) -> None:
        self._bundle = bundle
        self._manifest = bundle.manifest
        self._report = report
        self._faults: list[Fault] = []
        self._intact: set[str] = set()
        self._tensors: dict[str, TensorEntry] = {}
        self._encoder: PromptEncoder | None = None
        self._pairs: list[GoldenPair] = []

    def results(self, *, run: bool) -> Iterator[CheckResult]:
        """Yields what each check found."""
        yield self._result(Check.MANIFEST, self._check_manifest)
        yield self._result(Check.FILES, self._check_files)
        yield self._result(Check.WEIGHTS, self._check_weights)
        yield self._result(Check.GRAPHS, self._check_graphs)
        yield self._result(Check.TOKENIZER, self._check_tokenizer)
        yield self._result(Check.GOLDEN, self._check_golden)
        if self._manifest.source is not None:
            yield self._result(Check.INT8, self._check_int8)
        if run:
            yield self._result(Check.SELF_TEST, self._check_scores)

    def _result(self, check: Check, make: Callable[[], str]) -> CheckResult:
        """Makes a check, which adds faults and says what it saw."""
        self._faults, detail = [], ""
        try:
            detail = make()
        except _SkippedError as skipped:
            return CheckResult(check, State.SKIPPED, str(skipped))
        except OrinRerankError as error:
            self._refuse(error)
        if self._faults:
            return CheckResult(check, State.FAILED, "", tuple(self._faults))
        return CheckResult(check, State.PASSED, detail)

    def _add(self, item: str, problem: str) -> None:
        """Adds a fault."""
        self._faults.append(Fault(item, problem))

    def _refuse(self, error: OrinRerankError) -> None:
        """Adds an error, with its path as it is in the bundle."""
        self._add((error.item or str(self._bundle.folder)).removeprefix(f"{self._bundle.folder}/"), error.message)

    def _need(self, *names: str) -> None:
        """Skips a check that reads files which are damaged; the check of files has told so."""
        for name in names:
            if name in self._manifest.files and name not in self._intact:
                raise _SkippedError(f"not looked into: {name} is damaged")

    def _check_manifest(self) -> str:
        """It has been read; here it is held against itself."""
        prompt, vision = self._manifest.prompt.image, self._manifest.architecture.vision
        if prompt is not None and vision is not None:
            for name in ("patch_size", "temporal_patch_size", "merge_size", "position_grid", "head_dim", "rope_theta"):
                here, there = getattr(prompt, name), getattr(vision, name)
                if here != there:
                    self._add(f"{MANIFEST_FILE}: prompt.image.{name}", f"is {here}, and the architecture has {there}")
        elif prompt is not None or vision is not None:
            self._add(f"{MANIFEST_FILE}: prompt.image", "must be there if and only if the model takes images")
        if not self._manifest.graphs:
            self._add(f"{MANIFEST_FILE}: graphs", "is empty: there is nothing to run")
        elif any(graph.precision.quantized is (self._manifest.source is None) for graph in self._manifest.graphs):
            self._add(f"{MANIFEST_FILE}: source", "must be there if and only if the graphs are INT8")
        return f"format {FORMAT}, and its own SHA-256 is right"

    def _check_files(self) -> str:
        files = self._manifest.files
        total, before = sum(entry.bytes for entry in files.values()), 0
        for name, entry in files.items():
            read = before

            def progress(count: int, name: str = name) -> None:
                nonlocal read
                read += count
                self._report(name, read, total)

            try:
                self._bundle.verify_file(name, progress)
                self._intact.add(name)
            except BundleError as error:
                self._refuse(error)
            before += entry.bytes
        return f"{len(files)} with {total / 1e6:,.1f} MB, as the manifest names them"

    def _check_weights(self) -> str:
        self._need(WEIGHTS_FILE)
        self._tensors = read_header(self._bundle.folder / WEIGHTS_FILE)
        for spec in self._layout().specs:
            found = self._tensors.get(spec.name)
            wanted = f"{spec.dtype} {list(spec.shape)}"
            if found is None:
                self._add(f"{WEIGHTS_FILE}: {spec.name}", f"is missing; it should be {wanted}")
            elif (found.dtype, found.shape) != (spec.dtype, spec.shape):
                self._add(f"{WEIGHTS_FILE}: {spec.name}", f"is {found.dtype} {list(found.shape)}, not {wanted}")
        return f"{len(self._tensors)} tensors, as the architecture asks for them"

    def _layout(self) -> WeightFile:
        """How the weights must be laid out."""
        if self._manifest.source is not None:
            self._need(PLAN_FILE, SMOOTHING_FILE)
            return int8_layout(self._bundle, read_plan(self._bundle))
        embedding = self._tensors.get(embedding_name(vl=self._manifest.architecture.vision is not None))
        wide = embedding is not None and embedding.dtype == "F32"
        return model_weights(self._manifest.architecture, "F32" if wide else "F16")

    def _check_graphs(self) -> str:
        self._need(WEIGHTS_FILE)
        architecture = self._manifest.architecture
        layout = model_weights(architecture, "F16")  # inputs and outputs do not depend on it
        count = 0
        for entry in self._manifest.graphs:
            text, vision = graph_pair(architecture, layout, entry.dialect, entry.precision)
            if (entry.vision is None) != (vision is None):
                problem = "must have a vision graph beside it if and only if the model takes images"
                self._add(f"{MANIFEST_FILE}: graphs: {entry.text}", problem)
            for name, expected in ((entry.text, text), (entry.vision, vision)):
                if name is not None and expected is not None and name in self._intact:
                    count += 1
                    for problem in graph_faults(self._bundle.folder / name, expected, self._tensors):
                        self._add(name, problem)
        return f"{count} have the known inputs and outputs, and every weight where {WEIGHTS_FILE} has it"

    def _check_tokenizer(self) -> str:
        self._need(TOKENIZER_FILE)
        tokenizer = PromptTokenizer.from_file(self._bundle.folder / TOKENIZER_FILE)
        self._encoder = PromptEncoder(self._manifest.prompt, tokenizer)  # has every token that the prompts need
        rows = self._manifest.architecture.text.vocabulary
        if tokenizer.largest_id >= rows:
            self._add(TOKENIZER_FILE, f"has a token {tokenizer.largest_id}, and the embedding has {rows} rows")
        return f'every token of the prompts is there; "yes" is {tokenizer.yes_id}, "no" is {tokenizer.no_id}'

    def _check_golden(self) -> str:
        folder = GOLDEN_FILE.rpartition("/")[0]
        self._need(*(name for name in self._manifest.files if name.startswith(f"{folder}/")))
        pictures = 0
        for number, pair in enumerate(read_golden_pairs(self._bundle), start=1):
            self._pairs.append(pair)
            pictures += any(isinstance(part, ImagePart) for part in (*pair.query, *pair.document))
            place = f"{GOLDEN_FILE}:{number}"
            if not math.isfinite(pair.margin):
                self._add(place, f"its margin is {pair.margin}")
            try:
                if self._encoder is not None:
                    self._encoder.encode(RerankInput(pair.query, [pair.document], pair.instruction))
            except OrinRerankError as error:
                self._add(place, str(error))
        if not self._pairs:
            raise _SkippedError("there are none, so no start can tell whether it computes what the reference does")
        return f"{len(self._pairs)} can be read, {pictures} of them with pictures"

    def _check_int8(self) -> str:
        self._need(PLAN_FILE, SMOOTHING_FILE, GATE_FILE)
        read_plan(self._bundle)
        return f"made from bundle {(self._manifest.source or '')[:12]}; {trusted(self._bundle).reason}"

    def _check_scores(self) -> str:
        if self._encoder is None or not self._pairs:
            raise _SkippedError("there are no golden pairs that could be scored")
        self._need(*self._manifest.files)
        try:
            return run_golden_pairs(self._bundle, self._pairs)
        except NoTrialError as reason:
            raise _SkippedError(str(reason)) from None


def _notes(bundle: Bundle) -> Iterator[str]:
    """What is no fault, but good to know."""
    strangers: dict[str, int] = {}
    for path in sorted(bundle.folder.rglob("*")):
        name = path.relative_to(bundle.folder).as_posix()
        if path.is_file() and name not in bundle.manifest.files and name != MANIFEST_FILE:
            top, slash, _ = name.partition("/")
            strangers[top + slash] = strangers.get(top + slash, 0) + 1
    if strangers:
        listed = (name if count == 1 else f"{name} ({count} files)" for name, count in strangers.items())
        yield f"not part of the bundle, and never read: {', '.join(listed)}"
