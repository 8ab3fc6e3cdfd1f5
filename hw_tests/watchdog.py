"""Ends a simulator whose design hangs."""

from __future__ import annotations

import logging
import signal

__all__ = ["watch"]


def watch(seconds: int) -> None:
    """Kills this process when a cocotb test takes more than ``seconds`` of processor time.

    The operating system does, as Python may have no turn in a simulator that turns in circles.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def begin_again(_: logging.LogRecord) -> bool:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        return True

    # Tells of each test when it begins and when it ends.
    logging.getLogger("cocotb.regression").addFilter(begin_again)
