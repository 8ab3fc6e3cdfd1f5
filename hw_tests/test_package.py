"""The package elsewhere: the wheel beside what it says that it needs, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("hw", "golden", "sw_driver")
SECONDS = 300


def needed(name: str, extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """A distribution with these extras and all that it needs, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def visit(name: str, extras: Iterable[str]) -> None:
        found[name] = distribution(name)
        for extra in extras:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in found[name].requires or ():
                requirement = Requirement(text)
                if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                    visit(canonicalize_name(requirement.name), ["", *requirement.extras])

    visit(name, ["", *extras])
    return found


def test_constraints_name_all_that_is_needed() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    fixed = dict(line.split("==") for line in lines if not line.startswith("#"))
    names = {canonicalize_name(name) for name in fixed}
    assert len(names) == len(fixed)
    extras = ["dev", "cluster"]
    for extra, name in (("torch", "torch"), ("tools", "transformers")):
        with suppress(PackageNotFoundError):
            version(name)
            extras.append(extra)
    others = needed("nearmem", extras).keys() - names
    # PyTorch needs CUDA's libraries of certain versions itself, and does not everywhere.
    assert {name for name in others if not re.match("cuda|nvidia|triton", name)} == {"nearmem"}
    chosen = {canonicalize_name(name): number for name, number in fixed.items()}
    for text in distribution("nearmem").requires or ():
        requirement = Requirement(text)
        assert chosen[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what an earlier build has left would be in it, too."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "."]
    subprocess.run(command, cwd=folder, check=True, timeout=SECONDS)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    present = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".py", ".v", ".rdl", ".cpp", ".h"}
    names = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert present == {
        name.removeprefix("sw_driver/") if "/nearmem/" in name else name for name in names
    }


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel, and links to what it needs in this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name, found in needed("nearmem").items():
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops if name != "nearmem" else ():
            with suppress(FileExistsError):
                (packages / top).symlink_to(Path(str(found.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    for command in (install, ["check"]):
        subprocess.run([*pip, *command], cwd=folder, check=True, timeout=SECONDS)
    return folder / "bin"


def test_the_command_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def nearmem(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [installed / "nearmem", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    assert nearmem("--version").stdout == f"nearmem {version('nearmem')}\n"
    done = nearmem("sim", "--backend", "golden", "--steps", "2")
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    assert (tmp_path / "build" / "sim" / "report.json").exists()


@pytest.mark.parametrize("hidden", ["", "golden.py", "hw/__init__.py", "hw/board.v"])
def test_the_public_names_come_from_the_wheel(hidden: str, installed: Path, tmp_path: Path) -> None:
    """A module of the user's beside his program may have the name of a package of ours."""
    program = tmp_path / "program.py"
    program.write_text(
        "import nearmem, nearmem.errors\n"
        "with nearmem.Axdimm('golden') as device:\n"
        "    print(nearmem.__version__, device.channels)\n"
    )
    if hidden:
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).touch()
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed / "python", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if not hidden.endswith(".py"):
        assert done.stdout == f"{version('nearmem')} 2\n", done.stderr
        return
    said = done.stderr.splitlines()[-1]
    name = hidden.partition("/")[0]
    assert said.startswith("ImportError")
    assert str(tmp_path / name) in said
    assert "rename" in said
