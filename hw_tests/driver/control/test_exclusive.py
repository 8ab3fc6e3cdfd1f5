"""Exclusive opening: races, crashes, forks, stale files, and what names mean."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sw_driver.control import exclusive
from sw_driver.control.exclusive import (
    DeviceLock,
    DeviceName,
    RuntimeDirectoryError,
    open_devices,
    parse_device,
    runtime_directory,
    socket_path,
)
from sw_driver.errors import DeviceInUseError, NoSuchDeviceError

NAMED = DeviceName(backend="golden", preset="tiny", name="axdimm0")
WAIT_S = 60


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime directory, of this test alone."""
    path = tmp_path / "run"
    monkeypatch.setenv("NEARMEM_RUNTIME_DIR", str(path))
    monkeypatch.delenv("NEARMEM_BACKEND", raising=False)
    return path


@contextmanager
def program(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``source``, with the names of the module; killed at the end."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from sw_driver.control.exclusive import *\nfrom sw_driver.errors import *\n"
            + textwrap.dedent(source),
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


HOLDER = """
    lock = DeviceLock(parse_device("golden:tiny@axdimm0"))
    print("held", flush=True)
    input()
"""

RACER = """
    import os, sys
    for _ in sys.stdin:
        try:
            lock = DeviceLock(parse_device("golden@axdimm0"))
            print("won", os.getpid(), flush=True)
        except DeviceInUseError as error:
            print("lost", error.details["pid"], flush=True)
        sys.stdin.readline()
        if "lock" in globals():
            lock.release()
            del lock
        print("ready", flush=True)
"""

# Claims and releases as fast as it can. Whoever has the claim makes a file that must not be there.
GREEDY = """
    import os, sys
    marker, wins = sys.argv[1], 0
    while wins < int(sys.argv[2]):
        try:
            with DeviceLock(parse_device("golden@axdimm0")):
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                os.unlink(marker)
                wins += 1
        except DeviceInUseError:
            pass
    print(wins)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rtl", ("rtl", None, None)),
        ("golden:tiny", ("golden", "tiny", None)),
        ("cycles@axdimm0", ("cycles", None, "axdimm0")),
        ("rtl:tiny@a.b-c_D9", ("rtl", "tiny", "a.b-c_D9")),
        ("/dev/axdimm0", ("rtl", None, "axdimm0")),
        ("@axdimm0", ("rtl", None, "axdimm0")),
        ("rtl@" + "n" * 64, ("rtl", None, "n" * 64)),
    ],
)
def test_what_names_mean(text: str, expected: tuple[Any, ...]) -> None:
    device = parse_device(text)
    assert (device.backend, device.preset, device.name) == expected
    assert parse_device(str(device)) == device


def test_the_environment_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMEM_BACKEND", "cycles:tiny")
    device = parse_device("/dev/axdimm0")
    assert (str(device), device.model) == ("cycles:tiny@axdimm0", "cycles:tiny")
    assert parse_device("golden") == DeviceName(backend="golden")
    for bad in ("rtl@other", ":tiny", "rtl:"):
        monkeypatch.setenv("NEARMEM_BACKEND", bad)
        with pytest.raises(NoSuchDeviceError, match=rf"NEARMEM_BACKEND, '{bad}'"):
            parse_device("/dev/axdimm0")


@pytest.mark.parametrize(
    "text",
    [
        *("", "golden:", ":tiny", "rtl@", "/dev/", "/dev/a/b", "rtl@a b", "rtl@../x", "a@b@c"),
        *("rtl@" + "n" * 65, "rtl@ä", "rtl@a\n", None, 3),
    ],
)
def test_names_that_are_none(text: Any) -> None:
    with pytest.raises(NoSuchDeviceError):
        parse_device(text)


def test_a_device_is_open_once(directory: Path) -> None:
    with DeviceLock(NAMED) as lock:
        assert lock.held
        assert lock.entry.name == "axdimm0"
        assert json.loads((directory / "axdimm0.lock").read_text()) == {
            "name": "axdimm0",
            "pid": os.getpid(),
            "device": "golden:tiny@axdimm0",
            "backend": "golden",
            "preset": "tiny",
            "program": lock.entry.program,
            "started": lock.entry.started,
        }
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", lock.entry.started)
        with pytest.raises(DeviceInUseError, match=rf"'axdimm0' .* {os.getpid()} ") as refused:
            DeviceLock(parse_device("/dev/axdimm0"))
        assert refused.value.details["pid"] == os.getpid()
        assert refused.value.details["program"] == lock.entry.program
        with DeviceLock(DeviceName(backend="golden", name="axdimm1")):
            assert [entry.name for entry in open_devices()] == ["axdimm0", "axdimm1"]
        assert open_devices() == [lock.entry]
    assert not lock.held
    assert list(directory.iterdir()) == []
    lock.release()
    with DeviceLock(NAMED):
        lock.release()
        assert len(open_devices()) == 1


def test_another_process_is_refused_and_named() -> None:
    with program(HOLDER) as holder:
        assert line(holder) == "held"
        with pytest.raises(DeviceInUseError, match=rf"{holder.pid} \(python\)") as refused:
            DeviceLock(NAMED)
        assert refused.value.details["pid"] == holder.pid
        assert [entry.pid for entry in open_devices()] == [holder.pid]
        tell(holder, "")
        assert holder.wait(WAIT_S) == 0
    # It ended without a release.
    DeviceLock(NAMED).release()


def test_a_killed_process_releases_its_device(directory: Path) -> None:
    for claim_first in (True, False):
        with program(HOLDER) as holder:
            assert line(holder) == "held"
            (directory / "axdimm0.sock").touch()
            holder.send_signal(signal.SIGKILL)
            assert holder.wait(WAIT_S) == -signal.SIGKILL
        assert sorted(path.name for path in directory.iterdir()) == ["axdimm0.lock", "axdimm0.sock"]
        if claim_first:
            with DeviceLock(NAMED) as lock:
                assert open_devices() == [lock.entry]
        else:
            assert open_devices() == []
        assert list(directory.iterdir()) == []


def test_one_of_several_that_start_at_once_wins() -> None:
    with program(RACER) as one, program(RACER) as other, program(RACER) as third:
        racers = (one, other, third)
        for _ in range(10):
            for racer in racers:
                tell(racer, "go")
            told = [line(racer).split() for racer in racers]
            winners = [
                racer for racer, (outcome, _) in zip(racers, told, strict=True) if outcome == "won"
            ]
            assert len(winners) == 1, told
            # The others were told by whom they were beaten.
            assert {int(pid) for _, pid in told} == {winners[0].pid}
            for racer in racers:
                tell(racer, "next")
            assert [line(racer) for racer in racers] == ["ready"] * 3


def test_two_never_have_it_however_fast_it_changes_hands(tmp_path: Path) -> None:
    wins = "50"
    arguments = (str(tmp_path / "marker"), wins)
    with program(GREEDY, *arguments) as one, program(GREEDY, *arguments) as other:
        ends = [process.communicate(timeout=WAIT_S)[0] for process in (one, other)]
    assert [end.strip() for end in ends] == [wins, wins]


def test_a_forked_process_neither_keeps_nor_releases_the_device() -> None:
    source = """
        import os, sys, time
        lock = DeviceLock(parse_device("golden@axdimm0"))
        child = os.fork()
        if child == 0:
            held = lock.held
            lock.release()
            try:
                DeviceLock(parse_device("golden@axdimm0"))
            except DeviceInUseError as error:
                outcome = error.details["pid"] == os.getppid()
                os.write(1, f"child {held} {outcome}\\n".encode())
            if sys.argv[1] == "ends":
                sys.exit()
            sys.stdin.readline()
            os._exit(0)
        if sys.argv[1] == "ends":
            os.waitpid(child, 0)
        else:
            os.write(1, b"parent\\n")
            time.sleep(60)
        print(lock.held, flush=True)
        sys.stdin.readline()
    """
    with program(source, "ends") as parent:
        assert line(parent) == "child False True"
        assert line(parent) == "True"
        with pytest.raises(DeviceInUseError):
            DeviceLock(NAMED)
    with program(source, "stays") as parent:
        assert {line(parent) for _ in range(2)} == {"child False True", "parent"}
        with pytest.raises(DeviceInUseError):
            DeviceLock(NAMED)
        parent.send_signal(signal.SIGKILL)
        assert parent.wait(WAIT_S) == -signal.SIGKILL
        # The child lives, and has the claim no more than its parent.
        with DeviceLock(NAMED) as lock:
            assert open_devices() == [lock.entry]
        tell(parent, "")


def test_a_forgotten_lock_is_released(directory: Path) -> None:
    lock = DeviceLock(NAMED)
    del lock
    gc.collect()
    assert open_devices() == []
    assert list(directory.iterdir()) == []
    DeviceLock(NAMED).release()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_holder_that_does_not_say_who_it_is(directory: Path, content: str) -> None:
    with DeviceLock(NAMED):
        (directory / "axdimm0.lock").write_text(content)
        with pytest.raises(DeviceInUseError, match=r"not said .*axdimm0\.lock"):
            DeviceLock(NAMED)
        assert open_devices() == []


def test_devices_without_a_name_are_listed() -> None:
    device = parse_device("golden:tiny")
    with DeviceLock(device) as one, DeviceLock(device) as other:
        names = {one.entry.name, other.entry.name}
        assert len(names) == 2
        assert {entry.name for entry in open_devices()} == names
        for lock in (one, other):
            assert re.fullmatch(rf"golden-{os.getpid()}-\d+", lock.entry.name)
            assert lock.held
            assert lock.entry.device == "golden:tiny"


def _writable_by_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _writable_by_group(path: Path) -> None:
    path.mkdir()
    path.chmod(0o720)


def _link(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_writable_by_others, "777"),
        (_writable_by_group, "720"),
        (_link, "symbolic link"),
        (Path.touch, "exists"),
        (lambda path: path.symlink_to("/nowhere"), "exists"),
    ],
)
def test_a_directory_that_cannot_be_trusted(
    directory: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(directory)
    for use in (lambda: DeviceLock(NAMED), open_devices, lambda: socket_path("axdimm0")):
        with pytest.raises(RuntimeDirectoryError, match=said) as refused:
            use()
        assert "NEARMEM_RUNTIME_DIR" in str(refused.value)
        assert refused.value.details["path"] == str(directory)
    with DeviceLock(parse_device("golden")) as lock:
        assert lock.path is None
        assert not lock.held
        assert lock.entry.name.startswith(f"golden-{os.getpid()}-")
    assert not directory.is_dir() or list(directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(RuntimeDirectoryError, match="12345"):
        DeviceLock(NAMED)


@pytest.mark.parametrize("there", [False, True])
def test_a_directory_that_cannot_be_written(directory: Path, there: bool) -> None:
    directory.mkdir()
    if there:
        # Not even root opens a folder as a file.
        (directory / "axdimm0.lock").mkdir()
    else:
        (directory / "axdimm0.lock").symlink_to(directory / "other")
    with pytest.raises(RuntimeDirectoryError, match=r"axdimm0\.lock"):
        DeviceLock(NAMED)
    assert open_devices() == []
    assert not (directory / "other").exists()


def test_the_directory_is_the_users_alone(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    umask = os.umask(0)
    try:
        assert runtime_directory() == directory
        with DeviceLock(NAMED):
            assert (directory / "axdimm0.lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)
    assert directory.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("NEARMEM_RUNTIME_DIR", "")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_directory() == tmp_path / "nearmem"
    assert socket_path("a.b") == tmp_path / "nearmem" / "a.b.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(Path, "mkdir", lambda *arguments, **options: None)
    monkeypatch.setattr(Path, "lstat", lambda path: directory.stat())
    assert runtime_directory() == Path(f"/tmp/nearmem-{os.geteuid()}")


def test_threads_of_one_process_race(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(8)
    locks: list[DeviceLock] = []

    def claim() -> None:
        barrier.wait(WAIT_S)
        try:
            locks.append(DeviceLock(NAMED))
            outcomes.append("won")
        except DeviceInUseError:
            outcomes.append("lost")

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    locks[0].release()


def test_a_made_up_name_that_somebody_took(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = f"golden-{os.getpid()}-7"
    monkeypatch.setattr(exclusive, "_unnamed_numbers", iter([7]))
    with (
        DeviceLock(DeviceName(backend="golden", name=taken)) as named,
        DeviceLock(parse_device("golden")) as lock,
    ):
        assert lock.path is None
        assert open_devices() == [named.entry]
