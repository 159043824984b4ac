"""What identifies is taken out, and what tells how the machine is stays."""

from __future__ import annotations

import json
import os
import pwd
import socket
from pathlib import Path

import pytest

from orin_rerank.board.paths import BoardPaths
from orin_rerank.lifecycle.doctor.redaction import Redactor, redactor_of

REDACTOR = Redactor({"alice": "<user>", "lab-7": "<host>", "1422222012345": "<serial>"}, ("/root", "/srv/bob"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bundle /home/carol/models/x: no", "bundle <home> no"),
        ('{"folder": "/home/carol/my-models"}', '{"folder": "<home>"}'),
        ("/root/x and /root, not /rooted", "<home> and <home>, not /rooted"),
        ("/srv/bob/secret/x", "<home>"),
        ("/srv/bobby", "/srv/bobby"),
        ("user alice at Lab-7", "user <user> at <host>"),
        ("malice, alice-x", "malice, alice-x"),
        ("serial 1422222012345", "serial <serial>"),
        ("from 192.168.1.7:50051, 10.0.0.5.", "from <ipv4>:50051, <ipv4>."),
        ("127.0.0.1:50051 and 0.0.0.0", "127.0.0.1:50051 and 0.0.0.0"),
        ("tensorrt_rtx 1.7.1.116, version 10.3.0.30", "tensorrt_rtx 1.7.1.116, version 10.3.0.30"),
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
        ("password=hush api_key: 'hush' Bearer abc.def", "password=<redacted> api_key: <redacted> Bearer <redacted>"),
        (
            "DB_PASSWORD=hush HF_TOKEN=hf_hush; token: hush",
            "DB_PASSWORD=<redacted> HF_TOKEN=<redacted> token: <redacted>",
        ),
        ('{"auth_token": "hush", "x": 1}', '{"auth_token": <redacted>, "x": 1}'),
        (
            "password = \"two words\", secret='it is', --token hush",
            "password = <redacted>, secret=<redacted>, --token <redacted>",
        ),
        ("Authorization: Basic aHVzaA==", "Authorization: Basic <redacted>"),
        ("https://me:hu@sh@host/x", "https://<redacted>@host/x"),
        ('"token_budget": 1024, tokens: 5, max_tokens=4', '"token_budget": 1024, tokens: 5, max_tokens=4'),
        ("NV Power Mode: MAXN_SUPER, gpu Orin", "NV Power Mode: MAXN_SUPER, gpu Orin"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert REDACTOR.text(text) == expected
    assert REDACTOR.text(expected) == expected


def test_values() -> None:
    value = {"a": ["/home/x/y", 1, None, True, 2.5], "alice": {"b": "lab-7"}}
    assert REDACTOR.value(value) == {"a": ["<home>", 1, None, True, 2.5], "<user>": {"b": "<host>"}}


def test_this_machine_is_known(tmp_path: Path) -> None:
    for path, text in {
        "etc/hostname": "press-room-3.example.org\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "proc/device-tree/serial-number": "1422222012345\0",
        "sys/class/dmi/id/product_serial": "0000\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    redactor = redactor_of(BoardPaths(tmp_path), {"box.example.net": "<host>"})
    text = redactor.text(
        f"press-room-3 press-room-3.example.org box.example.net 1422222012345 0000 {socket.gethostname()}x "
    )
    assert text.startswith("<host> <host> <host> <serial> 0000 ")
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert home in redactor.homes
    assert redactor.text(f"{home}/secret/model") == "<home>"
    assert json.loads(json.dumps(redactor.value({"a": f"{home}/b"}))) == {"a": "<home>"}


@pytest.mark.parametrize("name", ["nvidia", "ubuntu", "orin-rerank", "localhost", "root"])
def test_names_that_every_board_has_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text(name)
    assert redactor_of(BoardPaths(tmp_path)).text(f"{name} is there") == f"{name} is there"
