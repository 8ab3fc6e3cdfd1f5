"""Model of the module as described by its register map, without a clock.

Memory is a numpy array; the kernel computes with the references of its update rules. A run is over
when the write of START returns, a mode switch when the write of the mode returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.narrow import packed, step, unpacked
from golden.rules import reference
from hw.axdimm.config import ModuleConfig
from hw.axdimm.registers import arbiter_map
from hw.csr.register_map import RegisterMap
from hw.kernel.registers import kernel_map
from hw.narrow.formats import BLOCK_PARAMETERS, Formats
from hw.rules import PAPER_RULES, rule
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm.transport import (
    LINE_BYTES,
    WINDOW_BYTES,
    Transport,
    alone,
    arbiter_window,
    check_bytes,
    kernel_window,
)
from sw_driver.device.clock import Domain
from sw_driver.device.transport import DeviceFault, DeviceTimeout

from ...numbers import check_integer
from ..registers import COUNTERS, REGISTER_BYTES

__all__ = ["CAUSES", "MODES", "GoldenChannel", "GoldenTransport", "golden_settings"]

_ARBITER = arbiter_map()
MODES = dict(_ARBITER["status"]["mode"].encoding)
CAUSES = dict(kernel_map()["status"]["cause"].encoding)
_TYPES = {"fp32": np.float32, "bf16": np.uint16}
"""Types of memory contents by format; other formats are codes in bytes."""


def golden_settings(config: ModuleConfig) -> dict[str, Any]:
    """Return the settings with which :class:`GoldenTransport` is a module of ``config``."""
    names = ("channels", "capacity_bytes", "lanes", "block_bytes")
    names += ("rules", "fabric_mhz", "subnormals", "narrow")
    return {name: getattr(config, name) for name in names}


@dataclass
class GoldenChannel:
    """A channel: its memory and the contents of its registers."""

    number: int
    memory: NDArray[np.uint8]
    mode: int = MODES["normal"]
    written: dict[str, int] = field(default_factory=dict)
    """Values that the host wrote to the kernel's registers."""
    done: bool = False
    cause: int = CAUSES["none"]
    beats_read: int = 0
    beats_written: int = 0
    not_finite: int = 0
    """Gradients of the last accepted run that are infinite or NaN, if the kernel counts them."""
    sums: dict[str, int] = field(default_factory=dict)
    """Sums of the last run: FP32 bits by register name."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))


class GoldenTransport(Transport):
    """A transport to the golden model; see :class:`~sw_driver.axdimm.transport.Transport`.

    A read that nothing answers raises :class:`~sw_driver.device.transport.DeviceFault`. A write
    that nothing accepts is dropped. The arbiter's registers count both.

    Parameters
    ----------
    channels: number of channels.
    capacity_bytes: bytes of each channel's address range, a power of two of at least 16 KB.
    lanes, block_bytes: values in the configuration register; nothing else depends on them.
    rules: names of the update rules.
    fabric_mhz: the module's clock in MHz, for information only.
    subnormals: treatment of subnormal numbers, one of :data:`hw.kernel.config.SUBNORMALS`.
    narrow: True for kernels with narrow formats; then their rules are of
        :data:`hw.kernel.config.NARROW_RULES`.
    arithmetic: False to keep no memory and compute nothing, if only the time matters: all reads
        return zeros.

    Examples
    --------
    >>> from nearmem import Axdimm
    >>> with Axdimm(GoldenTransport(channels=1, rules=("sgd",))) as device:
    ...     device.poke(0, 0x1000, b"near memory")
    ...     print(device.peek(0, 0x1005, 6), device.describe()["channels"][0]["rules"])
    b'memory' ['sgd']
    """

    name = "golden"

    def __init__(
        self,
        *,
        channels: int = 2,
        capacity_bytes: int = 64 << 20,
        lanes: int = 16,
        block_bytes: int = 16384,
        rules: tuple[str, ...] = PAPER_RULES,
        fabric_mhz: float = 200.0,
        subnormals: str = "kept",
        narrow: bool = False,
        arithmetic: bool = True,
    ) -> None:
        check_integer("channels", channels)
        check_integer("capacity_bytes", capacity_bytes)
        if capacity_bytes < 4 * WINDOW_BYTES or capacity_bytes & (capacity_bytes - 1):
            raise ValueError(
                f"capacity_bytes is {capacity_bytes!r}, expected a power of two of at least "
                f"{4 * WINDOW_BYTES}"
            )
        self.domain = Domain(mhz=fabric_mhz)
        self.channels = channels
        self.capacity_bytes = capacity_bytes
        self.fabric_mhz = fabric_mhz
        self.subnormals = subnormals
        self.narrow = narrow
        self._config = {"lanes": lanes, "block_bytes": block_bytes, "rules": len(rules)}
        self._config["narrow"] = int(narrow)
        self._rules = [rule(name) for name in rules]
        self._identifiers = {f"rule_{n}": known.identifier for n, known in enumerate(self._rules)}
        self._kernel = kernel_map(rules, narrow)
        self._places = {
            registers.name: {
                register.offset_bytes: register.name for register in registers.registers
            }
            for registers in (_ARBITER, self._kernel)
        }
        """Register names by offset, for both maps."""
        self._arithmetic = arithmetic
        self._states = [GoldenChannel(number, self._memory()) for number in range(channels)]
        self._dram_end = kernel_window(capacity_bytes)

    def _memory(self) -> NDArray[np.uint8]:
        if self._arithmetic:
            return np.zeros(self.capacity_bytes, dtype=np.uint8)
        # One zero byte, visible at every address and read-only.
        return np.broadcast_to(np.zeros(1, dtype=np.uint8), self.capacity_bytes)

    @alone
    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        state = self._state(channel, address, data.nbytes)
        in_dram = self._dram_bytes(address, data.nbytes)
        if in_dram:
            if state.mode == MODES["normal"]:
                self._store(state, address, data[:in_dram])
                state.counts["host_writes"] += in_dram // LINE_BYTES
            else:
                state.counts["refused"] += in_dram // LINE_BYTES
        for offset in range(in_dram, data.nbytes, LINE_BYTES):
            raw = data[offset : offset + REGISTER_BYTES].tobytes()
            self._write_register(state, address + offset, int.from_bytes(raw, "little"))

    @alone
    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        state = self._state(channel, address, nbytes)
        result = np.zeros(nbytes, dtype=np.uint8)
        in_dram = self._dram_bytes(address, nbytes)
        if in_dram:
            if state.mode != MODES["normal"]:
                self._refuse_read(state, channel, address)
            result[:in_dram] = state.memory[address : address + in_dram]
            state.counts["host_reads"] += in_dram // LINE_BYTES
        for offset in range(in_dram, nbytes, LINE_BYTES):
            value = self._read_register(state, channel, address + offset)
            result[offset : offset + REGISTER_BYTES] = np.frombuffer(
                value.to_bytes(REGISTER_BYTES, "little"), dtype=np.uint8
            )
        return result

    @alone
    def poll(
        self,
        channel: int,
        address: int,
        mask: int,
        value: int,
        *,
        interval_fabric_cycles: int,
        timeout_fabric_cycles: int,
    ) -> int:
        bits = self._read_register(self._state(channel, address, LINE_BYTES), channel, address)
        if bits & mask != value:
            raise DeviceTimeout(
                f"the register at {address:#x} of channel {channel} reads {bits:#x}; without a "
                f"clock it will never read {value:#x} under the mask {mask:#x}"
            )
        return bits

    @alone
    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        state = self._state(channel, address, data.nbytes, aligned=False)
        self._store(state, address, data)

    @alone
    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        state = self._state(channel, address, nbytes, aligned=False)
        return state.memory[address : address + nbytes].copy()

    def _state(
        self, channel: int, address: int, nbytes: int, *, aligned: bool = True
    ) -> GoldenChannel:
        check_bytes(self, channel, address, nbytes, lines=aligned)
        return self._states[channel]

    def _store(self, state: GoldenChannel, address: int, data: NDArray[np.uint8]) -> None:
        if self._arithmetic:
            state.memory[address : address + data.nbytes] = data

    def _dram_bytes(self, address: int, nbytes: int) -> int:
        """Return how many of the bytes from ``address`` on lie below the register windows."""
        return max(0, min(nbytes, self._dram_end - address))

    def _register(self, state: GoldenChannel, address: int) -> tuple[RegisterMap, str] | None:
        """Return the register at ``address``; None if none answers there in the present mode."""
        base = arbiter_window(self.capacity_bytes)
        registers = _ARBITER
        if address < base:
            if state.mode == MODES["normal"]:
                return None
            base = self._dram_end
            registers = self._kernel
        name = self._places[registers.name].get(address - base)
        return None if name is None else (registers, name)

    def _refuse_read(self, state: GoldenChannel, channel: int, address: int) -> None:
        state.counts["refused"] += 1
        state.counts["late_reads"] += 1
        raise DeviceFault(f"nothing answers the read of {address:#x} of channel {channel}")

    def _write_register(self, state: GoldenChannel, address: int, value: int) -> None:
        match = self._register(state, address)
        if match is None:
            state.counts["refused"] += 1
            return
        registers, name = match
        mask = sum(field.mask for field in registers[name].fields if field.sw_writable)
        if registers is _ARBITER:
            if name == "mode":
                state.mode = registers[name]["mode"].extract(value)
        elif name == "control":
            if registers[name]["start"].extract(value):
                self._start(state)
        else:
            state.written[name] = value & mask

    def _read_register(self, state: GoldenChannel, channel: int, address: int) -> int:
        match = self._register(state, address)
        if match is None:
            self._refuse_read(state, channel, address)
            return 0
        registers, name = match
        register = registers[name]
        if registers is _ARBITER:
            values = self._arbiter_values(state, name)
        else:
            values = self._kernel_values(state, name)
        if values is None:
            return state.written.get(name, 0)
        result = sum(field.reset << field.lsb for field in register.fields)
        for field_name, value in values.items():
            entry = register[field_name]
            result = (result & ~entry.mask) | ((value << entry.lsb) & entry.mask)
        return result

    def _arbiter_values(self, state: GoldenChannel, name: str) -> dict[str, int]:
        if name in ("mode", "status"):
            return {"mode": state.mode}
        if name == "capacity":
            return {"capacity_bytes": self.capacity_bytes}
        if name == "config":
            return self._config
        if name in self._identifiers:
            return {"identifier": self._identifiers[name]}
        if name in state.counts:
            return {"count": state.counts[name]}
        return {}

    def _kernel_values(self, state: GoldenChannel, name: str) -> dict[str, int] | None:
        """Return a kernel register's computed fields; None if it holds the written value."""
        if name == "status":
            failed = state.cause != CAUSES["none"]
            return {"done": int(state.done), "error": int(failed), "cause": state.cause}
        if name in ("beats_read", "beats_written", "not_finite"):
            return {"count": getattr(state, name)}
        if name.startswith("sum_"):
            return {"value": state.sums.get(name, 0)}
        if name in ("control", "cycles", "idle_cycles"):
            return {}
        return None

    def _start(self, state: GoldenChannel) -> None:
        count = state.written.get("count", 0)
        selected = state.written.get("rule", 0)
        if selected >= len(self._rules):
            state.cause = CAUSES["no_rule"]
            return
        formats = Formats.of_code(state.written.get("formats", 0))
        if formats is None:
            state.cause = CAUSES["no_format"]
            return
        chosen = self._rules[selected]
        inputs = {name: state.written.get(f"{name}_in", 0) for name in formats.loads(chosen)}
        outputs = {name: state.written.get(f"{name}_out", 0) for name in formats.stores(chosen)}
        nbytes = {name: formats.tensor_bytes(chosen, name, count) for name in inputs | outputs}
        state.cause = CAUSES[self._cause(formats, count, nbytes, inputs, outputs)]
        if state.cause != CAUSES["none"]:
            return
        state.done = True
        if self._arithmetic:
            self._compute(state, chosen, formats, nbytes, inputs, outputs)
        skipped = formats.skip_not_finite and state.not_finite > 0
        beats = {name: formats.tensor_lines(chosen, name, count) for name in nbytes}
        state.beats_read = 0 if skipped else sum(map(beats.__getitem__, inputs))
        state.beats_written = 0 if skipped else sum(map(beats.__getitem__, outputs))
        if formats.skip_not_finite:
            state.beats_read += beats["g"]
        self._accepted(
            state, chosen, formats, count, tuple(inputs.values()), tuple(outputs.values())
        )

    def _compute(
        self,
        state: GoldenChannel,
        chosen: UpdateRule,
        formats: Formats,
        nbytes: dict[str, int],
        inputs: dict[str, int],
        outputs: dict[str, int],
    ) -> None:
        constants = {
            name: np.uint32(state.written.get(name, 0)).view(np.float32)
            for name in chosen.constants
        }
        model = reference(chosen.name, self.subnormals)

        def tensor(name: str, address: int) -> NDArray[Any]:
            dtype = _TYPES.get(formats.form(chosen, name), np.uint8)
            return state.memory[address : address + nbytes[name]].view(dtype)

        # Tensors that are only stored give the number of values.
        tensors: dict[str, Any] = {
            name: tensor(name, address) for name, address in (outputs | inputs).items()
        }
        if not self.narrow:
            results: dict[str, Any] = model.step(tensors, constants)
        else:
            results, state.not_finite = step(
                model,
                unpacked(tensors, tuple(chosen.states) if formats.codes else ()),
                constants,
                formats.forms(chosen),
                t=state.written.get("step", 0),
                seed=state.written.get("seed", 0),
                copy=formats.copy,
                skip_not_finite=formats.skip_not_finite,
            )
            if state.not_finite and formats.skip_not_finite:
                return
            results = packed(results)
        for name, address in outputs.items():
            tensor(name, address)[:] = results[name]
        for name in chosen.sums:
            state.sums[f"sum_{name}"] = int(np.float32(results[name]).view(np.uint32))

    def _accepted(
        self,
        state: GoldenChannel,
        chosen: UpdateRule,
        formats: Formats,
        count: int,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
    ) -> None:
        """Do nothing; models with time override this to follow an accepted run.

        Its results are in memory. It was skipped if ``formats.skip_not_finite`` and
        ``state.not_finite`` is not 0.
        """

    def _cause(
        self,
        formats: Formats,
        count: int,
        nbytes: dict[str, int],
        inputs: dict[str, int],
        outputs: dict[str, int],
    ) -> str:
        """Return the name of the first check that the settings fail, or ``none``."""
        if count == 0:
            return "zero_count"
        if formats.narrow and count % BLOCK_PARAMETERS:
            return "part_of_block"
        tensors = [*inputs.items(), *outputs.items()]
        if any(address % LINE_BYTES for _, address in tensors):
            return "unaligned"
        if any(address + nbytes[name] > self._dram_end for name, address in tensors):
            return "out_of_range"

        def overlap(one: tuple[str, int], other: tuple[str, int]) -> bool:
            (name, address), (other_name, other_address) = one, other
            return (
                address < other_address + nbytes[other_name]
                and other_address < address + nbytes[name]
            )

        # An in-place tensor does not count as an overlap: it has the same address and length.
        for one, other in product(outputs.items(), inputs.items()):
            if one != other and overlap(one, other):
                return "overlap"
        if any(overlap(one, other) for one, other in combinations(outputs.items(), 2)):
            return "overlap"
        return "none"
