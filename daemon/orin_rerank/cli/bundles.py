"""Which model bundle a command uses where none is named."""

from __future__ import annotations

from pathlib import Path

from orin_rerank.errors import BundleError

__all__ = ["SHIPPED_CALIBRATION", "SHIPPED_EVALUATION", "bundle_of", "repository_folder"]

SHIPPED_CALIBRATION = "calibration_data/calibration"
SHIPPED_EVALUATION = "calibration_data/evaluation"
"""Sets of a source tree, for `repository_folder`."""

SYSTEM_BUNDLE = Path("/var/lib/orin-rerank/bundles/current")


def repository_folder(name: str) -> Path | None:
    """A folder of the source tree that the package runs from, such as `engines/mini`; None where there is no such."""
    folder = Path(__file__).resolve().parents[3] / name
    return folder if folder.is_dir() else None


def bundle_of(named: Path | None) -> Path:
    """The bundle's folder: the named one, the mini model of a source tree, or the installed one.

    Raises:
        BundleError: If there is none.
    """
    if named is not None:
        return named
    if (mini := repository_folder("engines/mini")) is not None:
        return mini
    try:
        if SYSTEM_BUNDLE.is_dir():
            return SYSTEM_BUNDLE
    except PermissionError as error:
        raise BundleError("may not be looked at: its folder is the service's", item=str(SYSTEM_BUNDLE)) from error
    raise BundleError("no bundle is installed; name one with --bundle or ORIN_RERANK_BUNDLE", item=str(SYSTEM_BUNDLE))
