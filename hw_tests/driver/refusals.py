"""How the command line refuses: with one line that says why, status 2, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sw_driver.cli import main

__all__ = ["assert_refused"]


def assert_refused(
    capsys: pytest.CaptureFixture[str], arguments: Iterable[str], said: Iterable[str]
) -> None:
    """``nearmem`` with ``arguments`` must be refused in words that contain each of ``said``."""
    assert main(list(arguments)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nearmem: ")
    assert output.err.count("\n") == 1
    for words in said:
        assert words in output.err
