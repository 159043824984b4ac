"""The real bindings, where they are installed: without a GPU they run nothing, but say why as is expected of them."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest

from orin_rerank.engines.tensorrt.bindings import installed_bindings
from orin_rerank.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(installed_bindings() is None, reason="no TensorRT bindings are installed")


def test_what_is_no_plan_is_refused_as_one(tmp_path: Path) -> None:
    """Deserialised from a mapping, as the real ones are; TensorRT finds the header wrong before it needs a GPU."""
    from orin_rerank.engines.tensorrt.installed import installed_runtime

    runtime = installed_runtime()
    assert runtime is installed_runtime()
    path = tmp_path / "bad.plan"
    path.write_bytes(b"no plan at all, but long enough to hold a header" * 64)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        with pytest.raises(PlanError, match="magicTag") as caught:
            runtime.load(mapping, path.name)
        assert caught.value.item == "bad.plan"
    assert runtime.journal.errors() == [], "they went into the error"


def test_an_enumeration_has_what_contexts_are_made_with() -> None:
    from orin_rerank.engines.tensorrt.installed import installed_runtime

    assert installed_runtime().strategy.USER_MANAGED.name == "USER_MANAGED"
