"""Plans of bundles that are gone are removed, and none that may be wanted again."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engines.test_plan_store import KEY, NAMES
from lifecycle.int8_bundles import add_gate, write_int8_bundle
from orin_rerank.engines.bundle import Bundle, write_manifest
from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.store import EngineStore
from orin_rerank.lifecycle.plan_cleaning import remove_stale_plans
from orin_rerank.prompt.content import RerankInput, TextPart

if TYPE_CHECKING:
    from collections.abc import Collection

WORDS = [TextPart("red fire engine")]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A store of plans and one of engines."""

    state: Path

    @property
    def plans(self) -> PlanStore:
        return PlanStore(self.state)

    @property
    def engines(self) -> EngineStore:
        return EngineStore(self.state)

    def compile(self, bundle: Bundle, origin: Path | None = None) -> None:
        key = dataclasses.replace(KEY, bundle=bundle.digest)
        with self.plans.staging(key, NAMES, origin or bundle.folder) as staged:
            for name in NAMES:
                staged.path(name).write_bytes(b"a plan")
                staged.add(name, 1.0)
            staged.install()

    def calibrate(self, bundle: Bundle, noise: float) -> Bundle:
        """Installs an INT8 engine, each noise another one."""
        with self.engines.staging(bundle.digest) as staged:
            add_gate(write_int8_bundle(bundle, staged, [RerankInput(WORDS, [WORDS])]), noise)
            return Bundle.open(self.engines.install(bundle.digest, staged))

    def clean(self, keep: Collection[str] = (), *, missing: bool = False) -> dict[str, str]:
        removed = remove_stale_plans(self.plans, self.engines, keep=keep, missing=missing)
        assert {one.bytes for one in removed} <= {12}
        return {one.bundle: one.reason for one in removed}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


@pytest.fixture
def bundle(bundle_folder: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(Path(shutil.copytree(bundle_folder, tmp_path / "bundle")))


def renamed(bundle: Bundle, name: str) -> Bundle:
    """Another bundle in the same folder, as an export makes it."""
    write_manifest(bundle.folder, dataclasses.replace(bundle.manifest, name=name))
    return Bundle.open(bundle.folder)


def test_nothing_is_removed_where_nothing_is(machine: Machine) -> None:
    assert machine.clean(missing=True) == {}
    assert not machine.state.exists()


def test_engines_that_were_replaced_twice_take_their_plans_along(machine: Machine, bundle: Bundle) -> None:
    """Each calibration makes another INT8 bundle; the one before is kept, and so are its plans."""
    machine.compile(bundle)
    made = []
    for noise in (0.01, 0.02, 0.03):
        made.append(machine.calibrate(bundle, noise))
        machine.compile(made[-1])
        expected = {made[0].digest: "the INT8 engine was replaced"} if len(made) == 3 else {}
        assert machine.clean([bundle.digest]) == expected
    assert machine.plans.bundles().keys() == {bundle.digest, made[1].digest, made[2].digest}


def test_a_bundle_where_another_lies_now_is_gone(machine: Machine, bundle: Bundle) -> None:
    machine.compile(bundle)
    assert machine.clean() == {}, "it is where it was, though nobody names it"
    after = renamed(bundle, "after")
    machine.compile(after)
    assert machine.clean([after.digest]) == {bundle.digest: f"another bundle lies in {bundle.folder}"}
    assert machine.plans.bundles() == {after.digest: bundle.folder}


def test_what_may_come_back_goes_only_when_asked_for(machine: Machine, bundle: Bundle, tmp_path: Path) -> None:
    machine.compile(bundle, tmp_path / "unplugged")
    assert machine.clean() == {}
    assert machine.clean([bundle.digest], missing=True) == {}, "it is here, and was only moved"
    reason = f"there is no bundle in {tmp_path / 'unplugged'}"
    assert machine.clean(missing=True) == {bundle.digest: reason}
    assert machine.plans.bundles() == {}


def test_where_a_bundle_lay_that_was_never_noted_is_not_known(machine: Machine, bundle: Bundle) -> None:
    machine.compile(bundle)
    (machine.state / "plans" / bundle.digest / ".bundle").unlink()
    assert machine.clean() == {}
    assert machine.clean(missing=True) == {bundle.digest: "it is not known where the bundle lay"}


def test_an_engine_that_is_damaged_but_there_keeps_its_plans(machine: Machine, bundle: Bundle) -> None:
    int8 = machine.calibrate(bundle, 0.01)
    machine.compile(int8)
    (int8.folder / "manifest.json").write_text("{")
    assert machine.clean() == {}


def test_what_is_being_compiled_stays(machine: Machine, bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    key = dataclasses.replace(KEY, bundle=bundle.digest)
    with machine.plans.staging(key, NAMES, bundle.folder):
        renamed(bundle, "after")
        with caplog.at_level(logging.WARNING):
            assert machine.clean() == {}
        assert [record.message for record in caplog.records] == ["plans of a bundle that is gone stay"]
    (begun,) = remove_stale_plans(machine.plans, machine.engines)
    assert (begun.bundle, begun.bytes) == (bundle.digest, 0), "what was begun and never finished goes too"
    assert str(begun) == f"removed plans of {bundle.digest[:12]}, 0.0 MB: another bundle lies in {bundle.folder}"
