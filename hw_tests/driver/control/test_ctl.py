"""`nearmem ctl` and the control service: every action on another process's device, and abuse."""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import pairwise
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hw.axdimm.registers import arbiter_map
from hw.csr.register_map import Field, Register
from hw.kernel.registers import kernel_map
from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.refusals import assert_refused
from sw_driver import errors
from sw_driver.axdimm import Axdimm, CopiedBytes
from sw_driver.axdimm import register_access as registers
from sw_driver.axdimm.control import COUNTERS
from sw_driver.axdimm.register_access import find_register, write_register
from sw_driver.cli import main
from sw_driver.control import (
    AddressError,
    ControlError,
    Controlled,
    NoSuchRegisterError,
    RegisterAccessError,
)
from sw_driver.control.client import CHUNK_BYTES, connect
from sw_driver.control.exclusive import DeviceLock, open_devices, parse_device, socket_path
from sw_driver.control.protocol import REQUEST_LIMIT_BYTES
from sw_driver.control.server import ControlServer
from sw_driver.errors import (
    AxdimmError,
    BusyError,
    ClosedError,
)
from sw_driver.transport import DeviceFault, DeviceTimeout

WAIT_S = 60
CAPACITY = 1 << 20
"""Of a channel of the preset ``tiny``."""
MEMORY_END = CAPACITY - 2 * 4096

LIVE = """
    import sys
    import numpy as np
    from sw_driver.axdimm import Axdimm

    opened = [Axdimm(text) for text in sys.argv[1:]]
    print("open", flush=True)
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
    for device in opened:
        device.close()
    print("closed", flush=True)
    sys.stdin.close()
"""
"""Opens devices, and carries out what it is told."""

PLAIN = """
    import os, sys
    from sw_driver.control.server import ControlServer
    from sw_driver.control.exclusive import DeviceLock, parse_device

    class Device:
        def describe(self):
            return {"channels": 1, "timed": False}

        def channel_state(self, channel):
            return dict.fromkeys(
                ("channel", "draining", "kernel_busy", "fabric_cycles"), 0
            ) | {"mode": "normal", "operation": None} | dict.fromkeys(
                ("queued", "copied_bytes", "counters"), {}
            )

    device = Device()
    lock = DeviceLock(parse_device("golden@axdimm0"))
    server = ControlServer(device, lock)
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            server.close()
            del device, server, lock
            sys.exit()
        os.waitpid(child, 0)
    print("open", flush=True)
    sys.stdin.read()
    server.close()
    lock.release()
    print("closed", flush=True)
"""
"""A device that is quick to open and has nothing to tell."""


@dataclass
class Live:
    """A process that has devices open."""

    process: subprocess.Popen[str]
    directory: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, text: str) -> None:
        """Has the process carry out a line of Python; the devices are ``opened``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.readline() == "closed\n"
        assert self.process.wait(WAIT_S) == 0


@contextmanager
def short_directory() -> Iterator[Path]:
    """A folder whose path leaves room for that of a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="nearmem-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def living(directory: Path, *arguments: str, source: str = LIVE) -> Iterator[Live]:
    """A process that runs ``source``; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env={**os.environ, "NEARMEM_RUNTIME_DIR": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield Live(process, directory)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def two_devices() -> Iterator[Live]:
    """A process with the devices ``axdimm0``, without a clock, and ``timed``."""
    with (
        short_directory() as folder,
        living(folder, "golden:tiny@axdimm0", "cycles:tiny@timed") as live,
    ):
        yield live


@pytest.fixture
def live(two_devices: Live, monkeypatch: pytest.MonkeyPatch) -> Live:
    monkeypatch.setenv("NEARMEM_RUNTIME_DIR", str(two_devices.directory))
    return two_devices


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty runtime directory."""
    with short_directory() as folder:
        monkeypatch.setenv("NEARMEM_RUNTIME_DIR", str(folder))
        yield folder


