"""The daemon as a process: from its start until a signal or a failure ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

from orin_rerank.serving.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orin_rerank.errors import OrinRerankError
    from orin_rerank.serving.daemon import Load, Reload
    from orin_rerank.serving.settings import ServerSettings
    from orin_rerank.telemetry.notify import Notifier

__all__ = ["run"]


async def _until_signal(daemon: Daemon, reload: Reload | None) -> tuple[bool, OrinRerankError | None]:
    """Runs a daemon; returns whether its engine thread has ended, and why it failed if it did."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, daemon.reload, reload)
    await daemon.start()
    failed = asyncio.ensure_future(daemon.failed())
    signalled = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait([signalled, failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = await daemon.stop()
    signalled.cancel()
    if not failed.cancel():
        failed.exception()  # seen: it is `failure` that counts, which a lost GPU may have become meanwhile
    return ended, daemon.failure


def run(
    settings: ServerSettings,
    load: Load,
    exit_code: Callable[[OrinRerankError], int] = lambda _: 1,
    *,
    notifier: Notifier | None = None,
    problems: Callable[[], Sequence[str]] = tuple,
    reload: Reload | None = None,
    before_exit: Callable[[], None] = lambda: None,
) -> int:
    """Runs the daemon until SIGTERM or SIGINT.

    Args:
        settings: How it is reached and how much it takes on.
        load: Loads the model; told to report what it is doing.
        exit_code: Chooses the exit code of an error, for a process that can only be ended at once: its engine thread
            hangs in native code, as one may that waits for a lost GPU, or left something there.
        notifier: The service manager; None is none.
        problems: Says what is not as it should be though requests may be served.
        reload: Reads the settings again, which SIGHUP asks for; None leaves that signal alone.
        before_exit: Called before a process that was to stop is ended at once.

    Returns:
        The exit code of an orderly end, 0.

    Raises:
        OrinRerankError: If the daemon could not start or failed later; the caller chooses the exit code.
    """

    async def whole() -> tuple[bool, OrinRerankError | None]:
        return await _until_signal(Daemon(settings, load, notifier=notifier, problems=problems), reload)

    ended, error = asyncio.run(whole())
    if not ended:
        # The interpreter would tear down libraries beneath threads that are still inside them.
        if error is None:
            before_exit()
        logging.shutdown()
        os._exit(0 if error is None else exit_code(error))
    if error is not None:
        raise error
    return 0
