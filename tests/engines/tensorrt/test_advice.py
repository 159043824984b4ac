"""Every error of a build says what to do about it: each kind, each place that raises one, and what messages tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import orin_rerank
from engines.tensorrt.test_builder import FAKE, MIB, job_of
from orin_rerank.engines.tensorrt.builder import BuildLimits, PlanBuilder
from orin_rerank.engines.tensorrt.symptoms import advice_on, lacks_memory
from orin_rerank.errors import (
    BuildCancelledError,
    BuildError,
    BuildOutOfMemoryError,
    BuildTimeoutError,
    GraphRefusedError,
)

PACKAGE = Path(orin_rerank.__file__).parent


def family(kind: type[BuildError] = BuildError) -> Iterator[type[BuildError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from family(below)


@pytest.mark.parametrize("kind", list(family()), ids=lambda kind: kind.__name__)
def test_every_kind_says_what_helps_as_a_rule_or_here(kind: type[BuildError]) -> None:
    assert kind("it failed").advice == kind.usual_advice
    assert len(kind.usual_advice) > 20
    error = kind("it failed", item="text.onnx", advice="do this")
    assert (str(error), error.advice) == ("text.onnx: it failed", "do this")


def test_kinds_need_different_things() -> None:
    kinds = list(family())
    assert {BuildOutOfMemoryError, BuildTimeoutError, BuildCancelledError, GraphRefusedError} <= set(kinds)
    assert len({kind.usual_advice for kind in kinds}) == len(kinds)


def test_whoever_raises_the_plain_kind_knows_what_to_do() -> None:
    """What helps as a rule is little where nothing is known but that it failed."""
    raised = [
        (f"{path.name}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BuildError"
    ]
    assert len(raised) >= 5
    assert [where for where, given in raised if "advice" not in given] == []


@pytest.mark.parametrize(
    ("fate", "kind", "advice"),
    [
        ("killed", BuildOutOfMemoryError, "add swap"),
        ("nvmap", BuildOutOfMemoryError, "--max-tokens"),
        ("cuda", BuildOutOfMemoryError, "a restart frees what the GPU's allocator keeps back"),
        ("refused", GraphRefusedError, "`orin-rerank export` writes a bundle's graphs anew"),
        ("no-kernel", BuildError, "--workspace"),
        ("segfault", BuildError, "remove the files of measured kernels"),
        ("says-nothing", BuildError, "report this line"),
        ("hangs-at-the-end", BuildError, "it goes on from what is compiled"),
        ("silent", BuildTimeoutError, "a lower --level takes less time"),
    ],
)
def test_every_end_of_a_build_says_what_to_do(tmp_path: Path, fate: str, kind: type[BuildError], advice: str) -> None:
    builder = PlanBuilder(BuildLimits(silence_s=0.5, grace_s=0.5), FAKE)
    with pytest.raises(kind) as caught:
        builder.build(job_of(fate, tmp_path, 64 * MIB))
    assert type(caught.value) is kind
    assert advice in caught.value.advice


def test_what_the_compiler_advises_travels_from_its_process(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        PlanBuilder(BuildLimits(), FAKE).build(job_of("no-room", tmp_path))
    assert (str(caught.value), caught.value.advice) == ("text.plan: the plan cannot be written", "make room")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "Error Code 10: Internal Error (Could not find any implementation for node {ForeignNode[a...b]}.)",
            "--level 5",
        ),
        ("CUDA initialization failure with error: 35. CUDA driver version is insufficient for CUDA runtime", "JetPack"),
        (
            "[globWriter.cpp::makeResizableGpuMemory::433] Error Code 1: Cuda Runtime (no kernel image is available)",
            "driver",
        ),
        ("Unable to load library: libnvinfer_builder_resource.so.10.3.0: cannot open shared object file", "libnvinfer"),
        ("No space left on device", "make room"),
        ("Permission denied", "ORIN_RERANK_STATE"),
        ("Error Code 1: Cuda Runtime (an illegal memory access was encountered)", "restart the board"),
    ],
)
def test_messages_tell_what_to_do(text: str, advice: str) -> None:
    found = advice_on(text)
    assert found is not None
    assert advice in found
    assert not lacks_memory(text)


def test_of_most_messages_nothing_is_known() -> None:
    assert advice_on("Error Code 2: Internal Error (Assertion x failed.)") is None
