"""Plans on disk: found by exactly their key, whole, and whatever is killed the old set or the new one is current."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orin_rerank.engines.plan_store import PlanStore
from orin_rerank.engines.plans import MANIFEST_FILE, PlanEntry, PlanKey, PlanManifest, PlanSet
from orin_rerank.engines.sealed import seal
from orin_rerank.errors import InternalError, PlanError, StoreBusyError, StoreError

NAMES = ("text.plan", "vision.plan")
KEY = PlanKey(
    bundle="5" * 64,
    runtime="tensorrt 10.3.0",
    gpu="Orin",
    compute_capability="8.7",
    multiprocessors=16,
    platform="L4T 36.4.7",
    precision="int8-fp16",
    precision_plan="6" * 64,
    profiles="7" * 64,
)
UPDATED = dataclasses.replace(KEY, runtime="tensorrt 10.16.2", platform="L4T 39.2.1")


def build(store: PlanStore, key: PlanKey, contents: str) -> PlanSet:
    """Makes what is not finished yet, as a builder would."""
    with store.staging(key, NAMES) as staged:
        for name in NAMES:
            if name not in staged.finished:
                staged.path(name).write_text(f"{contents} {name}")
                staged.add(name, 1.5)
        return staged.install()


def contents(plans: PlanSet | None, name: str = "text.plan") -> str:
    assert plans is not None
    with plans.open(name) as mapping:
        return bytes(mapping).decode()


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "state")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state" / "plans" / KEY.bundle / KEY.precision


def test_nothing_is_there_at_first(store: PlanStore, tmp_path: Path) -> None:
    assert store.find(KEY) is None
    assert store.stored() == []
    assert store.bundles() == {}
    store.forget(KEY.bundle)
    assert list(tmp_path.iterdir()) == []


def test_plans_are_found_by_their_key(store: PlanStore) -> None:
    built = build(store, KEY, "first")
    found = store.find(KEY)
    assert found == built
    assert contents(found) == "first text.plan"
    assert contents(found, "vision.plan") == "first vision.plan"
    assert found is not None
    assert found.bytes == len("first text.plan") + len("first vision.plan")
    assert found.manifest.plans["text.plan"].build_s == 1.5


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(PlanKey)])
def test_plans_of_another_key_are_not_found(store: PlanStore, field: str) -> None:
    build(store, KEY, "first")
    other = dataclasses.replace(KEY, **{field: "8" * 64})
    assert store.find(other) is None
    assert other.digest != KEY.digest
    assert KEY.differences(other) == [f"{field}: {'8' * 64}, not {getattr(KEY, field)}"]


def test_plans_under_a_link_to_another_key_are_not_found(store: PlanStore, place: Path) -> None:
    """As after somebody copied the folder of another machine here: the manifest speaks, not the place."""
    build(store, dataclasses.replace(KEY, bundle="9" * 64), "other")
    place.parent.parent.mkdir(parents=True, exist_ok=True)
    (place.parents[1] / ("9" * 64)).rename(place.parent)
    assert store.find(KEY) is None


def test_a_system_update_and_its_rollback_find_the_plans_that_fit(store: PlanStore) -> None:
    build(store, KEY, "before")
    assert store.find(UPDATED) is None
    build(store, UPDATED, "after")
    assert contents(store.find(UPDATED)) == "after text.plan"
    assert contents(store.find(KEY)) == "before text.plan"
    build(store, UPDATED, "again")
    build(store, UPDATED, "and again")
    assert contents(store.find(UPDATED)) == "and again text.plan"
    assert store.find(KEY) is None, "collected: neither current nor previous"


def test_precisions_do_not_displace_each_other(store: PlanStore) -> None:
    wide = dataclasses.replace(KEY, precision="fp16", precision_plan=None)
    for round_ in ("one", "two", "three"):
        build(store, wide, round_)
    build(store, KEY, "int8")
    assert contents(store.find(wide)) == "three text.plan"
    assert [(s.precision, s.current) for s in store.stored()] == [("fp16", True), ("fp16", False), ("int8-fp16", True)]


def test_what_is_read_survives_the_next_two_installs(store: PlanStore) -> None:
    build(store, KEY, "old")
    found = store.find(KEY)
    assert found is not None
    with found.open("text.plan") as mapping:
        build(store, KEY, "new")
        build(store, KEY, "newest")
        assert bytes(mapping) == b"old text.plan"
        assert not found.folder.exists()
    with pytest.raises(PlanError):
        contents(found)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "longer", "folder"])
def test_a_damaged_plan_is_found_before_it_is_lent(store: PlanStore, damage: str) -> None:
    plans = build(store, KEY, "whole")
    path = plans.folder / "text.plan"
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "truncated": whole[:-1], "longer": whole + b"\0"}[damage])
    with pytest.raises(PlanError) as caught, plans.open("text.plan"):
        pytest.fail("was lent")
    assert caught.value.item == str(path)
    assert contents(plans, "vision.plan") == "whole vision.plan"


def test_any_flipped_bit_of_a_plan_is_found(store: PlanStore) -> None:
    plans = build(store, KEY, "whole")
    path = plans.folder / "text.plan"
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(PlanError, match="does not have the contents"):
            contents(plans)


def test_any_damage_of_a_manifest_is_found(store: PlanStore) -> None:
    plans = build(store, KEY, "whole")
    path = plans.folder / MANIFEST_FILE
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(PlanError) as caught:
                store.find(KEY)
            assert caught.value.item == str(path)


@pytest.mark.parametrize(
    "change",
    [
        {"plans": {"../text.plan": {"sha256": "0" * 64, "bytes": 1, "build_s": 1.0}}},
        {"plans": {"text.plan": {"sha256": "0" * 64}}},
        {"plans": ["text.plan"]},
        {"key": {"bundle": "5" * 64}},
        {"format": 2},
    ],
)
def test_a_sealed_manifest_that_makes_no_sense_is_refused(store: PlanStore, change: dict[str, object]) -> None:
    plans = build(store, KEY, "whole")
    value = json.loads((plans.folder / MANIFEST_FILE).read_text())
    del value["sha256"]
    (plans.folder / MANIFEST_FILE).write_text(seal({**value, **change}))
    with pytest.raises(PlanError):
        store.find(KEY)


def test_a_damaged_current_set_does_not_hide_a_previous_one_that_fits(store: PlanStore) -> None:
    build(store, KEY, "before")
    after = build(store, UPDATED, "after")
    (after.folder / MANIFEST_FILE).write_text("{}")
    assert contents(store.find(KEY)) == "before text.plan"
    with pytest.raises(PlanError):
        store.find(UPDATED)
    current, previous = store.stored()
    assert current.plans is None
    assert current.problem is not None
    assert previous.plans is not None
    assert contents(build(store, UPDATED, "repaired")) == "repaired text.plan"
    assert contents(store.find(UPDATED)) == "repaired text.plan"


def test_a_plan_that_the_manifest_does_not_name_is_not_lent(store: PlanStore) -> None:
    plans = build(store, KEY, "whole")
    (plans.folder / "other.plan").write_text("other")
    with pytest.raises(PlanError, match="not in the manifest"):
        contents(plans, "other.plan")


def test_what_was_finished_is_not_built_again(store: PlanStore) -> None:
    with store.staging(KEY, NAMES) as staged:
        staged.path("text.plan").write_text("before text.plan")
        staged.add("text.plan", 600.0)
        staged.path("vision.plan").write_text("half")
    assert store.find(KEY) is None
    with store.staging(KEY, NAMES) as staged:
        assert staged.finished == {"text.plan": staged.finished["text.plan"]}
        assert staged.finished["text.plan"].build_s == 600.0
        assert not staged.path("vision.plan").exists(), "never recorded, so not known to be whole"
    assert contents(build(store, KEY, "now")) == "before text.plan"
    assert contents(store.find(KEY), "vision.plan") == "now vision.plan"


@pytest.mark.parametrize("damage", ["plan", "manifest", "other key"])
def test_nothing_damaged_or_of_another_key_is_gone_on_with(store: PlanStore, damage: str) -> None:
    with store.staging(KEY, NAMES) as staged:
        staged.path("text.plan").write_text("finished before")
        staged.add("text.plan", 600.0)
        manifest = staged.folder / MANIFEST_FILE
        if damage == "plan":
            staged.path("text.plan").write_text("finished Before")
        elif damage == "manifest":
            manifest.write_text("")
        else:
            manifest.write_text(PlanManifest(UPDATED, staged.finished).to_json())
    with store.staging(KEY, NAMES) as staged:
        assert staged.finished == {}
        assert list(staged.folder.iterdir()) == []


def test_an_attempt_at_another_key_clears_away_what_an_earlier_one_left(store: PlanStore, place: Path) -> None:
    with store.staging(KEY, NAMES) as staged:
        staged.path("text.plan").write_text("finished before")
        staged.add("text.plan", 600.0)
    build(store, UPDATED, "after")
    assert not list(place.glob(".staging-*"))


def test_only_a_complete_set_is_installed(store: PlanStore) -> None:
    with store.staging(KEY, NAMES) as staged:
        with pytest.raises(StoreError):
            staged.add("text.plan", 1.0)
        staged.path("text.plan").write_text("text")
        staged.add("text.plan", 1.0)
        with pytest.raises(InternalError, match=r"vision\.plan"):
            staged.install()
        with pytest.raises(InternalError):
            staged.path("other.plan")
    assert store.find(KEY) is None


def test_one_builds_at_a_time(store: PlanStore) -> None:
    with store.staging(KEY, NAMES), pytest.raises(StoreBusyError), store.staging(UPDATED, NAMES):
        pass


def test_where_a_bundle_lay_is_known_from_the_first_step_on(store: PlanStore, tmp_path: Path) -> None:
    with store.staging(KEY, NAMES, tmp_path / "first"):
        assert store.stored() == []
    assert store.bundles() == {KEY.bundle: tmp_path / "first"}
    build(store, KEY, "unknown")  # does not forget it
    assert store.bundles() == {KEY.bundle: tmp_path / "first"}
    with store.staging(UPDATED, NAMES, tmp_path / "m\udcfcved"):  # a name that is not UTF-8
        pass
    assert store.bundles() == {KEY.bundle: tmp_path / "m\udcfcved"}
    store.forget(KEY.bundle)
    assert store.bundles() == {}
    assert not (tmp_path / "state" / "plans" / KEY.bundle).exists()


def test_a_set_is_tried_before_it_is_installed_and_may_be_thrown_away(store: PlanStore, place: Path) -> None:
    first = build(store, KEY, "first")
    with store.staging(KEY, NAMES) as staged:
        for name in NAMES:
            staged.path(name).write_text(f"second {name}")
            staged.add(name, 1.5)
        tried = staged.complete()
        assert contents(tried) == "second text.plan"
        assert store.find(KEY) == first
        tried.attach("gate.json", "refused")
        staged.discard()
        assert list(staged.folder.iterdir()) == []
    with store.staging(KEY, NAMES) as staged:
        assert staged.finished == {}
    assert build(store, KEY, "third").folder == store.find(KEY).folder
    assert contents(store.find(KEY)) == "third text.plan"
    assert contents(PlanSet(place / "previous", first.manifest)) == "first text.plan"


def test_a_record_goes_with_the_set_into_service(store: PlanStore) -> None:
    with store.staging(KEY, NAMES) as staged:
        for name in NAMES:
            staged.path(name).write_text(name)
            staged.add(name, 1.5)
        staged.complete().attach("gate.json", "passed")
        installed = staged.install()
    assert (installed.folder / "gate.json").read_text() == "passed"
    installed.attach("gate.json", "again")
    assert (installed.folder / "gate.json").read_text() == "again"
    (installed.folder / "gate.json").unlink()
    (installed.folder / "gate.json").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        installed.attach("gate.json", "no")


def test_plans_of_bundles_that_are_gone_are_removed(store: PlanStore, place: Path) -> None:
    gone = dataclasses.replace(KEY, bundle="9" * 64)
    build(store, KEY, "kept")
    build(store, gone, "gone")
    build(store, dataclasses.replace(gone, precision="fp16"), "gone")
    (place.parents[1] / "somebody's").mkdir()
    assert store.bundles().keys() == {KEY.bundle, gone.bundle}
    store.forget(gone.bundle)
    assert sorted(path.name for path in place.parents[1].iterdir()) == [KEY.bundle, "somebody's"]
    assert contents(store.find(KEY)) == "kept text.plan"


@pytest.mark.parametrize("change", [{"bundle": "../../etc"}, {"bundle": "5" * 63}, {"precision": ".."}])
def test_a_key_never_leads_out_of_the_store(store: PlanStore, change: dict[str, str]) -> None:
    with pytest.raises(InternalError):
        store.find(dataclasses.replace(KEY, **change))


def test_a_store_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StoreError) as caught, PlanStore(tmp_path / "state").staging(KEY, NAMES):
        pass
    assert str(caught.value.item).startswith(str(tmp_path / "state"))


@given(
    st.builds(PlanKey, **dict.fromkeys((f.name for f in dataclasses.fields(PlanKey)), st.text())),
    st.dictionaries(
        st.from_regex(r"[a-z0-9]{1,8}\.plan", fullmatch=True),
        st.builds(
            PlanEntry, sha256=st.text(), bytes=st.integers(0), build_s=st.floats(allow_nan=False, allow_infinity=False)
        ),
    ),
)
def test_a_manifest_is_read_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, key: PlanKey, plans: dict[str, PlanEntry]
) -> None:
    folder = tmp_path_factory.mktemp("manifest")
    manifest = PlanManifest(key, plans)
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    assert PlanManifest.read(folder) == manifest


KILLED = """
    import json, os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from engines.test_plan_store import KEY, UPDATED, build, contents
    from orin_rerank.engines.plan_store import PlanStore

    CHANGES = {"os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir"}

    def killed(store, count):
        # Forks a process that builds, and is killed just before the count-th time that it changes the file system.
        child = os.fork()
        if child == 0:
            seen = 0
            def watch(event, arguments):
                nonlocal seen
                if event in CHANGES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)):
                    seen += 1
                    if seen == count:
                        os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(watch)
            build(store, KEY, "new")
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    outcomes = []
    store = PlanStore(Path(sys.argv[2]))
    build(store, UPDATED, "older")
    while True:
        build(store, KEY, "old")
        ended = killed(store, len(outcomes) + 1)
        found = store.find(KEY)
        outcomes.append([ended, [contents(found, name) for name in ("text.plan", "vision.plan")]])
        if ended == 0:
            break
        # Whatever was left, the next attempt goes on from it and comes to its end.
        build(store, UPDATED, "next")
    print(json.dumps(outcomes))
"""


def test_a_kill_at_any_moment_leaves_the_old_plans_or_the_new_ones(tmp_path: Path) -> None:
    tests = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", textwrap.dedent(KILLED), tests, str(tmp_path / "state")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    outcomes = json.loads(done.stdout)
    *cut_short, finished = outcomes
    new, old = (["new text.plan", "new vision.plan"], ["old text.plan", "old vision.plan"])
    assert finished == [0, new]
    assert {code for code, _ in cut_short} == {-9}
    found = [plans for _, plans in outcomes]
    swapped = found.index(new)
    assert found == [old] * swapped + [new] * (len(found) - swapped)
    assert swapped > 10
    assert len(found) - swapped > 1, "killed after the swap too, while what was before last was removed"
