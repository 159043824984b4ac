"""What identifies is taken out, and what tells how the machine is stays."""

from __future__ import annotations

import json
import os
import pwd
import socket
import time
from pathlib import Path

import pytest

from fakes.board import make_pc
from orin_rerank.board.paths import BoardPaths
from orin_rerank.lifecycle.doctor.redaction import Redactor, redactor_of

REDACTOR = Redactor(
    {"alice": "<user>", "bob": "<user>", "lab-7": "<host>", "1422222012345": "<serial>"}, ("/root", "/srv/bob")
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bundle /home/carol/models/x: no", "bundle <home> no"),
        ('{"folder": "/home/carol/my-models"}', '{"folder": "<home>"}'),
        ("/root/x and /root, not /rooted", "<home> and <home>, not /rooted"),
        ("/srv/bob/secret/x", "<home>"),
        ("/srv/bobby", "/srv/bobby"),
        ("user alice at Lab-7", "user <user> at <host>"),
        ("malice, alice-x, Alice_data", "malice, <user>-x, <user>_data"),
        ("bob is bobby, not bob-2", "<user> is bobby, not bob-2"),
        ("/home/carol/my models/x and y", "<home> and y"),
        ("'/home/carol/my models' or \"/srv/bob/a b\"", "'<home>' or \"<home>\""),
        ("/home/carol/x /srv/y; /home", "<home> /srv/y; /home"),
        ("S/N: 14-222x, serial_number=0423, serial console", "S/N: <serial>, serial_number=<serial>, serial console"),
        ("enx48b02dabcdef and wlx48b02dabcdef", "enx<mac> and wlx<mac>"),
        ("48-B0-2D-AB-CD-EF", "<mac>"),
        ("::ffff:192.168.1.7", "<ipv6>:<ipv4>"),
        ("serial 1422222012345", "serial <serial>"),
        ("from 192.168.1.7:50051, 10.0.0.5.", "from <ipv4>:50051, <ipv4>."),
        ("127.0.0.1:50051 and 0.0.0.0", "127.0.0.1:50051 and 0.0.0.0"),
        ("tensorrt_rtx 1.7.1.116, version 10.3.0.30", "tensorrt_rtx 1.7.1.116, version 10.3.0.30"),
        ("TensorRT 10.3.0.26 and CUDA: 12.6.68.1", "TensorRT 10.3.0.26 and CUDA: 12.6.68.1"),
        ("ii  libnvinfer10  10.3.0.30-1+cuda12.5", "ii  libnvinfer10  10.3.0.30-1+cuda12.5"),
        ("no TensorRT at 10.3.0.26", "no TensorRT at <ipv4>"),
        ("Jetson Linux 36.4.7, kernel 5.15.148-tegra", "Jetson Linux 36.4.7, kernel 5.15.148-tegra"),
        ("fe80::1%eth0 2001:db8::5, [2001:db8::5]:50051", "<ipv6> <ipv6>, [<ipv6>]:50051"),
        ("fe80::1: gone", "<ipv6>: gone"),
        ("[::1]:50051 at 18:30:05", "[::1]:50051 at 18:30:05"),
        ("2026-11-30T18:30:05+0000 orin-rerank[7]: x", "2026-11-30T18:30:05+0000 orin-rerank[7]: x"),
        ("eth0 48:b0:2d:ab:cd:ef", "eth0 <mac>"),
        ("boot 0d2a7ab2-7d2c-4d5b-a8f5-0123456789ab", "boot <id>"),
        ("machine 0123456789abcdef0123456789ABCDEF", "machine <id>"),
        ("digest " + "ab" * 32 + ", 0123456789ab", "digest " + "ab" * 32 + ", 0123456789ab"),
        ("mail me@example.com", "mail <mail>"),
        ("https://me:hush@example.com/x", "https://<redacted>@example.com/x"),
        ("NV Power Mode: MAXN_SUPER, gpu Orin", "NV Power Mode: MAXN_SUPER, gpu Orin"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert REDACTOR.text(text) == expected
    assert REDACTOR.text(expected) == expected


def test_values() -> None:
    value = {"a": ["/home/x/y", 1, None, True, 2.5], "alice": {"b": "lab-7"}}
    assert REDACTOR.value(value) == {"a": ["<home>", 1, None, True, 2.5], "<user>": {"b": "<host>"}}


@pytest.mark.parametrize("name", ["password", "db_password", "HF_TOKEN", "apiKey", "Authorization", "pass", "ssh-key"])
@pytest.mark.parametrize("hush", ["hush", 12345, ["hush"], {"deep": "hush"}], ids=["text", "number", "list", "object"])
def test_what_goes_by_the_name_of_a_secret_is_taken_out_of_a_value(name: str, hush: object) -> None:
    value = {"a": [{name: hush}], "port": 5}
    assert REDACTOR.value(value) == {"a": [{name: "<redacted>"}], "port": 5}


def test_what_says_that_there_is_no_secret_stays() -> None:
    value = {"token": None, "password": "", "secret": True, "pass": [], "passed": "yes", "key": {"bundle": "b"}}
    assert REDACTOR.value(value) == value


def test_secrets_that_stand_beside_their_name() -> None:
    variables = [{"name": "HF_TOKEN", "value": "hush"}, {"name": "HOST", "value": "lab-7"}]
    assert REDACTOR.value(variables) == [
        {"name": "HF_TOKEN", "value": "<redacted>"},
        {"name": "HOST", "value": "<host>"},
    ]
    assert REDACTOR.value(["curl", "--api-key", "hush", "--max-time", "5"]) == [
        *("curl", "--api-key", "<redacted>"),
        *("--max-time", "5"),
    ]


def test_a_version_of_four_numbers_is_no_address() -> None:
    value = {"tensorrt": "10.13.3.9", "driver_version": "1.2.3.4", "peer": "10.13.3.9"}
    assert REDACTOR.value(value) == {"tensorrt": "10.13.3.9", "driver_version": "1.2.3.4", "peer": "<ipv4>"}


def test_this_machine_is_known(tmp_path: Path) -> None:
    for path, text in {
        "etc/hostname": "press-room-3.example.org\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "etc/hosts": "127.0.0.1 localhost\n::1 ip6-localhost\n10.1.2.3 vault.example.com vault # hush\n",
        "etc/resolv.conf": "nameserver 10.0.0.1\nsearch example.org lan\n",
        "proc/device-tree/serial-number": "1422222012345\0",
        "sys/class/dmi/id/product_serial": "0000\n",
        "sys/class/dmi/id/board_serial": "None\n",
        "sys/class/nvme/nvme0/serial": "S5GXNX0R123456      \n",
        "sys/block/mmcblk0/device/cid": "150100424a54443452053a4f4a9d63cd\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    redactor = redactor_of(BoardPaths(tmp_path), {"box.example.net": "<host>"})
    text = redactor.text(
        f"press-room-3 press-room-3.example.org box.example.net 1422222012345 0000 {socket.gethostname()}x "
    )
    assert text.startswith("<host> <host> <host> <serial> 0000 ")
    assert redactor.text("vault, printer.example.org, lan, localhost, none, hush") == (
        "<host>, printer.<domain>, lan, localhost, none, hush"
    )
    assert redactor.text("S5GXNX0R123456 150100424a54443452053a4f4a9d63cd") == "<serial> <serial>"
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert home in redactor.homes
    assert redactor.text(f"{home}/secret/model") == "<home>"
    assert json.loads(json.dumps(redactor.value({"a": f"{home}/b"}))) == {"a": "<home>"}


@pytest.mark.parametrize("name", ["nvidia", "ubuntu", "orin-rerank", "localhost", "root"])
def test_names_that_every_board_has_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text(name)
    assert redactor_of(BoardPaths(tmp_path)).text(f"{name} is there") == f"{name} is there"


@pytest.mark.parametrize(
    "part",
    [
        *(
            "password",
            "x-",
            "a.",
            "://",
            "Authorization",
            "eyJ-",
            "basic ",
            "ssh-",
            "ecdsa-",
            "AAAA ",
            "/home/x ",
            "x@",
        ),
        *('"', "'/home/x/", "\\", "password=;", 'password="', "-----BEGIN X-----", ":", "f:", "a" * 50, "serial:"),
    ],
)
def test_a_long_text_takes_no_long_time(part: str) -> None:
    """Nothing that somebody has written into a journal makes the doctor think for ever."""
    begin = time.process_time()
    REDACTOR.text(f"{part * (100_000 // len(part))}g")
    assert time.process_time() - begin < 5


def test_who_asked_by_sudo_is_taken_out_though_no_list_has_him(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with accounts of a directory server: those are looked up by number, and not listed."""
    account = next(one for one in pwd.getpwall() if 0 < one.pw_uid < 1000 and len(one.pw_name) > 4)
    text = f"run by {account.pw_name}"
    paths = make_pc(tmp_path)
    assert redactor_of(paths).text(text) == text
    monkeypatch.setenv("SUDO_UID", str(account.pw_uid))
    assert redactor_of(paths).text(text) == "run by <user>"
    monkeypatch.setenv("SUDO_UID", "99999999999999999999")
    assert redactor_of(paths).text(text) == text
