"""The list of mutants: each one changes one line that is there, and names a test that exists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hw_tests.mutants import ROOT, Mutant, load_mutants
from hw_tests.mutants.__main__ import main

MUTANTS = load_mutants()


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_line_is_there_once_and_still_python(mutant: Mutant, tmp_path: Path) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutant.file).read_text())
    mutant.apply(tmp_path)
    assert copy.read_text() != (ROOT / mutant.file).read_text()
    if copy.suffix == ".py":
        compile(copy.read_text(), mutant.file, "exec")
    test, _, _ = mutant.test.partition("[")
    file, _, function = test.partition("::")
    assert f"def {function.rpartition('::')[2]}(" in (ROOT / file).read_text()


def test_line_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for line, count in (("x = 1", 2), ("y = 1", 0)):
        mutant = Mutant(name="a/b", file="a.py", line=line, becomes="x = 2", test="a.py::test")
        with pytest.raises(ValueError, match=f"stands {count} times in a.py, expected once"):
            mutant.apply(tmp_path)


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["nonsense"])
    assert exit_info.value.code == 2
    assert "no mutant is named 'nonsense': areas are " in capsys.readouterr().err
