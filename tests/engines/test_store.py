"""The store of INT8 engines: whatever is killed, and whenever, the old engine or the new one is in service."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orin_rerank.engines.bundle import WEIGHTS_FILE, Bundle, write_manifest
from orin_rerank.engines.store import EngineStore, StoredEngine, default_state_folder
from orin_rerank.errors import BundleError, InternalError, StoreBusyError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = "5" * 64


def derived(bundle: Bundle, folder: Path, name: str, source: str | None = SOURCE) -> Path:
    """A bundle that says it was derived from another; the store looks no closer."""
    shutil.copytree(bundle.folder, folder, dirs_exist_ok=True)
    write_manifest(folder, dataclasses.replace(bundle.manifest, name=name, source=source))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "state")


@pytest.fixture
def install(store: EngineStore, vl_bundle: Bundle) -> Callable[[str], Path]:
    def install(name: str) -> Path:
        with store.staging(SOURCE) as staged:
            return store.install(SOURCE, derived(vl_bundle, staged, name))

    return install


def _name(folder: Path | None) -> str:
    assert folder is not None
    bundle = Bundle.open(folder)
    bundle.verify()
    return bundle.manifest.name


def _visible(store: EngineStore) -> list[str]:
    return sorted(path.name for path in (store.root / "engines" / SOURCE).iterdir() if not path.name.startswith("."))


def test_everything_in_the_store(store: EngineStore, install: Callable[[str], Path]) -> None:
    assert store.stored() == []
    first = install("first")
    assert store.stored() == [StoredEngine(SOURCE, first, current=True)]
    second = install("second")
    (store.root / "engines" / "lost+found").mkdir()
    assert store.stored() == [StoredEngine(SOURCE, second, current=True), StoredEngine(SOURCE, first, current=False)]


def test_nothing_is_installed_at_first(store: EngineStore) -> None:
    assert store.quantized(SOURCE) is None
    assert not store.root.exists()


def test_the_latest_is_in_service_and_the_one_before_is_kept(
    store: EngineStore, install: Callable[[str], Path]
) -> None:
    first = install("first")
    assert store.quantized(SOURCE) == first
    second = install("second")
    assert store.quantized(SOURCE) == second
    assert _name(first) == "first"
    third = install("third")
    assert _name(store.quantized(SOURCE)) == "third"
    assert _visible(store) == sorted([second.name, third.name, "current", "previous"])
    assert store.quantized("6" * 64) is None


def test_the_same_engine_may_be_installed_again(store: EngineStore, install: Callable[[str], Path]) -> None:
    """As after damage on disk."""
    (install("it") / WEIGHTS_FILE).write_bytes(b"damaged")
    again = install("it")
    assert store.quantized(SOURCE) == again
    assert _name(again) == "it"


@pytest.mark.parametrize("damage", ["source", "no source", "no manifest", "altered"])
def test_what_is_not_whole_or_not_of_this_bundle_is_refused(
    store: EngineStore, install: Callable[[str], Path], vl_bundle: Bundle, damage: str
) -> None:
    install("old")
    with store.staging(SOURCE) as staged:
        if damage != "no manifest":
            derived(vl_bundle, staged, "new", {"source": "6" * 64, "no source": None}.get(damage, SOURCE))
        if damage == "altered":
            (staged / WEIGHTS_FILE).write_bytes(b"0" * (staged / WEIGHTS_FILE).stat().st_size)
        with pytest.raises(BundleError):
            store.install(SOURCE, staged)
    assert _name(store.quantized(SOURCE)) == "old"
    assert len(_visible(store)) == 2
    assert not list((store.root / "engines" / SOURCE).glob(".staging-*"))


def test_only_what_was_staged_is_installed(store: EngineStore, vl_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(InternalError):
        store.install(SOURCE, derived(vl_bundle, tmp_path / "elsewhere", "new"))
    with pytest.raises(InternalError):
        store.quantized("../../etc")


def test_a_link_that_leads_nowhere_is_still_an_engine_that_was_installed(
    store: EngineStore, install: Callable[[str], Path]
) -> None:
    shutil.rmtree(install("lost"))
    with pytest.raises(BundleError):
        _name(store.quantized(SOURCE))
    assert _name(install("again")) == "again"


def test_one_writes_at_a_time(store: EngineStore) -> None:
    with store.staging(SOURCE), pytest.raises(StoreBusyError), store.staging(SOURCE):
        pass
    with store.staging(SOURCE), store.staging("6" * 64):
        pass


def test_a_store_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StoreError) as caught, EngineStore(tmp_path / "state").staging(SOURCE):
        pass
    assert caught.value.item is not None
    assert caught.value.item.startswith(str(tmp_path / "state"))


KILLED = """
    import json, os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from engines.test_store import SOURCE, derived
    from orin_rerank.engines.bundle import Bundle
    from orin_rerank.engines.store import EngineStore

    CHANGES = {"os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir"}
    bundle = Bundle.open(Path(sys.argv[2]))

    def install(store, name):
        with store.staging(SOURCE) as staged:
            store.install(SOURCE, derived(bundle, staged, name))

    def killed(store, count):
        # Forks a process that installs, and is killed just before the count-th time that it changes the file system.
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
            install(store, "new")
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    outcomes = []
    store = EngineStore(Path(sys.argv[3]))
    install(store, "older")
    while True:
        install(store, "old")
        ended = killed(store, len(outcomes) + 1)
        engine = Bundle.open(store.quantized(SOURCE))
        engine.verify()
        outcomes.append([ended, engine.manifest.name])
        if ended == 0:
            break
    print(json.dumps(outcomes))
"""


def test_a_kill_at_any_moment_leaves_the_old_engine_or_the_new_one(vl_bundle: Bundle, tmp_path: Path) -> None:
    tests = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", textwrap.dedent(KILLED), tests, str(vl_bundle.folder), str(tmp_path / "state")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    outcomes = json.loads(done.stdout)
    *cut_short, finished = outcomes
    assert finished == [0, "new"]
    assert {code for code, _ in cut_short} == {-9}
    names = [name for _, name in outcomes]
    swapped = names.index("new")
    assert names == ["old"] * swapped + ["new"] * (len(names) - swapped)
    assert swapped > len(vl_bundle.manifest.files), "killed while copying every file, and after"
    assert len(names) - swapped > 1, "killed after the swap, while the engine before last was removed"
    # What the interruptions left is gone: the last to write came to its end.
    left = {path.name for path in (tmp_path / "state" / "engines" / SOURCE).iterdir()}
    assert len(left) == 5
    assert {".lock", "current", "previous"} < left


@pytest.mark.parametrize(
    ("variables", "user", "expected"),
    [
        ({"ORIN_RERANK_STATE": "/data/state", "XDG_STATE_HOME": "/x", "HOME": "/home/u"}, 0, "/data/state"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/root"}, 0, "/var/lib/orin-rerank"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/home/u"}, 1000, "/x/orin-rerank"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/u"}, 1000, "/home/u/.local/state/orin-rerank"),
        ({"HOME": "/home/u"}, 1000, "/home/u/.local/state/orin-rerank"),
    ],
)
def test_where_state_lies_by_default(variables: dict[str, str], user: int, expected: str) -> None:
    assert default_state_folder(variables, user) == Path(expected)


def test_a_user_without_a_home_is_told_what_to_set() -> None:
    with pytest.raises(StoreError) as caught:
        default_state_folder({}, 1000)
    assert caught.value.item == "ORIN_RERANK_STATE"
