"""The command ``nearmem``.

Each subcommand is a module of :mod:`sw_driver.commands` with two functions:
``add_parser(subparsers)`` describes the options and names ``run`` as the default of ``run``;
``run(arguments)`` does the work and returns the exit status. Bad input is one line on stderr and
status 2, a job that failed is status 1.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, cast

from .commands import COMMANDS, Failure, Parser, Refusal

__all__ = ["main"]


class _Version(argparse.Action):
    """Prints name and version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"nearmem {version('nearmem')}")
        parser.exit()


class _Completion(argparse.Action):
    """Prints what makes a shell complete commands and options."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: Any, *_: Any
    ) -> None:
        import shtab

        paths = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
        parsers = [parser]
        for each in parsers:
            for action in each._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
                elif action.metavar in paths:
                    cast(Any, action).complete = paths[action.metavar]
        print(shtab.complete(parser, values))
        parser.exit()


_OF_WRITING = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of standard output, if no file is named: who writes a file names it."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nearmem", description="Near-memory training hardware, simulated.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print name and version")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh"),
        help='print what a shell needs to complete commands: eval "$(nearmem --print-completion '
        'bash)"',
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        import_module(f".commands.{command}", __package__).add_parser(subparsers)
    return parser


def _complain(error: Exception) -> None:
    print(f"nearmem: {' '.join(str(error).split())}", file=sys.stderr)


def _drop_output() -> None:
    """Leaves nothing that Python would write to standard output at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
    interrupts: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    own = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if own:
        signal.signal(signal.SIGINT, note)
    try:
        return _run(argv)
    except BaseException as error:
        # What a library does when it is interrupted may end in an error of its own.
        if not interrupts and not isinstance(error, KeyboardInterrupt):
            raise
        print("nearmem: interrupted", file=sys.stderr)
        return 130
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(argv: Sequence[str] | None) -> int:
    # Amaranth warns of what it has not come to when a command is interrupted.
    warnings.filterwarnings("ignore", ".* created but never used")
    try:
        arguments = _parser().parse_args(argv)
        status = arguments.run(arguments)
        sys.stdout.flush()  # what cannot be written is an error here, not at the program's end
        return status
    except Refusal as refusal:
        _complain(refusal)
        return 2
    except Failure as failure:
        _complain(failure)
        return 1
    except SystemExit as leaving:  # --help
        return leaving.code if isinstance(leaving.code, int) else 0
    except OSError as error:
        if error.filename is not None:
            _complain(Refusal(f"{str(error.filename)!r}: {error.strerror}"))
            return 2
        if error.errno not in _OF_WRITING:
            raise
        _drop_output()
        if error.errno == errno.EPIPE:  # nobody reads on
            return 1
        _complain(Refusal(f"standard output: {error.strerror}"))
        return 2


if __name__ == "__main__":
    sys.exit(main())
