"""The archive for support: what doctor found, and what it looked at, without what identifies anybody."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orin_rerank.board.power_modes import CONFIG
from orin_rerank.board.programs import run_program
from orin_rerank.durable import sync_folder
from orin_rerank.errors import BoardError, OrinRerankError, SettingsError
from orin_rerank.lifecycle.doctor.model import inventory_of
from orin_rerank.lifecycle.first_boot.journal import JOURNAL_FILE
from orin_rerank.plain_files import read_plain_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.doctor.context import Context
    from orin_rerank.lifecycle.doctor.redaction import Redactor

__all__ = ["CONTENTS", "collect", "write_archive"]

CONTENTS: Final = {
    "board.json": "what `orin-rerank board show --json` says",
    "doctor.json": "what doctor found",
    "engines.json": "bundles, INT8 engines and plans that are here",
    "first-boot.json": "what was begun on this machine, and what came of it",
    "journal.txt": "the last lines of the services' journals",
    "nv_tegra_release": "which release of NVIDIA's system this is",
    "nvpmodel.conf": "the board's power modes",
    "settings.json": "all settings, and where each comes from",
    "versions.json": "versions of this program, Python, the kernel and libraries",
}
"""The archive's files, as far as there is something to put into them."""

_README: Final = """\
What `orin-rerank doctor --bundle` has put together, to be read by somebody who helps:

{files}

There is nothing of requests in here: no query, no document, no picture, no score. Names of the machine and of people,
paths below home folders, addresses, serial numbers, identities and secrets have been taken out, as far as they can be
told. Look through it before you pass it on.
"""

_UNITS: Final = ("orin-rerank", "orin-rerank-board", "orin-rerank-board-again")
_JOURNAL_LINES: Final = 2000
_JOURNAL_S: Final = 20.0
_PACKAGES: Final = ("grpcio", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "protobuf", "pycuda", "tensorrt")
_LARGEST: Final = 1 << 20
"""Of a file that is taken over; these have some kilobytes."""


def collect(
    paths: BoardPaths, context: Context, redactor: Redactor, values: Mapping[str, Mapping[str, object]]
) -> dict[str, str]:
    """Puts together what goes into the archive, redacted.

    Args:
        paths: The board.
        context: What doctor knew.
        redactor: Takes out what identifies.
        values: Files that the caller has the contents of, by name, as values of JSON.

    Returns:
        Contents by name.
    """
    files: dict[str, str | None] = {name: _json(redactor, value) for name, value in values.items()}
    files["engines.json"] = _json(redactor, {"engines": _inventory(context)})
    files["versions.json"] = _json(redactor, _versions(context))
    files["nvpmodel.conf"] = _text(redactor, paths.text(CONFIG))
    files["nv_tegra_release"] = _text(redactor, paths.text("/etc/nv_tegra_release"))
    files[JOURNAL_FILE] = _noted(redactor, _read(context.state / JOURNAL_FILE))
    files["journal.txt"] = _text(redactor, _journal(paths))
    found = {name: text for name, text in files.items() if text}
    listed = "\n".join(f"  {name:<18}{CONTENTS[name]}" for name in sorted(found))
    return {"README.txt": _README.format(files=listed), **found}


def write_archive(target: Path, files: Mapping[str, str], owner: tuple[int, int] | None = None) -> None:
    """Writes the archive, for its owner's eyes alone; it appears whole, or not at all.

    The same contents give the same bytes: files are in the order of their names, and bear no time and no owner.

    Args:
        target: Such as `support.tar.gz`; replaced if it is there and a plain file.
        files: Contents by name.
        owner: Numbers of the user and the group that it shall belong to; None means this process's.

    Raises:
        SettingsError: If it cannot be written, or if something else is there, such as a device or a link.
    """
    folder = Path(target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz") or "orin-rerank-doctor")
    data = _packed(folder, files)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(target.lstat().st_mode):  # root would put a file in the place of /dev/null
                raise SettingsError("is there, and is no plain file; name another", item=f"--bundle {target}")
        # A name that nobody can foresee, since root may write to a folder that is everybody's.
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.absolute().parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    os.fchown(file.fileno(), *owner)
                os.fsync(file.fileno())
            part.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        sync_folder(target.absolute().parent)
    except OSError as error:
        raise SettingsError(f"cannot be written: {error.strerror}", item=f"--bundle {target}") from error


def _packed(folder: Path, files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            data = files[name].encode("utf-8", errors="replace")
            entry = tarfile.TarInfo(str(folder / name))
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _json(redactor: Redactor, value: object) -> str:
    return json.dumps(redactor.value(value), indent=1, ensure_ascii=False, sort_keys=True, default=str) + "\n"


def _text(redactor: Redactor, text: str | None) -> str | None:
    return None if text is None else redactor.text(text).rstrip("\n") + "\n"


def _noted(redactor: Redactor, text: str | None) -> str | None:
    """A file of JSON, as a text where a power cut left half of it."""
    try:
        return None if text is None else _json(redactor, json.loads(text))
    except (ValueError, RecursionError):
        return _text(redactor, text)


def _inventory(context: Context) -> object:
    """As `orin-rerank engines --json` has it; where it cannot be taken, why."""
    try:
        return [item.as_dict() for item in inventory_of(context)]
    except OrinRerankError as error:
        return {"problem": str(error)}


def _versions(context: Context) -> dict[str, object]:
    system = os.uname()
    return {
        "orin-rerank": context.version,
        "daemon": context.daemon.version or None,
        "python": platform.python_version(),
        "kernel": f"{system.sysname} {system.release} {system.machine}",
        "tensorrt": context.probe.tensorrt,
        "packages": {name: _version_of(name) for name in _PACKAGES},
    }


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _journal(paths: BoardPaths) -> str | None:
    """What the services wrote; None where there is no journal. The daemon writes nothing of requests."""
    units = [part for unit in _UNITS for part in ("-u", unit)]
    options = ("--no-pager", "--no-hostname", "--quiet", "--output=short-iso", f"--lines={_JOURNAL_LINES}")
    try:
        answer = run_program(paths, "journalctl", *units, *options, timeout_s=_JOURNAL_S)
    except BoardError:
        return None
    return answer.output if answer.code == 0 and answer.output.strip() else None


def _read(file: Path) -> str | None:
    """A plain file's text. The folder is the daemon's, which must not lead root from there to other files."""
    try:
        data = read_plain_file(file, _LARGEST, follow=False)
    except OSError:
        return None
    return None if data is None else data.decode(errors="replace")
