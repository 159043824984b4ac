"""One code for TensorRT 10.3 to 11.4: everything that it uses is in typings/, and every release has all of that."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines.tensorrt.make_binding_names import STUBS, functions_used, signatures_in
from orin_rerank.engines.tensorrt import bindings
from orin_rerank.engines.tensorrt.bindings import installed_bindings

HERE = Path(__file__).parent
NAMES = json.loads((HERE / "binding_names.json").read_text())


def used_names() -> list[str]:
    """Classes of the stubs and their members, such as `ILogger.Severity.ERROR`."""

    def names(body: list[ast.stmt], prefix: str) -> list[str]:
        found: list[str] = []
        for node in body:
            if isinstance(node, ast.ClassDef):
                found += [prefix + node.name, *names(node.body, f"{prefix}{node.name}.")]
            elif isinstance(node, ast.FunctionDef):
                found.append(prefix + node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.append(prefix + node.target.id)
        return found

    return [
        name for name in names(ast.parse(STUBS.read_text()).body, "") if not name.rpartition(".")[2].startswith("_")
    ]


def test_the_stubs_name_what_is_used() -> None:
    used = used_names()
    assert len(used) > 80
    assert {"Builder.build_serialized_network", "ILogger.Severity.ERROR", "IExecutionContext.execute_async_v3"} <= {
        *used
    }


@pytest.mark.parametrize("release", NAMES["releases"])
def test_every_release_has_all_that_is_used(release: str) -> None:
    number = NAMES["releases"].index(release)
    there = {*NAMES["everywhere"], *(name for name, marks in NAMES["somewhere"].items() if marks[number] == "x")}
    assert len(there) > 2000
    assert [name for name in used_names() if name not in there] == []


def takes(overload: list[str], given: list[str]) -> bool:
    """Whether a function can be called as the stubs say: by place or by name, without what has a default there."""
    return (
        [name.rstrip("=") for name in overload[: len(given)]] == [name.rstrip("=") for name in given]
        and all(name.endswith("=") for name in overload[len(given) :])
        and all(there.endswith("=") for there, name in zip(overload, given, strict=False) if name.endswith("="))
    )


@pytest.mark.parametrize("release", NAMES["releases"])
def test_every_release_is_called_as_the_stubs_say(release: str) -> None:
    number = NAMES["releases"].index(release)
    used = functions_used()
    assert len(used) > 40
    for name, given in used.items():
        there = [overload.split() for overload, marks in NAMES["signatures"][name].items() if marks[number] == "x"]
        assert any(takes(overload, given) for overload in there), (name, there)


@pytest.mark.parametrize(
    ("overload", "given", "taken"),
    [
        ("network config", "network config", True),
        ("config network", "network config", False),
        ("memory", "memory size", False),
        ("network config kernel_text", "network config", False),
        ("network config kernel_text=", "network config", True),
        ("strategy=", "strategy", True),
        ("model path", "model path=", False),
    ],
)
def test_what_counts_as_another_signature(overload: str, given: str, *, taken: bool) -> None:
    assert takes(overload.split(), given.split()) == taken


def test_signatures_are_read_from_docstrings() -> None:
    doc = """f(*args, **kwargs)
Overloaded function.

1. f(self: t.Engine, sizes: tuple[int, dict[str, int]], kind: t.Kind = <Kind.A: 0>) -> list[str]

    Says f(self: nothing).

2. f(self: t.Engine) -> None
"""
    assert signatures_in("Engine.f", doc) == [["sizes", "kind="], []]


@pytest.mark.parametrize(
    ("name", "first_without"), [("BuilderFlag.INT8", "11.0.0.114"), ("IInt8Calibrator", "11.0.0.114")]
)
def test_the_data_shows_what_was_removed(name: str, first_without: str) -> None:
    marks = NAMES["somewhere"][name]
    assert marks.index("-") == NAMES["releases"].index(first_without)


def test_tensorrt_rtx_has_all_that_is_used() -> None:
    rtx = pytest.importorskip("tensorrt_rtx", reason="the tensorrt-rtx wheels are not installed", exc_type=ImportError)
    absent = object()
    lacking = [
        name
        for name in used_names()
        if functools.reduce(lambda owner, part: getattr(owner, part, absent), name.split("."), rtx) is absent
    ]
    assert lacking == []
    for name, given in functions_used().items():
        doc = functools.reduce(getattr, name.split("."), rtx).__doc__
        assert any(takes(overload, given) for overload in signatures_in(name, doc)), (name, doc)


def test_stubs_alone_are_no_bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "__init__.pyi").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert installed_bindings() != "tensorrt"


def test_tensorrt_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in bindings.MODULES:
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert installed_bindings() == "tensorrt"


def test_bindings_without_their_libraries_are_an_error_with_a_name(tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.10: cannot open shared object file')")
    code = "import orin_rerank.engines.tensorrt.api"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert "TensorRtMissingError: tensorrt: cannot be imported: libnvinfer.so.10" in ended.stderr
