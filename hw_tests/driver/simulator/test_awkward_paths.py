"""Paths of the clone, the environment and the builds that make, Perl and the shell do not take."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hw_tests.soak import for_soak
from sw_driver.simulator.buildcache import CacheError, plain_path, verilator_env
from sw_driver.simulator.sources import ROOT

NAME = 'it\'s a $HOME (1) #2; "&" \\ : 100%'


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / NAME
    folder.mkdir()
    for name in ("hw", "golden", "sw_driver", "hw_tests", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    # Perl looks behind links, and this one is found before the environment's.
    shutil.copytree(verilator_env()["VERILATOR_ROOT"], folder / "verilator")
    return folder


def python(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NEARMEM_CACHE_DIR": str(clone / "ca che")}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [clone / ".venv" / "bin" / "python", *arguments],
        cwd=clone, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "program",
    [
        *for_soak(["-m", "sw_driver.cli", "sim", "--config", "tiny", "--steps", "1", "--quiet"]),
        ["-c", "from hw_tests.driver.simulator.test_parts import build_ring; build_ring()"],
    ],
    ids=["whole", "in parts"],
)
def test_simulators_are_built(clone: Path, program: list[str]) -> None:
    result = python(clone, *program)
    assert result.returncode == 0, result.stderr
    assert [*(clone / "ca che").glob("rtl/*/*.so")]


def test_the_tests_refuse_what_cocotb_does_not_take(clone: Path) -> None:
    result = python(clone, "-m", "pytest", "hw_tests/test_rooms.py")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "cocotb's makefiles do not take it" in result.stderr


def test_a_link_is_as_plain_as_it_has_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert plain_path(Path("/opt/a-b_c.d/e+1")) == Path("/opt/a-b_c.d/e+1")
    assert not [*tmp_path.iterdir()]
    for character in " \t\n'\"$#:;&()%\\~=é":
        there = tmp_path / f"a{character}b"
        there.mkdir()
        (there / "file").write_text(character)
        plain = plain_path(there)
        assert plain == plain_path(there)
        assert set(plain.name) <= set("0123456789abcdef")
        assert (plain / "file").read_text() == character
    (links,) = tmp_path.glob("nearmem-*")
    links.chmod(0o777)  # another user may put links there
    with pytest.raises(CacheError, match=r"make does not take the path '/a b'; use one without"):
        plain_path(Path("/a b"))
