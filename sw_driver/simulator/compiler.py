"""The host's C++ compiler, for code that is compiled for this very machine."""

from __future__ import annotations

import subprocess

__all__ = ["COMPILER", "CompilerError", "native_target", "run_compiler"]

COMPILER = "g++"


class CompilerError(RuntimeError):
    """The compiler is not there, or refused what it was given."""


def run_compiler(arguments: list[str]) -> str:
    """Runs the compiler and returns what it prints. Raises :class:`CompilerError`."""
    try:
        done = subprocess.run(
            [COMPILER, *arguments], capture_output=True, text=True, check=True, errors="replace"
        )
    except FileNotFoundError as error:
        raise CompilerError(f"{COMPILER!r} was not found: install the C++ compiler") from error
    except subprocess.CalledProcessError as error:
        tail = " | ".join(error.stderr.strip().splitlines()[-3:])
        raise CompilerError(f"{COMPILER} failed: {tail}") from error
    return done.stdout


def native_target() -> str:
    """What ``-march=native`` stands for here, as a part of a build's key.

    The compiler's predefined macros name its version and every extension of the instruction set
    that it would use; the options it passes on name the processor that it schedules for.
    """
    macros = run_compiler(["-march=native", "-dM", "-E", "-x", "c++", "/dev/null"])
    target = run_compiler(["-march=native", "-Q", "--help=target"])
    tuned = [line for line in target.splitlines() if line.split()[:1] in (["-march="], ["-mtune="])]
    return "\n".join([macros, *tuned])
