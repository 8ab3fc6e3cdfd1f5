"""Proofs of properties: what the driver calls a failure, and in soak all proofs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hw_tests.formal.__main__ as driver
from hw_tests.formal import PROPERTIES, load_proofs
from hw_tests.mutants import ROOT

FILE = '''
from hw.stream.fifo import StreamFifo
from hw_tests.formal import Proof, twin

PROOFS = [
    Proof(
        name="tried",
        component=lambda: StreamFifo(shape=1, depth=2),
        text="""
  level_fits: assert property (level <= 2);
  filled: cover property (level == 2);
""",
        twins={
            "level_fits": twin(
                "hw/stream/fifo.py", "self.i.ready.eq(~full),", "self.i.ready.eq(1),"
            )
        },
    )
]
'''


@pytest.fixture
def tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that puts lines into a file of properties and runs the driver on it."""
    pytest.importorskip("pyosys", reason="pyosys is not installed (extra 'formal')")

    def run(old: str = "", new: str = "") -> tuple[int, str]:
        assert old in FILE
        (tmp_path / "tried.py").write_text(FILE.replace(old, new) if old else FILE)
        code = driver.main(["--folder", str(tmp_path), "--jobs", "1", "--no-twins"])
        return code, capsys.readouterr().out

    return run


def test_proof_and_cover(tried: Callable[..., tuple[int, str]]) -> None:
    code, out = tried()
    assert code == 0, out
    assert re.search(r"tried +[\d.]+ s  proven\n", out)
    assert re.search(r"tried filled +[\d.]+ s  reached in cycle 2\n", out)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("level <= 2", "level <= 1", "tried level_fits: reached in cycle"),
        ("level <= 2", "levels <= 2)(", "tried: does not compile: "),
        ("level <= 2", "dut.nothing", "tried: does not compile: "),
        ("StreamFifo(shape=1, depth=2)", "StreamFifo(depth=2)", "tried: does not compile: "),
        ("PROOFS = [", "PROOFS = [(", "tried: is no file of properties: SyntaxError"),
        ("cover property", "assert property", "tried: is no file of properties: ValueError"),
        (
            "  filled:",
            "  a: assume property (level < 2);\n  b: assume property (level == 2);\n  filled:",
            "tried filled: not reached, holds for 60 cycles",
        ),
        ("        twins", "        limit_s=0,\n        twins", "tried: timeout, more than 0 s"),
    ],
    ids=["claim", "text", "signal", "component", "syntax", "twin", "assumptions", "timeout"],
)
def test_failure_names_the_property(
    old: str, new: str, message: str, tried: Callable[..., tuple[int, str]]
) -> None:
    code, out = tried(old, new)
    assert code == 1, out
    assert f"\nFAILED {message}" in out


def test_missing_prover_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "find_spec", lambda _name: None)
    assert driver.main([]) == 2
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "'.[formal]'" in out


def test_page_lists_every_proof() -> None:
    page = (ROOT / "docs" / "formal.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert listed == [
        name for file in sorted(PROPERTIES.glob("*.py")) for name in load_proofs(file)
    ]


@pytest.mark.soak
@pytest.mark.parametrize("file", sorted(PROPERTIES.glob("*.py")), ids=lambda file: file.stem)
def test_proofs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyosys", reason="pyosys is not installed (extra 'formal')")
    code = driver.main(["--jobs", "1", *load_proofs(file)])
    assert code == 0, capsys.readouterr().out
