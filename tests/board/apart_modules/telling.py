"""What `test_apart` has called in another process: tells some, and ends as its argument says."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from orin_rerank.board.apart import tell_and_leave


def run() -> None:
    tell_and_leave(find)


def find(tell: Callable[[dict[str, Any]], None]) -> None:
    how = sys.argv[1]
    print("a library says hello")  # noqa: T201
    tell({"step": 1, "path": [entry for entry in sys.path if not entry]})
    if how == "half":
        os.write(3, b'{"step": 2')
        os._exit(5)
    if how == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(1000)
    if how == "raises":
        raise ValueError(how)
    tell({"step": 2, "text": "ä"})
