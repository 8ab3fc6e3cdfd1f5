"""Subcommands of ``nearmem``, one module each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

__all__ = ["COMMANDS", "Failure", "Refusal", "integer", "output_file"]

COMMANDS = ("sim", "verilog", "registers", "bench")
"""Modules of this package that are subcommands, in the order of the help text.

They are imported to describe their options, so they import what is slow to load in ``run``.
"""


class Refusal(Exception):
    """Bad input. The message says the value, what was expected and what to do."""


class Failure(Exception):
    """The job failed, though what was asked for was fine."""


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An option's type: an integer of at least ``minimum`` and at most ``maximum``."""
    expected = f"an integer of at least {minimum}"
    if maximum is not None:
        expected = f"an integer from {minimum} to {maximum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return value

    return parse


def output_file(text: str) -> Path:
    """An option's type: a file that can be written."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, expected a file: add a name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is to be written in {str(path.parent)!r}, which is not a folder: create it"
        )
    return path
