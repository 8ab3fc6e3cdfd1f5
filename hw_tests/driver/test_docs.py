"""The driver's documentation: its examples run, its table of exceptions is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sw_driver import errors

TEXT = (Path(__file__).parents[2] / "docs" / "driver.md").read_text()


def test_examples_print_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(code, "docs/driver.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert f"prints `{first}`" in TEXT
    assert second == "0x4e445841 16"


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"AxdimmError"}))
def test_exceptions_are_listed(name: str) -> None:
    assert f"`{name}`" in TEXT.partition("## Exceptions")[2]
