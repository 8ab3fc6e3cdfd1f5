"""Terminals of several widths: no number, name or word is cut or broken."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from sw_driver.cli import main
from sw_driver.commands.screen import in_lines, print_table
from sw_driver.report import Table

STYLES = re.compile(r"\x1b\[[0-9;]*m")
BOXES = re.compile(r"[\s\u2500-\u257f]+")

COMMANDS = {
    "sweep": "sweep --backend cycles --config tiny --axis lanes=1,2 --axis stagger=true,false "
    "--axis queue_depth=16,32 --count 4096 --out .",
    "rules": "rules adam lion sgd --count 4096",
    "layer": "pim --config tiny --backend cycles --convolution 2,3,9,9 --filters 4,3,3",
    "reproduce": "reproduce mc-dla table4",
    "config": "config",
    "workload": "workload gpt-tiny",
    "compare": "compare gpt-tiny",
    "plan memferry": "plan memferry gpt-tiny",
    "plan sentinel": "plan sentinel gpt-tiny",
    "plan hetero-pim": "plan hetero-pim gpt-tiny",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_words_are_whole(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = command.split()
    assert main(arguments) == 0
    expected = set(BOXES.split(capsys.readouterr().out))
    monkeypatch.setenv("TERM", "xterm")
    for width in (40, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = Terminal()
        monkeypatch.setattr(sys, "stdout", shown)
        assert main(arguments) == 0
        text = STYLES.sub("", shown.getvalue())
        assert expected <= set(BOXES.split(text)), width
        widest = max(len(line.rstrip()) for line in text.splitlines())
        assert width < 60 or widest <= width


@pytest.mark.parametrize("width", [12, 20, 30, 60])
def test_a_number_keeps_its_unit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    row = ["some words that may be broken", "861.34 MP/s", "4,467,400 (94.3%)"]
    table = Table(headings=["what", "a", "b"], rows=[row])
    print_table(table)
    assert "861.34 MP/s" in shown.getvalue()
    assert "4,467,400 (94.3%)" in shown.getvalue()


@pytest.mark.parametrize("names", [("alone", "both"), ("both", "both")])
def test_a_list_is_for_a_row_unless_rows_have_names(
    names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[name, "1", "2"] for name in names]
    print_table(Table(headings=["", "reads", "writes"], rows=rows), 8)
    first = capsys.readouterr().out.split()[:4]
    assert first == (
        ["reads", "alone", "1", "both"] if names[0] == "alone" else ["both", "reads", "1", "writes"]
    )


def test_a_path_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a-long/path/" + "folder/" * 12
    lines = in_lines(f"what is in {path} was measured before, as asked for", Terminal())
    assert lines.splitlines() == ["what is in", path, "was measured before, as asked for"]
