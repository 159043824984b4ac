"""`orin-rerank config`: checks the settings file, and shows what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orin_rerank.cli.help_text import help_of
from orin_rerank.cli.options import JsonOption  # noqa: TC001 - typer reads annotations at run time

if TYPE_CHECKING:
    from orin_rerank.config.sections import Settings

__all__ = ["check", "config_app", "settings_as_dict", "show"]

config_app = typer.Typer(help="Check the settings file, and show what comes of it.", no_args_is_help=True)

FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        help="The settings file; else $ORIN_RERANK_CONFIG, else /etc/orin-rerank/config.toml.",
        show_default=False,
    ),
]


def check(file: FileArgument = None) -> int:
    """Check a settings file, and the variables that go before it.

    Nothing is started or changed. Where something is wrong, the message names the line and says what is possible.

    For example:

        orin-rerank config check
        orin-rerank config check ./config.toml
    """
    from orin_rerank.cli.output import console
    from orin_rerank.config.file import config_file
    from orin_rerank.config.read import read_settings

    chosen = config_file(file)
    settings = read_settings(chosen)
    what = "no settings file, so defaults" if chosen is None else str(chosen)
    variables = sum(source.startswith("ORIN_RERANK__") for source in settings.sources.values())
    of_file = len(settings.sources) - variables
    _check_here(settings)
    console().print(f"{what}: right; {of_file} set there, {variables} by variables", highlight=False)
    return 0


def _check_here(settings: Settings) -> None:
    """Holds settings to this machine, where it can tell.

    Raises:
        SettingsError: If there is no such power mode, or if more memory is given away than there is.
    """
    from orin_rerank.board.load import read_memory
    from orin_rerank.board.paths import BoardPaths
    from orin_rerank.board.power_modes import read_power_modes
    from orin_rerank.board.tuning import wanted_mode
    from orin_rerank.errors import BoardError, SettingsError

    paths = BoardPaths.from_environment()
    memory = read_memory(paths)
    try:
        modes = read_power_modes(paths)
    except BoardError:
        modes = None  # the settings may be right all the same; doctor tells of the board
    if modes is not None and (source := settings.sources.get("board.power_mode")) is not None:
        try:
            wanted_mode(paths, modes, settings.board)
        except BoardError as error:
            raise SettingsError(f"power_mode: {error}", item=source) from error
    if memory is None:
        return
    for name, source in settings.sources.items():
        section, _, key = name.partition(".")
        if key.endswith("_bytes") and getattr(getattr(settings, section), key) > memory.total:
            problem = f"{key} is more than this machine's memory, {memory.total / 2**30:.1f} GiB"
            raise SettingsError(problem, item=source)


def show(file: FileArgument = None, *, json_output: JsonOption = False) -> int:
    """Show all settings, and where each comes from.

    --json writes {"SECTION": {"KEY": {"value", "source"}}}; a source of null is the default.
    """
    from rich.table import Table

    from orin_rerank.cli.output import console, print_json
    from orin_rerank.config.file import config_file
    from orin_rerank.config.read import read_settings

    settings = read_settings(config_file(file))
    if json_output:
        print_json(settings_as_dict(settings))
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading)
    for section, keys in _values(settings).items():
        for key, value in keys.items():
            source = settings.sources.get(f"{section}.{key}")
            shown = "" if value is None else str(value)
            table.add_row(f"{section}.{key}", shown, source or "default", style=None if source else "dim")
    console().print(table)
    return 0


def settings_as_dict(settings: Settings) -> dict[str, object]:
    """All settings with where each comes from, as `--json` writes them."""
    return {
        section: {
            key: {"value": value, "source": settings.sources.get(f"{section}.{key}")} for key, value in keys.items()
        }
        for section, keys in _values(settings).items()
    }


def _values(settings: Settings) -> dict[str, dict[str, object]]:
    """Section and key to a value that JSON has."""
    from orin_rerank.config.sections import SECTIONS, keys_of

    return {
        section: {key: _plain(key, getattr(getattr(settings, section), key)) for key in keys_of(section)}
        for section in SECTIONS
    }


def _plain(key: str, value: object) -> object:
    if key == "socket_mode":
        return f"0o{value:o}"
    plain = getattr(value, "value", value)  # of an enumeration
    return plain if plain is None or isinstance(plain, (bool, int, float)) else str(plain)


config_app.command(help=help_of(check))(check)
config_app.command(help=help_of(show))(show)
