"""The command ``nearmem``.

Each subcommand is a module of ``sw_driver.commands``. The parameters of its ``run`` are the options
on the command line. Bad input gives one line on stderr and status 2, a failed job status 1.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from shutil import disk_usage
from tempfile import gettempdir
from types import FrameType
from typing import Annotated, Literal, TextIO

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import RepeatArgumentError

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import drop_unfinished, give_up_unfinished
from sw_driver.simulator.processes import children, kill_children

from .commands import COMMANDS, DEFAULTS, GROUPS, OPTIONS, RENAMED, Failure, Refusal
from .commands.screen import in_lines

__all__ = ["application", "interruptible", "main"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_OF_WRITING = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of standard output or of a temporary file, if the error names no file."""

_LEAST_FREE_BYTES = 1 << 20
"""Free bytes below which the folder of temporary files counts as full."""


def application(line: Sequence[str] = ()) -> App:
    """Return the command-line application; import only the command named by ``line``, if any."""
    named = any(" ".join(line[:words]) in COMMANDS for words in (1, 2))
    app = App(
        name="nearmem",
        help="Near-memory training hardware, simulated.",
        version=_version,
        group_parameters=OPTIONS,
        default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for number, name in enumerate(COMMANDS):
        module = f"sw_driver.commands.{name.replace(' ', '_').replace('-', '_')}"
        *groups, own = name.split()
        parent = app
        for group in groups:
            if group not in app:
                app.command(App(name=group, help=GROUPS[group], sort_key=number))
            parent = app[group]
        command = f"{module}:run" if named else import_module(module).run
        parent.command(command, name=own, sort_key=number)

    @app.command(name="--print-completion")
    def _(shell: Annotated[Literal["bash", "zsh"], Parameter(show=False)], /) -> int:
        """Print a shell's completion script: eval "$(nearmem --print-completion bash)"."""
        print(app.generate_completion(shell=shell))
        return 0

    return app


def _version() -> str:
    from importlib.metadata import version

    return f"nearmem {version('nearmem')}"


def _complain(error: Exception) -> None:
    print(in_lines(f"nearmem: {' '.join(str(error).split())}", sys.stderr), file=sys.stderr)


def _is_written(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):
        return False
    return True


def _drop_output(stream: TextIO) -> None:
    """Discard what Python would still write to ``stream`` when it exits."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Interrupted(KeyboardInterrupt):
    """Interrupt by a signal that asks the program to end.

    Dataclasses execute strings. A plain ``KeyboardInterrupt`` that leaves such a string makes
    Python end itself by SIGINT, whatever the signal was.
    """


def interruptible(run: Callable[[], int]) -> int:
    """Return the exit status of ``run``; end it alike on Ctrl-C, SIGTERM and SIGHUP.

    An interrupt prints one line and returns 128 plus the signal's number. It leaves no child
    process and no unfinished file. An ignored signal, such as SIGHUP under ``nohup``, stays
    ignored. Other exceptions of ``run`` are explained in one line, too.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and before[signal.SIGINT] == signal.SIG_IGN:
            return
        came.append(number)
        give_up_unfinished()
        raise _Interrupted

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        # During a device's call, its handler of Ctrl-C takes signals between two steps.
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else note)(number, frame)

    def end() -> int:
        for number in installed:
            signal.signal(number, signal.SIG_IGN)
        kill_children(started_before)
        drop_unfinished()
        with suppress(OSError, ValueError):
            print("nearmem: interrupted", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            if not _is_written(stream):  # the terminal or the reader is gone
                _drop_output(stream)
        return 128 + (came[0] if came else signal.SIGINT)

    started_before = children()
    before = {int(number): signal.getsignal(number) for number in SIGNALS}
    installed: list[int] = []
    handled = before[signal.SIGINT] in (signal.default_int_handler, signal.SIG_IGN)
    try:
        try:
            if handled and threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    # Other signals use the handler of Ctrl-C: install it even if that is ignored.
                    if number == signal.SIGINT or handler == signal.SIG_DFL:
                        installed.append(number)
                        signal.signal(number, note if number == signal.SIGINT else as_ctrl_c)
            status = run()
            return end() if came else status
        except BaseException as error:
            # A library that is interrupted may raise an error of its own.
            if came or isinstance(error, KeyboardInterrupt):
                return end()
            return _explained(error)
    except _Interrupted:  # a second signal, while the first was handled
        return end()
    finally:
        for number in installed:
            signal.signal(number, before[number])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status."""
    return interruptible(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    # Amaranth warns about unused components when a command is interrupted.
    warnings.filterwarnings("ignore", ".* created but never used")
    words = [*(sys.argv[1:] if argv is None else argv)]
    if words and words[0] in RENAMED:
        raise Refusal(f"{words[0]} is now {RENAMED[words[0]]}: give that")
    has_word = words[1:] and (not words[1].startswith("-") or words[1] in ("--help", "-h"))
    if words and words[0] in DEFAULTS and not has_word:
        words.insert(1, DEFAULTS[words[0]])
    status = application(words)(words or ["--help"])
    sys.stdout.flush()  # report a failed write here, not when the program exits
    return status or 0  # None of --help


def _explained(error: BaseException) -> int:
    """Print what is wrong and return the exit status; raise unexpected errors again."""
    from sw_driver.simulator.runtime import BuildError

    match error:
        case RepeatArgumentError(token=token):
            value = f", the second time as {token.value!r}" if token.value else ""
            _complain(Refusal(f"{token.keyword} is given twice{value}: give it once"))
            return 2
        case CycloptsError():
            command = " ".join(["nearmem", *(error.command_chain or ())])
            _complain(Refusal(f"{error} ('{command} --help' lists what is possible)"))
            return 2
        case Refusal() | InvalidArgumentError():
            _complain(error)
            return 2
        case Failure() | BuildError():
            _complain(error)
            return 1
        case OSError(filename=str() | bytes() | Path() as name):
            _complain(Refusal(f"{str(name)!r}: {error.strerror}"))
            return 2
        case OSError(errno=number) if number in _OF_WRITING:
            if number == errno.ENOSPC and disk_usage(gettempdir()).free < _LEAST_FREE_BYTES:
                _complain(
                    Refusal(
                        f"{gettempdir()!r}: {error.strerror}: make room there, or name another "
                        "folder for temporary files with TMPDIR"
                    )
                )
                return 2
            _drop_output(sys.stdout)
            if number == errno.EPIPE:  # the reader is gone
                return 1
            _complain(Refusal(f"standard output: {error.strerror}"))
            return 2
        case Exception():
            from sw_driver.experiments.settings import rule_mistake

            if (mistake := rule_mistake(error)) is not None:
                _complain(Refusal(mistake))
                return 2
    raise error


if __name__ == "__main__":
    sys.exit(main())
