"""Secrets are found by their names, by their shapes and in addresses; what only looks like one stays."""

from __future__ import annotations

import json

import pytest

from orin_rerank.lifecycle.doctor.secrets import is_secret_name, without_secrets

PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXkt\nhushhushHUSH=\n-----END OPENSSH PRIVATE KEY-----"
SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGh1c2hodXNo carol@laptop"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodXNoIn0.c2lnbmF0dXJlLWh1c2g"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hush api_key: 'hush'", "password=<redacted> api_key: '<redacted>'"),
        (
            "DB_PASSWORD=hush HF_TOKEN=hf_hush; token: hush",
            "DB_PASSWORD=<redacted> HF_TOKEN=<redacted>; token: <redacted>",
        ),
        ("PGPASSWORD=hush AWS_SECRET_ACCESS_KEY=hu/sh+", "PGPASSWORD=<redacted> AWS_SECRET_ACCESS_KEY=<redacted>"),
        ("AWS_ACCESS_KEY_ID=hush, clientSecret=hush", "AWS_ACCESS_KEY_ID=<redacted>, clientSecret=<redacted>"),
        ("password=hu,s;h&x next", "password=<redacted> next"),
        ('{"auth_token": "hush", "x": 1}', '{"auth_token": "<redacted>", "x": 1}'),
        ('{"pin_token": 12345, "x": {"psk": 7}}', '{"pin_token": <redacted>, "x": {"psk": <redacted>}}'),
        ("password = \"two words\", secret='it is'", "password = \"<redacted>\", secret='<redacted>'"),
        ('password = "with \\" in it" next', 'password = "<redacted>" next'),
        ('password = "no end of it\nnext', 'password = "<redacted>\nnext'),
        (
            "--token hush --api-key=hush --password 'two words'",
            "--token <redacted> --api-key=<redacted> --password '<redacted>'",
        ),
        ("Authorization: Basic aHVzaA==\nHost: x", "Authorization: <redacted>\nHost: x"),
        ("Proxy-Authorization: Bearer hush hush", "Proxy-Authorization: <redacted>"),
        ('Authorization: Digest username="hush", response="hush"', "Authorization: <redacted>"),
        ("{'Authorization': 'Bearer hush', 'a': 'b'}", "{'Authorization': '<redacted>', 'a': 'b'}"),
        ("curl -H 'Authorization: Bearer hush' x", "curl -H 'Authorization: <redacted>' x"),
        ("Set-Cookie: id=hush; Path=/\nx", "Set-Cookie: <redacted>\nx"),
        ("X-Api-Key: hush", "X-Api-Key: <redacted>"),
        ("sent bearer hush.hush, and basic aHVzaA==", "sent bearer <redacted>, and basic <redacted>"),
        ("https://me:hush@example.com/x", "https://<redacted>@example.com/x"),
        ("https://hush@example.com", "https://<redacted>@example.com"),
        ("https://me:hu@sh@host/x", "https://<redacted>@host/x"),
        ("redis://:hu/sh@host/0", "redis://<redacted>@host/0"),
        ("https://x/y?access_token=hush&n=1", "https://x/y?access_token=<redacted>"),
        ("https://x/y?n=1&X-Amz-Signature=hush", "https://x/y?n=1&X-Amz-Signature=<redacted>"),
        (f"key:\n{PEM}\nafter", "key:\n<redacted>\nafter"),
        (PEM.rpartition("\n")[0], "<redacted>"),
        (f"{SSH}\nnext", "<redacted>\nnext"),
        ("ecdsa-sha2-nistp256 AAAAE2VjZHNh", "<redacted>"),
        ("SHA256:" + "aB3+" * 10 + "xyz", "<redacted>"),
        ("MD5:" + ":".join(["0a"] * 16) + " " + ":".join(["0A"] * 20), "<redacted> <redacted>"),
        (f"got {JWT}.", "got <redacted>."),
        ("ghp_" + "h" * 36 + " hf_" + "u" * 34 + " nvapi-" + "s" * 40, "<redacted> <redacted> <redacted>"),
        ("AKIA" + "H" * 16, "<redacted>"),
        ("root:$6$salt$hush/hush.:19000", "root:<redacted>:19000"),
    ],
)
def test_secrets_are_taken_out(text: str, expected: str) -> None:
    assert without_secrets(text) == expected
    assert without_secrets(expected) == expected
    assert "hush" not in without_secrets(text).lower()


@pytest.mark.parametrize(
    "text",
    [
        '"token_budget": 1024, tokens: 5, max_tokens=4',
        "--max-tokens 4096 --token-budget 512",
        "bypass: on, compass=north, passed: 5",
        '"key": {"digest": "' + "ab" * 32 + '"}',
        "sha256:" + "0b" * 32,
        "basic checks passed; the bearer of news",
        "user@1000.service http://[::1]:50051/x",
        "at 18:30:05, 12:34:56:78",
        "/etc/passwd and secret agents",
        "risk-assessment-of-everything",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_json_in_json() -> None:
    inner = json.dumps({"password": 'hu"sh', "x": "y"})
    text = json.dumps({"message": inner})
    assert json.loads(json.loads(without_secrets(text))["message"]) == {"password": "<redacted>", "x": "y"}
    assert "hush" not in without_secrets(json.dumps({"message": json.dumps({"pem": PEM})}))


def test_json_stays_json() -> None:
    value = {"token": "hush", "headers": {"Authorization": "Bearer hush"}, "url": "https://a:hush@b/?sig=hush", "n": 1}
    assert json.loads(without_secrets(json.dumps(value))) == {
        "token": "<redacted>",
        "headers": {"Authorization": "<redacted>"},
        "url": "https://<redacted>@b/?sig=<redacted>",
        "n": 1,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("password", "Db-Passwd", "githubToken", "X-API-KEY", "private_key", "wifi_psk")),
        *((name, False) for name in ("key", "tokens", "max_tokens", "token_budget", "keyboard", "passed", "digest")),
    ],
)
def test_names(name: str, *, expected: bool) -> None:
    assert is_secret_name(name) is expected
