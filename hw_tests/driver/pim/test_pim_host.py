"""Kernels of one's own on the host: whatever they do, the process goes on."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from hw.pim.config import configure
from sw_driver.device.errors import KernelError
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.device import Pim
from sw_driver.pim.firmware.build import compile_library
from sw_driver.pim.host import HostLibrary
from sw_driver.pim.opencl import CommandQueue, Context, Kernel, Platform
from sw_driver.pim.programs import Firmware

OWN = """
#include "pim.h"
#include <string.h>
KERNEL(quotient, 3) { WORDS(a[0])[0] = (u32)((i32)a[1] / (i32)a[2]); }
KERNEL(remainder, 3) { WORDS(a[0])[0] = (u32)((i32)a[1] % (i32)a[2]); }
KERNEL(frame, 2) { volatile u8 large[1u << 30]; large[a[1]] = 1; WORDS(a[0])[0] = large[7]; }
KERNEL(array, 2) { volatile u8 large[a[1]]; large[0] = 1; WORDS(a[0])[0] = large[0]; }
static u32 depth(u32 n) { volatile u32 x[9]; x[n % 9] = n; return n ? x[n % 9] + depth(n - 1) : 0; }
KERNEL(deep, 2) { WORDS(a[0])[0] = depth(a[1]); }
KERNEL(copied, 2) { memcpy(WORDS(a[0]), WORDS(a[0]) + 8, a[1]); }
KERNEL(moved, 2) { memmove(WORDS(a[0]) + 1, WORDS(a[0]), a[1]); }
KERNEL(filled, 2) { memset(WORDS(a[0]), 1, a[1]); }
KERNEL(built_in, 2) { __builtin_memset(WORDS(a[0]), 1, a[1]); }
KERNEL(compared, 2) { WORDS(a[0])[0] = (u32)memcmp(WORDS(a[0]), WORDS(a[0]) + 1, a[1]); }
KERNEL(trapped, 2) { if (a[1]) __builtin_trap(); }
KERNEL(jumped, 2) { ((void (*)(u32))(u64)a[1])(a[0]); }
KERNEL(smashed, 2) {
    volatile u32 x[4];
    for (u32 i = 0; i < a[1]; i++) x[i] = i;
    WORDS(a[0])[0] = x[1];
}
KERNEL(count, 2) { WORDS(a[0])[0] = a[1]; }
KERNEL(name, 2) { WORDS(a[0])[0] = a[1]; }
KERNEL(words, 2) { WORDS(a[0])[0] = a[1]; }
KERNEL(of, 2) { WORDS(a[0])[0] = a[1]; }
KERNEL(slow, 2) { for (u32 i = 0; i < a[1]; i++) WORDS(a[0])[i % 16] = i; }
"""
LEAST = 1 << 31
STACK = "a stack of more than 65536 bytes"


def caught_signals() -> list[str]:
    """The signals that the process has handlers for, as the system has them."""
    status = Path("/proc/self/status").read_text().splitlines()
    return [line for line in status if line.startswith("SigCgt")]


class Own:
    """A context with the kernels above, and a buffer of 64 bytes."""

    def __init__(self, pim: Pim, library: object) -> None:
        self.context = Context(Platform(pim), library=library)  # type: ignore[arg-type]
        self.x = self.context.buffer("x", (16,))
        self.queue = CommandQueue(self.context, "cpu")
        self.queue.enqueue_write(self.x, np.arange(16, dtype=np.uint32).view(np.float32))

    def kernel(self, name: str, *values: int) -> Kernel:
        return self.context.kernel(name, name, (self.x, *values), "b")

    def run(self, name: str, *values: int) -> list[int]:
        self.queue.enqueue_kernel(self.kernel(name, *values))
        return self.queue.enqueue_read(self.x).wait().view(np.uint32).tolist()


@pytest.fixture(scope="module")
def firmware() -> Firmware:
    own = {name: int(words) for name, words in re.findall(r"KERNEL\((\w+), (\d)\)", OWN)}
    return Firmware({**own, **Firmware.of().kernels})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.c").write_text(OWN)
    made = compile_library(folder / "own.so", [folder / "own.c"])
    assert sorted(path.name for path in folder.iterdir()) == ["own.c", "own.so"]
    return made


@pytest.fixture
def own(library: object, firmware: Firmware) -> Iterator[Own]:
    with Pim(GoldenPim(configure("tiny", bank_bytes=1 << 17)), firmware=firmware) as pim:
        yield Own(pim, library)


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("quotient", (5, 0), "a division by zero"),
        ("quotient", (LEAST, -1), "a division of the least integer by -1"),
        ("remainder", (LEAST, -1), "a division of the least integer by -1"),
        ("frame", (5,), f"an access to memory that does not exist, such as {STACK}"),
        ("array", (1 << 31,), f"an access to memory that does not exist, such as {STACK}"),
        ("array", (1 << 17,), STACK),
        ("deep", (1 << 30,), STACK),
        ("copied", (33,), "a read of byte 64 of the buffer 'x', which has 64 bytes, outside"),
        ("copied", (1 << 31,), "a read of byte 64 of the buffer 'x'"),
        ("moved", (64,), "a write of byte 64 of the buffer 'x'"),
        ("filled", (65,), "a write of byte 64 of the buffer 'x'"),
        ("built_in", (1 << 30,), "a write of byte 64 of the buffer 'x'"),
        ("compared", (61,), "a read of byte 64 of the buffer 'x'"),
        ("trapped", (1,), r"a trap, as of __builtin_trap\(\)"),
        ("jumped", (0,), "an access to memory that does not exist"),
        ("smashed", (8,), "a write beyond an array on its stack"),
        ("smashed", (1 << 20,), "a write of byte .*, outside of all its tensors"),
    ],
)
def test_what_would_end_the_process(
    own: Own, name: str, values: tuple[int, ...], message: str, *, in_thread: bool
) -> None:
    """It is an error of the kernel, writes nothing, and leaves signals as they were."""
    before = caught_signals()
    event = own.queue.enqueue_kernel(own.kernel(name, *values))

    def finish() -> None:
        with suppress(KernelError):
            own.queue.finish()

    if in_thread:
        thread = threading.Thread(target=finish)
        thread.start()
        thread.join()
        assert event.over
    with pytest.raises(KernelError, match=f"{name} failed on the host with {message}"):
        event.wait()
    assert caught_signals() == before
    own.queue.recover()
    assert own.run("deep", 20)[:2] == [210, 1]


@pytest.mark.parametrize(
    ("name", "values", "first"),
    [
        ("quotient", (LEAST, 2), [0xC000_0000, 1]),
        ("array", (1 << 12,), [1, 1]),
        ("copied", (32,), [8, 9]),
        ("moved", (60,), [0, 0, 1, 2]),
        ("filled", (5,), [0x0101_0101, 1, 2]),
        ("built_in", (64,), [0x0101_0101] * 16),
        ("compared", (60,), [(1 << 32) - 1, 1]),
        ("trapped", (0,), [0, 1]),
        *((name, (5,), [5, 1]) for name in ("count", "name", "words", "of")),
        ("smashed", (4,), [1, 1]),
    ],
)
def test_what_is_sound(own: Own, name: str, values: tuple[int, ...], first: list[int]) -> None:
    assert own.run(name, *values)[: len(first)] == first


def test_a_library_is_looked_at_while_it_runs(own: Own, library: object) -> None:
    """By another thread, whose stack is no kernel's."""
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(own.run("slow", 30_000_000)))
    thread.start()
    looks = 0
    while thread.is_alive():
        assert "slow" in HostLibrary(library).kernels  # type: ignore[arg-type]
        looks += 1
    assert looks > 10
    assert results[0] == [29_999_984 + offset for offset in range(16)]


def test_a_library_at_the_path_of_another(tmp_path: Path) -> None:
    """It is the new one, and the old one remains."""
    source, kernels = tmp_path / "own.c", []
    for name in ("one", "other"):
        source.write_text(f'#include "pim.h"\nKERNEL({name}, 1) {{ WORDS(a[0])[0] = 1; }}\n')
        kernels.append(HostLibrary(compile_library(tmp_path / "own.so", [source])).kernels)
    assert [name in compiled for name in ("one", "other") for compiled in kernels] == [1, 0, 0, 1]
