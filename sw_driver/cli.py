"""The command ``nearmem``.

Each subcommand is a module of :mod:`sw_driver.commands` with two functions:
``add_parser(subparsers)`` describes the options and names ``run`` as the default of ``run``;
``run(arguments)`` does the work and returns the exit status. Bad input is one line on stderr and
status 2, a job that failed is status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from .commands import COMMANDS, Failure, Parser, Refusal

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="nearmem", description="Near-memory training hardware, simulated.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        import_module(f".commands.{command}", __package__).add_parser(subparsers)
    return parser


def _complain(error: Exception) -> None:
    print(f"nearmem: {' '.join(str(error).split())}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
    try:
        arguments = _parser().parse_args(argv)
        return arguments.run(arguments)
    except Refusal as refusal:
        _complain(refusal)
        return 2
    except Failure as failure:
        _complain(failure)
        return 1
    except SystemExit as leaving:  # --help
        return leaving.code if isinstance(leaving.code, int) else 0
    except OSError as error:
        if error.filename is None:
            raise
        _complain(Refusal(f"{str(error.filename)!r}: {error.strerror}"))
        return 2
    except KeyboardInterrupt:
        print("nearmem: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
