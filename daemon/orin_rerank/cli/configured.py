"""Settings as a command has them: the settings file, variables, and what the command line says before both."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from orin_rerank.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orin_rerank.config.sections import Settings
    from orin_rerank.lifecycle.first_boot.place import Place

__all__ = ["calibration_set", "judged_set", "place_of", "settings_of", "state_folder", "with_options"]


def settings_of(config: Path | None, **options: Mapping[str, object]) -> Settings:
    """Reads the settings, and puts the command line's options into them.

    Args:
        config: The settings file that the command line names, None for the usual one.
        options: By section, what the command line says of its settings; None where it says nothing.

    Raises:
        SettingsError: If anything is wrong; the item is the file with the line, the variable or the option.
    """
    from orin_rerank.config.file import config_file
    from orin_rerank.config.read import read_settings

    return with_options(read_settings(config_file(config)), **options)


def with_options(settings: Settings, **options: Mapping[str, object]) -> Settings:
    """Puts the command line's options into settings; `settings_of` explains them.

    Raises:
        SettingsError: If one is wrong; the item is the option.
    """
    for section, values in options.items():
        given = {key: value for key, value in values.items() if value is not None}
        try:
            changed = dataclasses.replace(getattr(settings, section), **given)
        except SettingsError as error:
            error.item = f"--{(error.item or section).replace('_', '-')}"
            raise
        settings = dataclasses.replace(settings, **{section: changed})
    return settings


def state_folder(settings: Settings, user: int | None = None) -> Path:
    """Where engines are kept: what ORIN_RERANK_STATE names, else the settings, else the user's own place.

    Args:
        settings: All settings.
        user: Number of the user, 0 for the system's place; None means this process's.

    Raises:
        StoreError: If the user has no home.
    """
    from orin_rerank.engines.store import STATE_VARIABLE, default_state_folder

    if settings.model.state is not None and not os.environ.get(STATE_VARIABLE):
        return settings.model.state.absolute()
    return default_state_folder(user=user)


def calibration_set(settings: Settings) -> Path | None:
    """The folder of the calibration set: the one that the settings name, or that of a source tree."""
    from orin_rerank.cli.bundles import SHIPPED_CALIBRATION, repository_folder

    return settings.first_boot.calibration or repository_folder(SHIPPED_CALIBRATION)


def judged_set(settings: Settings) -> Path | None:
    """The same of the judged set, which decides on INT8."""
    from orin_rerank.cli.bundles import SHIPPED_EVALUATION, repository_folder

    return settings.first_boot.evaluation or repository_folder(SHIPPED_EVALUATION)


def place_of(bundle: Path, settings: Settings, state: Path) -> Place:
    """This machine, for it to be prepared.

    Args:
        bundle: The full-precision bundle's folder.
        settings: All settings.
        state: Where engines are kept, as `state_folder` has it for whoever has called.
    """
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.lifecycle.first_boot.place import Place

    first_boot = settings.first_boot
    return Place(
        bundle,
        state,
        calibration_set(settings),
        judged_set(settings),
        settings.engine,
        first_boot,
        tuning=settings.board,
        paths=BoardPaths.from_environment(),
    )
