"""Secrets in a text: by the name that they go by, by their shape, or as part of an address.

By its name a secret is found wherever a name and a value stand together: `HF_TOKEN=...`, `"dbPassword": "two words"`,
`--api-key ...`, `?access_token=...`, `Authorization: ...`. What goes by no name is found if it looks as the well-known
kinds do.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["REDACTED", "is_secret_name", "without_secrets"]

REDACTED: Final = "<redacted>"

_NAME: Final = (
    r"(?:[\w-]*(?:password|passwd|passphrase|secret|credentials?|token|signature|cookie|authorization"
    r"|(?:api|access|auth|client|encryption|master|private|secret|shared|signing|ssh)[_-]?key(?:[_-]?id)?)"
    r"|(?:[\w-]*[_-])?(?:pass|pwd|psk|sig))"
)
"""Whatever stands before it: `HF_TOKEN`, `PGPASSWORD`, `clientSecret`. `tokens` and `bypass` are something else."""
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)

_QUOTE: Final = r"\\*[\"']"
"""With backslashes where JSON stands in JSON."""
_QUOTED: Final = (
    rf"(?P<open>{_QUOTE})(?:[^\\\"'\n]|\\+[^\\\"'\n]|(?!(?P=open)){_QUOTE})*(?P<close>(?P=open)|\\*(?=\n|\Z))"
)
"""Up to the same quote with as many backslashes, or the end of the line."""
_WORD: Final = r"[^\s\"']+?(?=[,;&)\]}]{0,8}(?:[\s\"']|\Z))"
"""Up to the punctuation that follows it."""

_HEADER: Final = re.compile(
    rf"(?i)((?<![\w-])[\w-]*(?:authorization|cookie2?)(?:{_QUOTE})?\s*[=:]\s*(?:{_QUOTE})?)"
    r"(?:digest [^\n]+|[^\"'\n\\]+)"
)
"""Of several words, whatever separates them."""
_NAMED: Final = re.compile(rf"(?i)((?<![\w-]){_NAME}(?:{_QUOTE})?\s*[=:]\s*)(?:{_QUOTED}|{_WORD})")
_OPTION: Final = re.compile(rf"(?i)((?<![\w-])--{_NAME}\s+)(?:{_QUOTED}|{_WORD})")
_SCHEME: Final = re.compile(rf"(?i)(\b(?:bearer|basic)\s+(?=\S{{12}}|\S*[\d=+/._~-]\S))(?:{_WORD})")
"""Of a header that goes by another name; `basic checks` is none."""

_IN_ADDRESS: Final = re.compile(r"(?<=://)(?:[^/\s\"'<>]{1,256}|[^/\s\"'<>@]{0,64}:[^\s\"'<>]{0,256})@")

_PEM_BEGIN: Final = re.compile(r"-----BEGIN [^-\n]{1,64}-----(?:(?:\s|\\n)+[A-Za-z0-9+/=]{8,})*")
_PEM_END: Final = re.compile(r"-----END [^-\n]{1,64}-----")

_SHAPES: Final = (
    # SSH: a public key with its comment, which says whose it is, and fingerprints.
    re.compile(r"(?<![\w-])(?:ssh-\w+|ecdsa-[\w-]+|sk-[\w-]+(?:@[\w.]+)?) AAAA[\w+/=]+(?: [^\s\"']+)?"),
    re.compile(r"\bSHA256:[A-Za-z0-9+/]{43}=?(?![\w+/])"),
    re.compile(r"(?i)(?:\bMD5:|(?<![\w:]))[0-9a-f]{2}(?::[0-9a-f]{2}){15,}(?![\w:])"),
    # A signed token (JWT), and what GitHub, GitLab, Hugging Face, NVIDIA, AWS, Google, Slack and others give out.
    re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(r"(?<![\w-])(?:gh[oprsu]_|github_pat_|glpat-|hf_|nvapi-|xox[a-z]-|[rs]k-)[\w-]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[\w-]{35}"),
    re.compile(r"\$(?:1|2[abxy]|5|6|7|y|argon2\w*)\$[^\s\"':]+"),  # a password's hash, as in /etc/shadow
)


def is_secret_name(name: str) -> bool:
    """Whether what goes by a name is a secret."""
    return _SECRET_NAME.fullmatch(name) is not None


def without_secrets(text: str) -> str:
    """A text without them; what stands around them, such as quotes, stays."""
    text = _without_pem(text)
    for shape in _SHAPES:
        text = shape.sub(REDACTED, text)
    text = _IN_ADDRESS.sub(f"{REDACTED}@", text)
    text = _HEADER.sub(rf"\1{REDACTED}", text)
    for pattern in (_NAMED, _OPTION):
        text = pattern.sub(lambda found: f"{found[1]}{found['open'] or ''}{REDACTED}{found['close'] or ''}", text)
    return _SCHEME.sub(rf"\1{REDACTED}", text)


def _without_pem(text: str) -> str:
    """A text without keys and certificates as PEM has them, also where the end was cut off."""
    parts: list[str] = []
    at, has_end = 0, True
    while (begin := _PEM_BEGIN.search(text, at)) is not None:
        end = _PEM_END.search(text, begin.end()) if has_end else None
        has_end = end is not None
        parts += [text[at : begin.start()], REDACTED]
        at = (end or begin).end()
    return "".join([*parts, text[at:]])
