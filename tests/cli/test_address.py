"""Where the daemon is looked for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orin_rerank.cli.address import default_socket, socket_of, target_of
from orin_rerank.errors import SettingsError


def test_what_is_named_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORIN_RERANK_ADDRESS", "box:1")
    monkeypatch.chdir(tmp_path)
    assert target_of(Path("a.sock"), None) == f"unix:{tmp_path}/a.sock"
    assert target_of(None, "host:50051") == "host:50051"
    assert target_of(None, "[::1]:50051") == "[::1]:50051"
    assert target_of(None, "unix:b.sock") == f"unix:{tmp_path}/b.sock"
    assert target_of(None, None) == "box:1"


def test_without_a_name_it_is_the_default_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ORIN_RERANK_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    system = Path("/run/orin-rerank/orin-rerank.sock")
    own = system if os.geteuid() == 0 else tmp_path / "orin-rerank" / "orin-rerank.sock"
    assert default_socket() == own
    assert target_of(None, None) in {f"unix:{own}", f"unix:{system}"}


@pytest.mark.parametrize("address", ["host", "host:", "host:port", "host:0", "host:65536", "host:٣"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="--address"):
        target_of(None, address)


def test_two_names_are_refused() -> None:
    with pytest.raises(SettingsError, match="not both"):
        target_of(Path("a"), "b:1")


def test_a_socket_path_that_the_system_cannot_hold_is_refused() -> None:
    assert target_of(Path("/" + "x" * 106), None) == "unix:/" + "x" * 106
    with pytest.raises(SettingsError, match="--socket: is 108 bytes long"):
        target_of(Path("/" + "x" * 107), None)
    with pytest.raises(SettingsError, match="--address: is 108 bytes long"):
        target_of(None, "unix:/" + "x" * 107)


def test_clients_find_the_socket_that_the_settings_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nsocket = "{tmp_path}/named.sock"\n[nonsense]\n')
    monkeypatch.delenv("ORIN_RERANK_ADDRESS", raising=False)
    assert target_of(None, None, file) == f"unix:{tmp_path}/named.sock"
    monkeypatch.setenv("ORIN_RERANK_CONFIG", str(file))
    assert target_of(None, None) == f"unix:{tmp_path}/named.sock"
    assert target_of(None, "box:1") == "box:1"
    monkeypatch.setenv("ORIN_RERANK__SERVER__SOCKET", "/run/b.sock")
    assert target_of(None, None) == "unix:/run/b.sock"


@pytest.mark.parametrize("text", ["server = 1", "[server]\nsocket = 5", "no toml", "", "\udcff"])
def test_settings_that_are_wrong_do_not_keep_clients_from_asking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.delenv("ORIN_RERANK_ADDRESS", raising=False)
    assert target_of(None, None, file) == target_of(None, None, tmp_path / "missing.toml")


DENIED = """
import os, socket, sys
from pathlib import Path
import encodings.idna
from orin_rerank.cli import address, client
from orin_rerank.errors import SocketDeniedError
place = Path(sys.argv[1]) / "orin-rerank" / "orin-rerank.sock"
place.parent.mkdir()
with socket.socket(socket.AF_UNIX) as server:
    server.bind(str(place))
    server.listen()
    place.parent.chmod(int(sys.argv[2], 8))
    place.chmod(0o660)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.environ["XDG_RUNTIME_DIR"] = sys.argv[1]
    try:
        with client.DaemonClient(address.target_of(None, None), timeout_s=20) as asked:
            asked.status()
    except SocketDeniedError as error:
        assert error.item == f"unix:{place}", error.item
        print("denied")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to become somebody else")
@pytest.mark.parametrize("mode", ["750", "755"])
def test_a_user_outside_of_the_group_is_told_so(mode: str) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ORIN_RERANK")}
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for root alone
        Path(folder).chmod(0o755)
        command = [sys.executable, "-c", DENIED, folder, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=kept)
    assert (done.returncode, done.stdout) == (0, "denied\n"), done.stderr


def test_which_target_is_a_socket() -> None:
    assert socket_of("unix:/run/a.sock") == Path("/run/a.sock")
    assert socket_of("box:50051") is None
