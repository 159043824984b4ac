"""Whose the socket path is."""

import socket
import stat

import pytest

from orin_rerank.errors import SettingsError, UnavailableError
from orin_rerank.serving.unix_socket import SocketClaim


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "folder" / "rerank.sock"


def test_directories_are_made_and_the_path_is_free_afterwards(path):
    claim = SocketClaim(path)
    assert path.parent.is_dir()
    claim.release()
    SocketClaim(path).release()


def test_a_path_is_claimed_once(path):
    claim = SocketClaim(path)
    with pytest.raises(UnavailableError, match="another daemon answers at"):
        SocketClaim(path)
    claim.release()


def test_a_dead_daemon_s_socket_is_replaced(path):
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    claim = SocketClaim(path)
    assert not path.exists()
    claim.release()


def test_a_living_server_s_socket_is_left_alone(path):
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(UnavailableError, match="another daemon answers at"):
            SocketClaim(path)
    assert path.is_socket()


def test_what_is_no_socket_is_left_alone(path):
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with pytest.raises(SettingsError, match="no socket"):
        SocketClaim(path)
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_is_a_setting_s_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError) as caught:
        SocketClaim(tmp_path / "file" / "rerank.sock")
    assert caught.value.item == "socket"


def test_the_socket_is_private_until_it_is_opened(path):
    claim = SocketClaim(path)
    with socket.socket(socket.AF_UNIX) as server:
        with claim.private():
            server.bind(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        claim.open_to(0o666)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
    claim.release()
    assert not path.exists()