def ctl(*words: str) -> int:
    return main(["ctl", *words])


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What ``nearmem ctl ... --json`` prints."""
    assert ctl(*words, "--json") == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert ctl(*words) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def assert_fails(capsys: pytest.CaptureFixture[str], words: list[str], said: list[str]) -> None:
    """``nearmem ctl`` must fail with status 1 and one line."""
    assert ctl(*words) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nearmem: ")
    assert output.err.count("\n") == 1
    for part in said:
        assert part in output.err


# The actions, on devices of another process.


def test_list(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "list")
    assert [
        (row["name"], row["pid"], row["device"], row["channels"], row["modes"], row["running"])
        for row in rows
    ] == [
        ("axdimm0", live.pid, "golden:tiny@axdimm0", 2, ["normal"] * 2, [False] * 2),
        ("timed", live.pid, "cycles:tiny@timed", 2, ["normal"] * 2, [False] * 2),
    ]
    table = printed(capsys, "list")
    for word in ("axdimm0", "timed", str(live.pid), "python", "normal, normal", "no, no"):
        assert word in table
    assert ctl("list", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_info(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    about = answer(capsys, "info", "timed")
    assert about == about | {
        "name": "timed",
        "pid": live.pid,
        "program": "python",
        "device": "cycles:tiny@timed",
        "backend": "cycles",
        "preset": "tiny",
        "channels": 2,
        "capacity_bytes": CAPACITY,
        "fabric_mhz": 200.0,
        "timed": True,
        "stand_ins": [],
    }
    assert about["configuration"]["lanes"] == 2
    assert len(about["fabric_cycles"]) == 2
    assert min(about["fabric_cycles"]) > 0
    table = printed(capsys, "info", "/dev/timed")
    for word in ("1,048,576", "fabric cycles", "tiny", str(live.pid)):
        assert word in table
    assert "untimed" in printed(capsys, "info", "golden@axdimm0")


def test_registers(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    maps = {"arbiter": arbiter_map(), "kernel": kernel_map()}
    rows = answer(capsys, "registers", "axdimm0")
    expected = [
        (channel, window, register.name, register.offset_bytes)
        for channel in (0, 1)
        for window, registers in maps.items()
        for register in registers.registers
    ]
    assert [(r["channel"], r["window"], r["name"], r["offset"]) for r in rows] == expected
    by_name = {f"{row['window']}.{row['name']}": row for row in rows if row["channel"] == 1}
    assert by_name["arbiter.id"]["value"] == 0x0002_4E44_5841
    assert by_name["arbiter.id"]["fields"] == {"magic": 0x4E445841, "version": 2}
    assert by_name["arbiter.capacity"]["fields"] == {"capacity_bytes": CAPACITY}
    assert by_name["arbiter.status"]["fields"] == {
        "mode": "normal",
        "draining": 0,
        "kernel_busy": 0,
    }
    for name, row in by_name.items():
        if name.startswith("kernel."):
            assert row["value"] is None
            assert row["fields"] == {}
            assert "acceleration" in row["note"]
        else:
            assert row["note"] == ""

    rows = answer(capsys, "registers", "axdimm0", "--channel", "1", "status", "id.magic")
    assert [(row["window"], row["name"]) for row in rows] == [
        ("arbiter", "status"),
        ("kernel", "status"),
        ("arbiter", "id"),
    ]
    assert rows[2]["fields"] == {"magic": 0x4E445841}
    table = printed(capsys, "registers", "--channel", "0", "axdimm0", "arbiter.id", "kernel.lr")
    assert "Channel 0" in table
    assert "Channel 1" not in table
    for word in ("arbiter.id", "0x24e445841", "version = 2", "acceleration mode only"):
        assert word in table


def test_mode(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    def modes() -> list[str]:
        return [row["mode"] for row in answer(capsys, "mode", "axdimm0")]

    assert modes() == ["normal", "normal"]
    rows = answer(capsys, "mode", "axdimm0", "--channel", "1", "--set", "acceleration")
    assert rows == [{"channel": 1, "mode": "acceleration", "draining": False, "kernel_busy": False}]
    assert modes() == ["normal", "acceleration"]
    table = printed(capsys, "registers", "axdimm0", "--channel", "1", "kernel.status", "control")
    assert "cause = none" in table
    assert "only be written" in table
    assert "acceleration" in printed(capsys, "mode", "axdimm0", "--set", "acceleration")
    assert modes() == ["acceleration"] * 2
    # The register of the mode is the mode.
    assert ctl("set", "axdimm0", "1", "arbiter.mode", "normal") == 0
    assert ctl("set", "axdimm0", "0", "arbiter.mode.mode", "0", "--quiet") == 0
    capsys.readouterr()
    assert modes() == ["normal", "normal"]


@pytest.mark.parametrize("backdoor", [[], ["--backdoor"]], ids=["link", "backdoor"])
def test_poke_and_peek(
    live: Live, capsys: pytest.CaptureFixture[str], tmp_path: Path, backdoor: list[str]
) -> None:
    def poke(*words: str) -> None:
        assert ctl("poke", "axdimm0", "1", *words, "--quiet", *backdoor) == 0
        assert capsys.readouterr() == ("", "")

    def peek(*words: str) -> Any:
        return answer(capsys, "peek", "axdimm0", "1", *words, *backdoor)

    poke("0x1000", "00" * 256)
    # Unaligned, over the border of a line.
    poke("0x103d", "0102", "0304", "0x05")
    expected = bytearray(256)
    expected[0x3D:0x42] = bytes((1, 2, 3, 4, 5))
    assert bytes.fromhex(peek("4KiB", "256")["data"]) == expected
    assert peek("0x103e", "3")["data"] == "020304"

    poke("0x1000", "1", "0xffffffff", "--format", "u32")
    poke("0x1008", "1.5", "-2", "inf", "-0.0", "nan", "1e-3", "--format", "f32")
    assert peek("4096", "8", "--format", "u32")["values"] == [1, 0xFFFFFFFF]
    values = peek("0x1008", "24", "--format", "f32")["values"]
    assert values == [1.5, -2.0, "inf", 0.0, "nan", float(np.float32(1e-3))]
    assert str(values[3]) == "-0.0"
    data = struct.pack("<2I6f", 1, 0xFFFFFFFF, 1.5, -2, np.inf, -0.0, np.nan, 1e-3)
    assert bytes.fromhex(peek("4096", "32")["data"]) == data

    # As text.
    words = ["peek", "axdimm0", "1", "0x1000", *backdoor]
    lines = printed(capsys, *words, "20").splitlines()
    assert [line.split()[0] for line in lines] == ["0x0000001000", "0x0000001010"]
    assert lines[0].split()[1:17] == [f"{byte:02x}" for byte in data[:16]]
    assert "4294967295" in printed(capsys, *words, "8", "--format", "u32")
    assert printed(capsys, *words, "16", "--format", "f32").split()[3:] == ["1.5", "-2"]

    # As files, of more than one request.
    big = np.random.default_rng(1).bytes(CHUNK_BYTES + 12345)
    (tmp_path / "in").write_bytes(big)
    poke("0x1001", str(tmp_path / "in"), "--format", "raw")
    out = tmp_path / "out"
    words = ["peek", "axdimm0", "1", "0x1001", str(len(big)), "--format", "raw"]
    assert printed(capsys, *words, "--output", str(out), *backdoor) == ""
    assert out.read_bytes() == big


def test_the_end_of_the_memory(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl("poke", "axdimm0", "0", hex(MEMORY_END - 1), "a5") == 0
    assert "Wrote 1 bytes" in capsys.readouterr().out
    assert answer(capsys, "peek", "axdimm0", "0", hex(MEMORY_END - 2), "2")["data"] == "00a5"
    for words in (["peek", hex(MEMORY_END - 1), "2"], ["poke", hex(MEMORY_END), "00"]):
        assert_refused(
            capsys,
            ["ctl", words[0], "axdimm0", "0", *words[1:]],
            [hex(MEMORY_END), "bytes at"],
        )
    # Nothing of what is refused was written.
    size = CHUNK_BYTES + 64
    start = MEMORY_END - size + 1
    before = answer(capsys, "peek", "axdimm0", "0", str(start), "64")["data"]
    device = connect(open_devices()[0])
    with pytest.raises(AddressError):
        device.poke(0, start, b"\x5a" * size)
    with pytest.raises(AddressError):
        device.peek(0, start, size)
    assert device.peek(0, start, 64).hex() == before


def test_counters(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    def counters() -> list[dict[str, int]]:
        rows = answer(capsys, "counters", "axdimm0")
        assert [row["channel"] for row in rows] == [0, 1]
        return [row["counters"] for row in rows]

    before = counters()
    assert set(before[0]) == set(COUNTERS)
    assert ctl("poke", "axdimm0", "1", "0", "00" * 640) == 0
    assert ctl("peek", "axdimm0", "1", "100", "100") == 0
    assert ctl("peek", "axdimm0", "1", "0", "4KiB", "--backdoor") == 0
    capsys.readouterr()
    after = counters()
    # Bytes 100 to 200 lie in three lines.
    changed = {"host_writes": 10, "host_reads": 3}
    for name in COUNTERS:
        assert after[0][name] == before[0][name]
        assert after[1][name] == before[1][name] + changed.get(name, 0)
    table = printed(capsys, "counters", "axdimm0", "--channel", "1")
    line = next(line for line in table.splitlines() if "host_writes" in line)
    assert line.split()[1] == f"{after[1]['host_writes']:,}"
    assert "channel 0" not in table


def test_allocations_and_copies(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "allocations", "axdimm0")["allocations"] == []
    before = answer(capsys, "counters", "axdimm0", "--channel", "1")[0]["copied_bytes"]
    live.tell("kept = [opened[0].MallocAxdimm(size, 1) for size in (100, 4096)]")
    live.tell("opened[0].MemcpyHost2Axdimm(kept[1], np.arange(25, dtype=np.float32), 100)")
    found = answer(capsys, "allocations", "axdimm0")
    assert [
        (row["memory"], row["channel"], row["nbytes"], row["users"]) for row in found["allocations"]
    ] == [("axdimm", 1, 100, 0), ("axdimm", 1, 4096, 0)]
    memory = [row for row in found["memory"] if row["memory"] == "axdimm"]
    assert [(row["channel"], row["allocations"]) for row in memory] == [(0, 0), (1, 2)]
    # Whole lines are handed out.
    assert memory[1]["total_bytes"] - memory[1]["free_bytes"] == 128 + 4096
    assert len(found["memory"]) == 2
    address = found["allocations"][1]["address"]
    words = ("peek", "axdimm0", "1", hex(address), "100", "--format", "f32")
    assert answer(capsys, *words)["values"] == list(range(25))
    after = answer(capsys, "counters", "axdimm0", "--channel", "1")[0]["copied_bytes"]
    # Also the ways that none has taken yet.
    assert set(after) == {field.name for field in fields(CopiedBytes)}
    assert after == before | {"link_to_device": before["link_to_device"] + 100}
    table = printed(capsys, "allocations", "axdimm0")
    assert ["axdimm", "1", hex(address), "4,096", "0"] in [
        line.split() for line in table.splitlines()
    ]
    live.tell("for pointer in kept: opened[0].FreeAxdimm(pointer)")
    assert answer(capsys, "allocations", "axdimm0")["allocations"] == []


def test_free_space_of_all_memories(
    directory: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Axdimm("golden:tiny@axdimm0") as device:
        for number, nbytes in enumerate((1 << 16, 1 << 17)):
            device.RegisterStorage(tmp_path / str(number), capacity_bytes=nbytes)
        device.MallocNvme(5000, 1)
        device.MallocHost(100)
        capacity = device.gpu.free_space()[0].total_bytes
        device.MallocGpu(1000)
        rows = answer(capsys, "allocations")["memory"]
        table = printed(capsys, "allocations")
    names = ("memory", "channel", "total_bytes", "free_bytes", "allocations")
    found = [tuple(row[name] for name in names) for row in rows]
    assert [row[:2] for row in found[:2]] == [("axdimm", 0), ("axdimm", 1)]
    assert ("nvme", 0, 1 << 16, 1 << 16, 0) in found
    assert ("nvme", 1, 1 << 17, (1 << 17) - 8192, 1) in found
    [gpu] = [row for row in found[2:] if row[0] != "nvme"]
    assert gpu[0].startswith("gpu")
    assert gpu[2] == capacity
    assert gpu[4] == 1
    if device.gpu.reason is not None:
        assert gpu[3] == capacity - 1000
    assert any(line.split()[:4] == ["nvme", "1", "131,072", "122,880"]
               for line in table.splitlines())  # fmt: skip


@pytest.mark.parametrize("words", [["peek", "axdimm0", "1", "0", "4"],
                                   ["poke", "axdimm0", "1", "0", "00"]])  # fmt: skip
def test_memory_out_of_reach(
    live: Live, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    switch = ["mode", "axdimm0", "--channel", "1", "--set"]
    assert ctl(*switch, "acceleration", "--quiet") == 0
    assert_fails(capsys, words, [f"'nearmem ctl {' '.join(switch)} normal'", "--backdoor"])
    assert ctl(*words, "--backdoor") == 0
    assert ctl(*switch, "normal", "--quiet") == 0
    assert ctl(*words) == 0


def test_a_step_of_adam_by_hand(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that a run needs can be set, and the registers then say what was computed."""
    count = 40
    constants = adam_constants(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, t=3)
    rng = np.random.default_rng(3)
    p, g, m, v = (rng.random(count).astype(np.float32) for _ in range(4))
    places = {"p": 0x1000, "g": 0x2000, "m": 0x3000, "v": 0x4000}
    device = connect(open_devices()[0])
    for tensor, address in zip((p, g, m, v), places.values(), strict=True):
        device.poke(0, address, tensor.tobytes())

    def put(register: str, value: object) -> None:
        assert ctl("set", "axdimm0", "0", register, str(value), "--quiet") == 0

    assert ctl("mode", "axdimm0", "--channel", "0", "--set", "acceleration", "--quiet") == 0
    put("count", count)
    for name, address in places.items():
        put(f"{name}_in", hex(address))
        if name != "g":
            put(f"kernel.{name}_out.address", address)
    for name, value in constants.items():
        put(f"kernel.{name}", int(value.view(np.uint32)))
    put("control.start", 1)
    assert capsys.readouterr() == ("", "")
    table = printed(capsys, "registers", "axdimm0", "--channel", "0", "kernel.status", "lr")
    assert "done = 1, error = 0, cause = none" in table
    assert "value = 0.001" in table
    put("count", 0)
    put("kernel.control", 1)
    rows = answer(capsys, "registers", "axdimm0", "--channel", "0", "kernel.status")
    assert rows[0]["fields"] == {"busy": 0, "done": 1, "error": 1, "cause": "zero_count"}
    assert ctl("mode", "axdimm0", "--set", "normal", "--quiet") == 0
    expected = adam_step(p, g, m, v, constants)
    for name, tensor in zip("pmv", expected, strict=True):
        values = answer(
            capsys, "peek", "axdimm0", "0", hex(places[name]), str(4 * count), "--format", "u32"
        )["values"]
        assert values == tensor.view(np.uint32).tolist()


