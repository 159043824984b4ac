"""As root, what a command makes for the service is the service's user's."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orin_rerank.cli.main import run
from orin_rerank.cli.owner import become_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

NOBODY = pwd.getpwnam("nobody")


def in_child(act: Callable[[], object]) -> dict[str, object]:
    """What a process is after it did something, and what it said; it cannot come back from being somebody else."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # one that does not end fails, rather than hold up everything
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            value = act()
        ids = os.getresuid() + os.getresgid()
        answer = {"value": value, "ids": ids, "home": os.environ["HOME"], "said": said.getvalue()}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer_of:
        value: dict[str, object] = json.loads(answer_of.read())
    os.waitpid(child, 0)
    return value


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder of the service's user, where others may look; pytest's own are below one of root alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
    yield folder
    shutil.rmtree(folder)


@root_only
def test_root_becomes_the_owner_for_good(state: Path) -> None:
    def act() -> str | None:
        name = become_owner(state)
        (state / "made").write_text("")
        return name

    child = in_child(act)
    assert child["value"] == "nobody"
    assert child["ids"] == [NOBODY.pw_uid] * 3 + [NOBODY.pw_gid] * 3
    assert child["home"] == NOBODY.pw_dir
    assert child["said"] == f"working as nobody, who owns {state}\n"
    assert (state / "made").stat().st_uid == NOBODY.pw_uid


@root_only
def test_a_folder_that_is_to_be_made_belongs_to_whose_folder_it_will_be_in(state: Path) -> None:
    assert in_child(lambda: become_owner(state / "not" / "there"))["value"] == "nobody"


@root_only
def test_a_folder_for_the_socket_is_made_where_root_alone_may(state: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        run_folder = Path(name)
        run_folder.chmod(0o755)
        folder = run_folder / "run" / "orin-rerank"

        def act() -> None:
            become_owner(state, also=folder)
            (folder / "socket").write_text("")

        in_child(act)
        assert (folder / "socket").stat().st_uid == NOBODY.pw_uid
        assert (folder.stat().st_uid, folder.stat().st_gid) == (NOBODY.pw_uid, NOBODY.pw_gid)
        assert folder.stat().st_mode & 0o777 == 0o750
        assert (run_folder / "run").stat().st_uid == 0


@root_only
def test_what_is_root_s_own_stays_so(tmp_path: Path) -> None:
    assert become_owner(tmp_path) is None
    assert become_owner(tmp_path / "not-there") is None


@root_only
def test_an_owner_without_a_name_is_nobody_to_become(tmp_path: Path) -> None:
    os.chown(tmp_path, 54321, 54321)
    assert become_owner(tmp_path) is None


@root_only
@pytest.mark.parametrize(
    ("command", "changes"),
    [
        (["calibrate", "--data", "/nowhere", "--evaluation", "/nowhere"], True),
        (["build", "--bundle", "/nowhere"], True),
        (["prepare", "--bundle", "/nowhere"], True),
        (["serve", "--prepare", "--bundle", "/nowhere", "--socket", "/dev/null/s"], True),
        (["engines", "--prune"], True),
        (["engines"], False),
        (["serve", "--bundle", "/nowhere", "--socket", "/dev/null/s"], False),
    ],
)
def test_commands_that_write_into_the_state_folder_are_the_service_s_user(
    state: Path, command: list[str], *, changes: bool
) -> None:
    """Each ends soon, since what it is given is not there; who it was by then is what counts."""
    config = state / "config.toml"
    config.write_text(f'[model]\nstate = "{state}"\n')

    def act() -> int:
        os.environ.pop("ORIN_RERANK_STATE", None)
        os.environ["ORIN_RERANK_CONFIG"] = str(config)
        return run(command)

    child = in_child(act)
    assert child["ids"] == ([NOBODY.pw_uid] * 3 + [NOBODY.pw_gid] * 3 if changes else [0] * 6), child["said"]
    assert ("working as nobody" in str(child["said"])) is changes
    assert {path.stat().st_uid for path in state.rglob("*") if path != config} <= {NOBODY.pw_uid}
