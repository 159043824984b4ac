"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell starts what it runs in the background with SIGINT ignored, and processes inherit that. Tests that send it to
# processes of theirs must not depend on how they were started themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
