"""Builds that are damaged or have no room: built again, or refused with what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sw_driver.cli import main
from sw_driver.simulator import buildcache
from sw_driver.simulator.buildcache import CacheError, cached_build
from sw_driver.simulator.library import cached_library
from sw_driver.simulator.runtime import BuildError, run_tool


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiled(code: str, said: list[str]) -> Path:
    """The library of a C source, as simulators are built and kept."""

    def build(folder: Path, _: object) -> None:
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libsmall.so")]
        subprocess.run(command, input=code, text=True, check=True)

    return cached_library(
        build, name="small", about="a library", sources=[], unused=["pim", "axdimm"],
        parameters=[code], announce=said.append,
    )  # fmt: skip


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a truncated library": ("libsmall.so", truncated),
    "an empty library": ("libsmall.so", lambda path: path.write_bytes(b"")),
    "no library": ("libsmall.so", Path.unlink),
    "garbage": ("libsmall.so", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "a folder": ("libsmall.so", lambda path: (path.unlink(), path.mkdir())),
    "an empty mark": (".done", lambda path: path.write_bytes(b"")),
    "a truncated mark": (".done", truncated),
    "a mark of other bytes": (".done", lambda path: path.write_bytes(b"\xff\xfe")),
    "no mark": (".done", Path.unlink),
    "a file": ("", lambda path: (shutil.rmtree(path), path.write_text("no folder"))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_build_is_built_again(damage: str) -> None:
    said: list[str] = []
    library = compiled("int f(void) { return 1; }", said)
    whole = library.read_bytes()
    assert compiled("int f(void) { return 1; }", said) == library
    assert len(said) == 2  # that it is built, and was: once
    name, break_ = DAMAGES[damage]
    break_(library.parent / name)
    assert compiled("int f(void) { return 1; }", said).read_bytes() == whole
    told = [text for text in said if "damaged" in text]
    assert told == (
        [f"a library was damaged in {library.parent}: building it again"]
        if (name or "mark" in damage) and damage != "no mark"
        else []
    )


def test_a_build_that_never_loads_names_the_way_out(cache: Path) -> None:
    said: list[str] = []
    for attempt in (1, 2):  # the second finds it as it was built, and tries again
        with pytest.raises(CacheError, match=r"undefined symbol: nowhere.*nearmem cache --clear"):
            compiled("int nowhere(void); int (*f)(void) = nowhere;", said)
        assert sum("building" in text for text in said) == (1, 3)[attempt - 1]
    assert main(["cache", "--clear", "--quiet"]) == 0
    assert not [path for path in cache.glob("*/*") if path.is_dir()]


def test_clearing_takes_what_failed_and_leaves_what_is_under_way(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "log").write_text("why")
        raise BuildError("failed")

    def clear(folder: Path) -> None:
        (folder / "half").touch()
        assert main(["cache", "--clear", "--quiet"]) == 0

    with pytest.raises(BuildError):
        cached_build("kind", "failed", fail)
    assert (cache / "kind" / "failed" / "log").exists()
    assert (cached_build("kind", "other", clear) / "half").exists()
    assert not (cache / "kind" / "failed").exists()


FULL = "fatal error: error writing to /tmp/cc.s: No space left on device"


def test_a_disk_that_fills_is_the_reason(cache: Path) -> None:
    def build(folder: Path) -> None:
        lines = f"echo '{FULL}'; echo 1; echo 2; echo 'make: *** [a.o] Error 1'; exit 2"
        run_tool(["sh", "-c", lines], folder)

    with pytest.raises(CacheError, match=re.escape(FULL)) as caught:
        cached_build("kind", "key", build)
    for words in ("100 MB", "MB are free there", "TMPDIR", "NEARMEM_CACHE_DIR"):
        assert words in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    assert not (cache / "kind" / "key").exists()


def test_a_disk_without_room_is_the_reason_though_nothing_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1 << 20)
    monkeypatch.setattr(buildcache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CacheError, match=r"No space left on device .*, 1 MB are free there"):
        cached_build("kind", "key", lambda folder: run_tool(["false"], folder))


def test_a_tool_that_fails_says_why() -> None:
    def build(folder: Path) -> None:
        lines = "echo 'x.cpp:1: error: no such thing'; for i in 1 2 3 4; do echo $i; done; exit 1"
        run_tool(["sh", "-c", lines], folder)

    with pytest.raises(BuildError, match=r"build\.log: x\.cpp:1: error: no such thing$"):
        cached_build("kind", "key", build)
