"""The command ``nearmem``.

Each subcommand is a module of ``sw_driver.commands``; what its ``run`` takes can be given on the
command line. Bad input is one line on stderr and status 2, a job that failed is status 1.
"""

from __future__ import annotations

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
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from sw_driver.device.errors import InvalidArgumentError

from .commands import COMMANDS, GROUPS, OPTIONS, Failure, Refusal, rule_mistake
from .commands.screen import in_lines

__all__ = ["application", "main"]

_OF_WRITING = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of standard output, if no file is named: who writes a file names it."""


def application() -> App:
    """The command line."""
    app = App(
        name="nearmem",
        help="Near-memory training hardware, simulated.",
        version=_version,
        group_parameters=OPTIONS,
        default_parameter=Parameter(
            allow_repeating=True, negative=(), show_default=lambda value: value or None
        ),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for number, name in enumerate(COMMANDS):
        module = import_module(f"sw_driver.commands.{name.replace(' ', '_').replace('-', '_')}")
        *groups, own = name.split()
        parent = app
        for group in groups:
            if group not in app:
                app.command(App(name=group, help=GROUPS[group], sort_key=number))
            parent = app[group]
        parent.command(module.run, name=own, sort_key=number)

    @app.command(name="--print-completion")
    def _(shell: Annotated[Literal["bash", "zsh"], Parameter(show=False)], /) -> int:
        """Print what a shell needs to complete commands: eval "$(nearmem --print-completion
        bash)"."""
        print(app.generate_completion(shell=shell))
        return 0

    return app


def _version() -> str:
    from importlib.metadata import version

    return f"nearmem {version('nearmem')}"


def _complain(error: Exception) -> None:
    print(in_lines(f"nearmem: {' '.join(str(error).split())}", sys.stderr), file=sys.stderr)


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
        words = sys.argv[1:] if argv is None else argv
        status = application()(words or ["--help"])
        sys.stdout.flush()  # what cannot be written is an error here, not at the program's end
        return status or 0  # None of --help
    except CycloptsError as error:
        command = " ".join(["nearmem", *(error.command_chain or ())])
        _complain(Refusal(f"{error} ('{command} --help' lists what is possible)"))
        return 2
    except (Refusal, InvalidArgumentError) as refusal:
        _complain(refusal)
        return 2
    except Failure as failure:
        _complain(failure)
        return 1
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
    except Exception as error:
        mistake = rule_mistake(error)
        if mistake is None:
            raise
        _complain(Refusal(mistake))
        return 2


if __name__ == "__main__":
    sys.exit(main())