def test_a_running_kernel(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    # Long enough for all the questions below, each of which lets simulated time pass.
    settings = {
        "kernel.count": 6_000,
        "p_in": 0,
        "g_in": 0x40000,
        "m_in": 0x80000,
        "v_in": 0xC0000,
    }
    settings |= {"p_out": 0, "m_out": 0x80000, "v_out": 0xC0000, "kernel.control.start": 1}
    assert ctl("mode", "timed", "--channel", "1", "--set", "acceleration") == 0
    for register, value in settings.items():
        assert ctl("set", "timed", "1", register, str(value)) == 0
    capsys.readouterr()
    assert_fails(capsys, ["mode", "timed", "--channel", "1", "--set", "normal"], ["busy"])
    row = answer(capsys, "list")[1]
    assert (row["modes"], row["running"]) == (["normal", "acceleration"], [False, True])
    assert "running" in printed(capsys, "mode", "timed")
    for words in (["peek", "4"], ["poke", "00"], ["poke", "00", "--backdoor"]):
        assert_fails(capsys, [words[0], "timed", "1", "0", *words[1:]], ["busy"])
    deadline = time.monotonic() + WAIT_S
    while answer(capsys, "mode", "timed", "--channel", "1")[0]["kernel_busy"]:
        assert time.monotonic() < deadline
    assert_fails(capsys, ["peek", "timed", "1", "0", "4"], ["acceleration"])
    assert_fails(capsys, ["poke", "timed", "1", "0", "00"], ["acceleration"])
    assert answer(capsys, "peek", "timed", "1", "0", "4", "--backdoor")["nbytes"] == 4
    status = answer(capsys, "registers", "timed", "--channel", "1", "kernel.status")[0]
    assert status["fields"]["done"] == 1
    counters = answer(capsys, "counters", "timed")[1]["counters"]
    cycles = answer(capsys, "registers", "timed", "--channel", "1", "kernel.cycles")[0]["value"]
    assert (
        sum(value for name, value in counters.items() if name.endswith("_tck"))
        - counters["longest_refresh_gap_tck"]
        == 4 * cycles
    )
    assert ctl("mode", "timed", "--set", "normal") == 0


def test_watch(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert "one JSON object a line" in printed(capsys, "watch", "--help")
    assert ctl("watch", "timed", "--interval", "0.01", "--count", "3", "--json") == 0
    output = capsys.readouterr()
    samples = [json.loads(line) for line in output.out.splitlines()]
    assert [sample["name"] for sample in samples] == ["timed"] * 3
    for before, after in pairwise(samples):
        for channel in (0, 1):
            # Asking takes simulated time.
            passed = [sample["channels"][channel]["fabric_cycles"] for sample in (before, after)]
            assert passed[1] > passed[0]
            assert after["channels"][channel]["rates_per_s"]["fabric cycles"] > 0
    assert samples[0]["channels"][0]["rates_per_s"] == {}
    table = printed(capsys, "watch", "axdimm0", "--interval", "0.01", "--count", "2")
    assert table.count("per second") == 4
    assert table.count("host_writes") == 2
    assert ctl("watch", "axdimm0", "--count", "1", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


REFUSED = [
    ([], ["ACTION"]),
    (["look"], ["'look'", "watch"]),
    (["list", "surplus"], ["surplus"]),
    (["info"], ["2 devices", "axdimm0", "timed"]),
    (["info", "axdimm1"], ["'axdimm1'", "axdimm0, timed", "golden"]),
    (["info", "rtl@axdimm1"], ["'rtl@axdimm1'", "axdimm0"]),
    (["info", "/dev/axdimm1"], ["'/dev/axdimm1'"]),
    (["info", "/dev/../x"], ["/dev/../x"]),
    (["info", "golden:huge"], ["'golden:huge'", "tiny"]),
    (["info", "golden:"], ["'golden:'"]),
    (["info", ""], ["''"]),
    (["registers", "axdimm0", "statsu"], ["'statsu'", "did you mean", "status"]),
    (["registers", "axdimm0", "arbiter.cuont"], ["'arbiter.cuont'"]),
    (["registers", "axdimm0", "kernel.mode"], ["'kernel.mode'"]),
    (["registers", "axdimm0", "status.magic"], ["'status.magic'"]),
    (["registers", "axdimm0", "xyzzyqqq"], ["'xyzzyqqq'", "expected"]),
    (["registers", "axdimm0", ""], ["''"]),
    (["registers", "axdimm0", "--channel", "2"], ["channel is 2", "0 to 1"]),
    (["registers", "axdimm0", "--channel", "-1"], ["'-1'"]),
    (["registers", "axdimm0", "--channel"], ["--channel"]),
    (["mode", "axdimm0", "--set", "fast"], ["'fast'", "normal or acceleration"]),
    (["mode", "axdimm0", "--channel", "7", "--set", "normal"], ["channel is 7"]),
    (["counters", "axdimm0", "--channel", "99"], ["channel is 99"]),
    (["peek", "axdimm0", "0", "0"], ["CHANNEL", "'axdimm0'"]),
    (["peek", "0", "0", "4"], ["2 devices"]),
    (["peek", "axdimm0", "0", "0", "0"], ["0 bytes at 0x0"]),
    (["peek", "axdimm0", "0", "0", "-4"], ["-4 bytes"]),
    (["peek", "axdimm0", "0", "0", "2GiB"], [f"{2 << 30} bytes"]),
    (["peek", "axdimm0", "2", "0", "4"], ["channel is 2"]),
    (["peek", "axdimm0", "0", "zero", "4"], ["ADDRESS", "'zero'", "0x1000"]),
    (["peek", "axdimm0", "0", "9" * 5000, "4"], ["ADDRESS"]),
    (["peek", "axdimm0", "0", "1" * 4000, "4"], ["bytes at 0x"]),
    (["peek", "axdimm0", "0", "2", "4", "--format", "u32"], ["0x2", "multiples of 4"]),
    (["peek", "axdimm0", "0", "0", "6", "--format", "f32"], ["6 bytes", "multiples of 4"]),
    (["peek", "axdimm0", "0", "0", "4", "--format", "i8"], ["'i8'", "u32"]),
    (["peek", "axdimm0", "0", "0", "4", "--output", "/no/such/file"], ["/no/such", "create"]),
    (["peek", "axdimm0", "0", "0", "4", "5"], ["expected CHANNEL ADDRESS NBYTES"]),
    (["peek"], ["expected CHANNEL ADDRESS NBYTES"]),
    (["poke", "axdimm0", "0", "0"], ["expected CHANNEL ADDRESS VALUE"]),
    (["poke", "axdimm1", "0", "0", "00"], ["'axdimm1'"]),
    (["poke", "axdimm0", "0", "0", "abc"], ["'abc'", "hexadecimal"]),
    (["poke", "axdimm0", "0", "0", "zz"], ["'zz'", "hexadecimal"]),
    (["poke", "axdimm0", "0", "0", "0x"], ["no bytes"]),
    (["poke", "axdimm0", "0", "1", "1", "--format", "u32"], ["0x1", "multiples of 4"]),
    (["poke", "axdimm0", "0", "0", "-1", "--format", "u32"], ["'-1'", "0xffffffff"]),
    (["poke", "axdimm0", "0", "0", "4294967296", "--format", "u32"], ["'4294967296'"]),
    (["poke", "axdimm0", "0", "0", "1e39", "--format", "f32"], ["'1e39'", "FP32"]),
    (["poke", "axdimm0", "0", "0", "many", "--format", "f32"], ["'many'"]),
    (["poke", "axdimm0", "0", "0", "/no/such", "--format", "raw"], ["/no/such", "No such file"]),
    (["set", "axdimm0", "0", "kernel.count"], ["CHANNEL", "'axdimm0'"]),
    (["set", "axdimm0", "0"], ["expected CHANNEL"]),
    (["set", "axdimm0", "0", "status", "1"], ["arbiter.status or kernel.status"]),
    (["set", "axdimm0", "0", "arbiter.status", "1"], ["only be read"]),
    (["set", "axdimm0", "0", "arbiter.id.magic", "1"], ["arbiter.id.magic", "only be read"]),
    (["set", "axdimm0", "0", "kernel.cycles", "1"], ["only be read"]),
    (["set", "axdimm0", "0", "kernel.count", "many"], ["'many'", "17"]),
    (["set", "axdimm0", "0", "kernel.count", hex(1 << 40)], ["40 bits"]),
    (["set", "axdimm0", "0", "kernel.count", "-1"], ["-0x1", "40 bits"]),
    (["set", "axdimm0", "0", "arbiter.mode", "fast"], ["'fast'", "acceleration"]),
    (["set", "axdimm0", "0", "arbiter.mode", "2"], ["'2'", "acceleration"]),
    (["set", "axdimm0", "x", "kernel.count", "1"], ["CHANNEL", "'x'"]),
    (["set", "axdimm0", "0", "nothing", "1"], ["'nothing'"]),
    (["watch", "axdimm0", "--interval", "0"], ["'0'", "0.01"]),
    (["watch", "axdimm0", "--interval", "soon"], ["'soon'"]),
    (["watch", "axdimm0", "--count", "0"], ["'0'"]),
    (["watch", "axdimm1"], ["'axdimm1'"]),
]


@pytest.mark.parametrize(
    ("words", "said"), REFUSED, ids=[" ".join(words)[:60] for words, _ in REFUSED]
)
def test_refusals_take_one_line(
    live: Live, capsys: pytest.CaptureFixture[str], words: list[str], said: list[str]
) -> None:
    watched = ("registers", "axdimm0", "--channel", "0", "mode", "refused", "late_reads")
    before = answer(capsys, *watched)
    assert_refused(capsys, ["ctl", *words], said)
    after = answer(capsys, *watched)
    assert after == before


def test_the_kernels_registers_are_not_written_in_normal_mode(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = answer(capsys, "counters", "axdimm0")[0]["counters"]["refused"]
    assert_fails(capsys, ["set", "axdimm0", "0", "kernel.count", "1"], ["normal mode"])
    assert answer(capsys, "counters", "axdimm0")[0]["counters"]["refused"] == refused


def test_a_channel_in_use(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    before = answer(capsys, "peek", "axdimm0", "0", "0x5000", "4")["data"]
    live.tell("assert opened[0]._session.channels[0].try_exclusive()")
    try:
        assert_fails(capsys, ["poke", "axdimm0", "0", "0x5000", "5a5a5a5a"], ["in use"])
        # The other channel, and what needs none, answers.
        assert answer(capsys, "peek", "axdimm0", "1", "0x5000", "4")["nbytes"] == 4
        assert answer(capsys, "info", "axdimm0")["channels"] == 2
        assert [row["channels"] for row in answer(capsys, "list")] == [2, 2]
    finally:
        live.tell("opened[0]._session.channels[0].leave()")
    assert answer(capsys, "peek", "axdimm0", "0", "0x5000", "4")["data"] == before


def test_words_at_random(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(5)
    actions = [
        "list",
        "info",
        "registers",
        "mode",
        "counters",
        "allocations",
        "peek",
        "poke",
        "set",
    ]
    words = [
        *(
            "axdimm0",
            "timed",
            "golden:tiny",
            "golden",
            "@axdimm0",
            "/dev/timed",
            "nobody",
            "0",
            "1",
        ),
        *("2", "-1", "64", "4KiB", "0x40", "0xzz", "", "--channel", "--channel=0", "--json", "--"),
        *(
            "--quiet",
            "--backdoor",
            "--format",
            "u32",
            "f32",
            "raw",
            "hex",
            "status",
            "kernel.count",
        ),
        *("mode", "normal", "--set", "00", "nan", "1e999", "[red]", "ü", "\x1b[31m", "a" * 300),
    ]
    statuses = set()
    for _ in range(150):
        chosen = rng.choice(words, size=rng.integers(0, 6)).tolist()
        status = ctl(str(rng.choice(actions)), *chosen)
        output = capsys.readouterr()
        assert status in (0, 1, 2), chosen
        assert output.err.count("\n") == (1 if status else 0), (chosen, output.err)
        assert status == 0 or output.out == "", chosen
        statuses.add(status)
    assert statuses >= {0, 2}
    assert ctl("mode", "axdimm0", "--set", "normal") == 0
    assert ctl("mode", "timed", "--set", "normal") == 0


# Which device is meant.


def test_without_a_device(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "list") == []
    assert "No device is open" in printed(capsys, "list")
    assert_refused(capsys, ["ctl", "info"], ["no device is open", "golden"])
    assert_refused(capsys, ["ctl", "info", "axdimm0"], ["'axdimm0'", "none is open"])
    assert_refused(capsys, ["ctl", "peek", "0", "0", "4"], ["no device is open"])
    assert_refused(capsys, ["ctl", "poke", "0", "0", "44"], ["'0'", "none is open"])
    # A fresh one, which is gone at the end.
    rows = answer(capsys, "registers", "golden:tiny", "--channel", "1", "capacity")
    assert [row["value"] for row in rows] == [CAPACITY]
    assert answer(capsys, "info", "golden:tiny")["name"] == "golden:tiny"
    assert answer(capsys, "peek", "golden:tiny", "0", "0", "4")["data"] == "00000000"
    found = answer(capsys, "allocations", "golden:tiny")
    assert found["allocations"] == []
    assert [row["free_bytes"] for row in found["memory"]] == [MEMORY_END] * 2
    assert ctl("watch", "golden:tiny", "--count", "1") == 0
    assert list(directory.iterdir()) == []


def test_the_only_device_need_not_be_named(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with living(directory, "golden:tiny") as live:
        name = f"golden-{live.pid}-1"
        assert answer(capsys, "info")["name"] == name
        assert answer(capsys, "info", name)["pid"] == live.pid
        assert answer(capsys, "poke", "1", "0x40", "0a0b") == {
            "channel": 1,
            "address": 64,
            "nbytes": 2,
        }
        assert answer(capsys, "peek", "1", "64", "2")["data"] == "0a0b"
        # A fresh one has it not.
        assert answer(capsys, "peek", "golden:tiny", "1", "64", "2")["data"] == "0000"
        assert len(answer(capsys, "registers", "status", "capacity")) == 6
        assert len(answer(capsys, "mode", "--set", "acceleration")) == 2
        answer(capsys, "set", "0", "kernel.count", "17")
        assert answer(capsys, "registers", "kernel.count")[0]["value"] == 17
        assert_refused(capsys, ["ctl", "registers", "nothing"], ["'nothing'"])
        live.end()
    assert list(directory.iterdir()) == []


# Devices that go away, and that hang.


@pytest.mark.parametrize("how", ["closed", "killed", "interrupted"])
def test_watch_ends(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    with living(directory, source=PLAIN) as live:

        class Clock:
            monotonic = time.monotonic

            @staticmethod
            def sleep(seconds: float) -> None:
                """Between the first sample and the second, it happens."""
                if how == "interrupted":
                    signal.raise_signal(signal.SIGINT)
                elif how == "killed":
                    live.process.kill()
                else:
                    live.end()

        monkeypatch.setattr("sw_driver.commands.ctl_actions.time", Clock)
        status = ctl("watch", "--json")
        output = capsys.readouterr()
        assert output.out.count("\n") == 1
        assert json.loads(output.out)["name"] == "axdimm0"
        if how == "interrupted":
            assert (status, output.err) == (130, "nearmem: interrupted\n")
            live.end()
        else:
            assert (status, output.err) == (0, "")
    assert open_devices() == []
    assert list(directory.iterdir()) == []


def test_a_process_that_is_stopped(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(directory, source=PLAIN) as live:
        live.process.send_signal(signal.SIGSTOP)
        device = connect(open_devices()[0], answer_limit_s=0)
        for ask in (device.describe, lambda: device.poke(0, 0, bytes(CHUNK_BYTES))):
            with pytest.raises(BusyError, match=rf"{live.pid} .* no answer"):
                ask()
        monkeypatch.setattr("sw_driver.commands.ctl_actions.LIST_ANSWER_LIMIT_S", 0)
        assert "no answer" in printed(capsys, "list")
        live.process.send_signal(signal.SIGCONT)
        assert answer(capsys, "info")["pid"] == live.pid


def test_output_that_nobody_reads(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sw_driver.cli", "ctl", "registers", "golden:tiny", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(WAIT_S) == 1


# The service, and clients of all kinds.


class Scripted:
    """A device whose answers a test chooses."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self.answers[name](*arguments)

        return call


@contextmanager
def serving(device: Any, name: str = "axdimm0") -> Iterator[Controlled]:
    with DeviceLock(parse_device(f"golden@{name}")) as lock:
        service = ControlServer(device, lock)
        try:
            yield connect(lock.entry, answer_limit_s=WAIT_S)
        finally:
            service.close()
            assert not socket_path(name).exists()


def connected(name: str = "axdimm0") -> Connection:
    return Client(str(socket_path(name)), "AF_UNIX")


GARBAGE = [
    b"",
    b"\0\xff\xfe",
    b"{",
    b"null",
    b"[]",
    b'"describe"',
    b'{"request": "describe"}',
    b'["close"]',
    b'["__class__"]',
    b'[["describe"]]',
    b'["describe", 1]',
    b'["poke", 0, 0, {"base64": "?"}]',
    b'["poke", 0, 0, {"base64": 3}]',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 100_000,
    b"\x80\x04N.",  # a pickle
]


@pytest.mark.parametrize("message", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered(directory: Path, message: bytes) -> None:
    device = Scripted(describe=lambda: {"channels": 3})
    with serving(device) as client, connected() as connection:
        connection.send_bytes(message)
        told = json.loads(connection.recv_bytes())
        assert told["error"][0] == "ControlError"
        assert len(told["error"][1]) < 500
        assert client.describe()["pid"] == os.getpid()
        assert client.describe()["channels"] == 3


def test_a_request_that_is_too_long(directory: Path) -> None:
    device = Scripted(describe=dict, poke=lambda *arguments: None)
    with serving(device) as client:
        with connected() as connection, suppress(BrokenPipeError):
            connection.send_bytes(bytes(8 * REQUEST_LIMIT_BYTES))
            with pytest.raises((EOFError, ConnectionResetError)):
                connection.recv_bytes()
        with pytest.raises(ControlError, match=f"send {REQUEST_LIMIT_BYTES}"):
            client.set_mode(0, "x" * (8 << 20))
        assert device.calls == []
        # The longest that a client sends fits.
        client.poke(0, 0, bytes(CHUNK_BYTES))
        assert device.calls == [("poke", 0, 0, bytes(CHUNK_BYTES), False)]


def test_silent_clients_and_those_that_leave_keep_nobody_waiting(directory: Path) -> None:
    device = Scripted(describe=dict, allocations=lambda: "x" * (8 << 20))
    with serving(device) as client, connected(), connected() as half, connected() as deaf:
        os.write(half.fileno(), b"\0\0")
        deaf.send_bytes(b'["allocations"]')
        for message in (b"\0", b"\0\0\0\x10[", b'\0\0\0\x0f["allocations"]'):
            with connected() as leaving:
                os.write(leaving.fileno(), message)
        assert client.describe()["name"] == "axdimm0"


def test_many_clients(directory: Path) -> None:
    def peek(channel: int, address: int, nbytes: int, backdoor: bool) -> bytes:
        time.sleep(0.001)
        return bytes([address % 251]) * nbytes

    def ask(number: int) -> None:
        for address in range(5 * number, 5 * number + 5):
            assert client.peek(0, address, 100) == bytes([address % 251]) * 100

    with serving(Scripted(peek=peek)) as client, ThreadPoolExecutor(24) as pool:
        list(pool.map(ask, range(48)))


def test_a_device_that_hangs(directory: Path) -> None:
    going_on = threading.Event()
    device = Scripted(
        channel_state=lambda channel: going_on.wait(WAIT_S), describe=lambda: {"channels": 2}
    )
    with serving(device) as client:
        hurried = connect(open_devices()[0], answer_limit_s=0.05)
        for _ in range(3):
            with pytest.raises(BusyError, match="may still be carried out"):
                hurried.channel_state(0)
            assert client.describe()["channels"] == 2
        going_on.set()


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        raise error

    return call


def test_errors_arrive_as_they_were_raised(directory: Path) -> None:
    known = [getattr(errors, name) for name in errors.__all__]
    raised: list[Exception] = [
        kind(f"of {kind.__name__}", cause="overlap", number=1) for kind in known
    ]
    raised += [AddressError("far", address=1), NoSuchRegisterError("none", name="x")]
    raised += [DeviceFault("tRCD"), DeviceTimeout("late")]
    device = Scripted()
    with serving(device) as client:
        for error in raised:
            device.answers["describe"] = _raising(error)
            with pytest.raises(type(error)) as told:
                client.describe()
            assert type(told.value) is type(error)
            assert str(told.value) == str(error)
            if isinstance(error, AxdimmError):
                assert isinstance(told.value, AxdimmError)
                assert told.value.details == error.details
        for error in (ZeroDivisionError("by zero"), MemoryError(), RecursionError("deep")):
            device.answers["describe"] = _raising(error)
            with pytest.raises(ControlError, match=type(error).__name__):
                client.describe()
        device.answers["describe"] = lambda: {"number": np.float32(1.5), 3: None}
        assert client.describe()["number"] == "1.5"


@pytest.mark.parametrize(
    "answered", [None, b"", b"[]", b"{}", b"3", b'{"error": 3}', b'{"error": ["X", "", {}]}']
)
def test_a_service_that_answers_strangely(directory: Path, answered: bytes | None) -> None:
    with (
        DeviceLock(parse_device("golden@axdimm0")) as lock,
        Listener(str(socket_path("axdimm0")), "AF_UNIX") as strange,
    ):

        def serve() -> None:
            with strange.accept() as connection:
                connection.recv_bytes()
                if answered is not None:
                    connection.send_bytes(answered)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ControlError):
            connect(lock.entry).describe()
        thread.join(WAIT_S)


def test_closing_the_service(directory: Path) -> None:
    device = Scripted(describe=dict)
    before = threading.active_count()
    lock = DeviceLock(parse_device("golden@axdimm0"))
    service = ControlServer(device, lock)
    client = connect(lock.entry)
    assert client.describe()["name"] == "axdimm0"
    service.close()
    service.close()
    deadline = time.monotonic() + WAIT_S
    while threading.active_count() > before:
        assert time.monotonic() < deadline
    assert list(directory.iterdir()) == [directory / "axdimm0.lock"]
    with pytest.raises(ControlError, match="answers no requests"):
        client.describe()
    lock.release()
    with pytest.raises(ClosedError, match=f"closed by process {os.getpid()}"):
        client.describe()


def test_a_device_that_is_still_being_opened(directory: Path) -> None:
    with (
        DeviceLock(parse_device("golden@axdimm0")) as lock,
        pytest.raises(ControlError, match=r"No such file.*: it may still be opening it.*try again"),
    ):
        connect(lock.entry).describe()


def test_a_device_that_is_forgotten(directory: Path) -> None:
    device = Scripted(describe=dict)
    with DeviceLock(parse_device("golden@axdimm0")) as lock:
        service = ControlServer(device, lock)
        assert connect(lock.entry).describe()["name"] == "axdimm0"
        deadline = time.monotonic() + WAIT_S
        del device
        while socket_path("axdimm0").exists():
            gc.collect()
            assert time.monotonic() < deadline
        service.close()


def test_a_forked_process_does_not_end_the_service(directory: Path) -> None:
    with living(directory, "fork", source=PLAIN) as live:
        assert connect(open_devices()[0]).describe()["pid"] == live.pid
        live.end()


def test_a_path_that_is_too_long_for_a_socket(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far = directory / ("d" * 100)
    monkeypatch.setenv("NEARMEM_RUNTIME_DIR", str(far))
    with DeviceLock(parse_device("golden@axdimm0")) as lock:
        service = ControlServer(Scripted(), lock)
        assert_fails(capsys, ["info"], ["too long", "NEARMEM_RUNTIME_DIR"])
        assert "no answer" in printed(capsys, "list")
        service.close()


def test_a_device_that_is_noted_nowhere(directory: Path) -> None:
    directory.chmod(0o777)
    with DeviceLock(parse_device("golden")) as lock:
        ControlServer(Scripted(), lock).close()


def test_the_socket_is_the_users_alone(directory: Path) -> None:
    umask = os.umask(0)
    try:
        with serving(Scripted()):
            assert socket_path("axdimm0").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)


def test_a_list_with_a_device_that_closes_meanwhile(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DeviceLock(parse_device("golden@axdimm0")) as closing:
        device = Scripted(describe=lambda: closing.release() or {"channels": 2})
        with serving(Scripted(describe=lambda: {"channels": 0}), "other"):
            service = ControlServer(device, closing)
            assert [row["name"] for row in answer(capsys, "list")] == ["other"]
            service.close()


# What no device here has at a moment that a test knows: queues, operations.


@pytest.fixture
def scripted(directory: Path) -> Iterator[Scripted]:
    counted = iter(range(10, 1000, 10))

    def state(channel: int) -> dict[str, Any]:
        return {
            "channel": channel,
            "mode": "acceleration",
            "draining": True,
            "kernel_busy": True,
            "operation": {"name": "Adam [bold]", "progress": 0.25},
            "queued": {"copies": 3},
            "copied_bytes": {"link_to_device": 4096},
            "counters": {"host_reads": next(counted)},
            "fabric_cycles": 7,
        }

    device = Scripted(
        describe=lambda: {"channels": 1, "timed": False, "stand_ins": ["GPU"]},
        channel_state=state,
        allocations=lambda: [
            {"memory": "axdimm", "channel": 1, "address": 0x4000, "nbytes": 16384, "users": 2}
        ],
        memory=lambda: [
            {
                "memory": "nvme",
                "channel": 0,
                "total_bytes": 1000,
                "free_bytes": 900,
                "largest_free_bytes": 800,
                "allocations": 7,
            }
        ],
    )
    with serving(device):
        yield device


def test_allocations_of_all_memories(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "allocations")
    assert found == {
        "allocations": scripted.answers["allocations"](),
        "memory": scripted.answers["memory"](),
    }
    table = printed(capsys, "allocations")
    for row in (
        ["axdimm", "1", "0x4000", "16,384", "2"],
        ["nvme", "0", "1,000", "900", "800", "7"],
    ):
        assert row in [line.split() for line in table.splitlines()]


def test_watch_shows_what_is_done_and_how_fast(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        now_s = 100.0
        slept: ClassVar[list[float]] = []

        @classmethod
        def monotonic(cls) -> float:
            return cls.now_s

        @classmethod
        def sleep(cls, seconds: float) -> None:
            cls.slept.append(seconds)
            cls.now_s += seconds

    monkeypatch.setattr("sw_driver.commands.ctl_actions.time", Clock)
    table = printed(capsys, "watch", "--interval", "0.5", "--count", "2")
    assert Clock.slept == [0.5]
    assert "Adam [bold] (25%)" in table
    rows = [line.split() for line in table.splitlines()]
    assert ["host_reads", "10"] in rows
    assert ["host_reads", "20", "20"] in rows
    assert ["queued", "on", "copies", "3"] in rows
    assert "copied link_to_device (bytes)" in table
    assert "4,096" in table


def test_rates_of_counters_that_begin_anew_are_left_out(
    scripted: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    state = scripted.answers["channel_state"]
    counted = iter((50, 80, 3, 4))
    cycles = iter((10, 20, 30, 40))

    def channel_state(channel: int) -> Any:
        fresh = {"counters": {"host_reads": next(counted)}, "fabric_cycles": next(cycles)}
        return {**state(channel), **fresh}

    scripted.answers["channel_state"] = channel_state
    assert ctl("watch", "--interval", "0.01", "--count", "4", "--json") == 0
    samples = map(json.loads, capsys.readouterr().out.splitlines())
    rates = [sample["channels"][0]["rates_per_s"] for sample in samples]
    assert rates[0] == rates[2] == {}
    assert rates[1]["host_reads"] > rates[1]["fabric cycles"] > 0
    assert rates[3]["host_reads"] > 0


def test_watch_says_that_the_device_was_closed(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def channel_state(channel: int) -> Any:
        raise ClosedError("the device was closed: open it again")

    class Clock:
        monotonic = time.monotonic

        @staticmethod
        def sleep(seconds: float) -> None:
            scripted.answers["channel_state"] = channel_state

    monkeypatch.setattr("sw_driver.commands.ctl_actions.time", Clock)
    assert printed(capsys, "watch").endswith("the device was closed: open it again.\n")


def test_info_names_stand_ins(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in printed(capsys, "info").splitlines()]
    assert ["stand", "ins", "GPU"] in rows


# The parts that a driver takes over.


def test_one_field_of_a_register_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def field(name: str, lsb: int, width: int, writable: bool = True) -> Field:
        return Field(
            name=name,
            lsb=lsb,
            width=width,
            reset=0,
            sw_readable=True,
            sw_writable=writable,
            hw_readable=True,
            hw_writable=not writable,
            pulse=False,
            clears=False,
            encoding=(("high", 9),) if name == "b" else (),
        )

    fields = (field("a", 0, 4), field("b", 8, 4), field("c", 16, 4, writable=False))
    register = Register(name="three", offset_bytes=0, fields=fields)

    class Window:
        held = 0x50203

        def read(self, name: str) -> int:
            return self.held

        def write(self, values: dict[str, int]) -> None:
            self.held = values["three"]

    window = Window()
    one = [registers.RegisterPath("arbiter", register)]
    monkeypatch.setattr(registers, "_registers", lambda rules: one)
    monkeypatch.setattr(registers, "_window", lambda *where: window)
    rules = ("of", "this", "test")

    def write(name: str, value: int | str) -> None:
        transport: Any = None
        write_register(transport, 0, rules, find_register(name, rules), value)

    write("three.b", "high")
    # What cannot be written is not.
    assert window.held == 0x00903
    write("arbiter.three.a", 0xF)
    assert window.held == 0x0090F
    write("three", "0x102")
    assert window.held == 0x00102
    for name, value in (("three.c", 1), ("three.a", 16), ("three", 0x10000), ("three", -1)):
        with pytest.raises(RegisterAccessError, match=r"arbiter\.three"):
            write(name, value)
    with pytest.raises(RegisterAccessError, match="high"):
        write("three.b", "low")
    with pytest.raises(NoSuchRegisterError, match="did you mean"):
        write("three.d", 1)
    assert window.held == 0x00102
