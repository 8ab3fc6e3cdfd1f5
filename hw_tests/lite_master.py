"""An AXI4-Lite manager for cocotb benches."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from cocotb.triggers import RisingEdge

from hw.csr.register_map import RegisterMap
from hw_tests.streams import value_of

__all__ = ["LiteMaster", "kept_bits"]


def kept_bits(registers: RegisterMap) -> dict[int, int]:
    """The bits that keep what is written, of each register that is nothing else, by its offset."""
    return {
        register.offset_bytes: sum((1 << each.width) - 1 << each.lsb for each in register.fields)
        for register in registers.registers
        if all(
            each.sw_writable and each.sw_readable and not (each.pulse or each.clears)
            for each in register.fields
        )
    }


class LiteMaster:
    """Reads and writes words of 64 bits through the ports ``PREFIX_*`` of ``dut``, one at a time.

    ``data_delay`` puts that many cycles between the address and the data of a write (negative:
    the data comes first); ``ready_delay`` lets an answer wait that long.
    """

    def __init__(self, dut: Any, prefix: str, clock: Any) -> None:
        self._dut = dut
        self._prefix = prefix
        self._edge = RisingEdge(clock)
        self.data_delay = 0
        self.ready_delay = 0
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready", "awprot", "arprot"):
            self._signal(name).value = 0

    def _signal(self, name: str) -> Any:
        return getattr(self._dut, f"{self._prefix}_{name}")

    async def _send(self, channels: dict[str, int]) -> None:
        """Offers each channel after its delay in cycles, until all are taken."""
        waiting = dict(channels)
        cycle = 0
        while waiting:
            for channel, delay in waiting.items():
                if delay == cycle:
                    self._signal(f"{channel}valid").value = 1
            await self._edge
            for channel, delay in list(waiting.items()):
                if delay <= cycle and value_of(self._signal(f"{channel}ready")):
                    self._signal(f"{channel}valid").value = 0
                    del waiting[channel]
            cycle += 1

    async def _answer(self, channel: str, names: tuple[str, ...]) -> list[int]:
        for _ in range(self.ready_delay):
            await self._edge
        self._signal(f"{channel}ready").value = 1
        while True:
            await self._edge
            if value_of(self._signal(f"{channel}valid")):
                break
        self._signal(f"{channel}ready").value = 0
        return [value_of(self._signal(f"{channel}{name}")) for name in names]

    async def write(self, address: int, value: int, strobes: int = 0xFF) -> int:
        """Writes a word and returns ``BRESP``."""
        self._signal("awaddr").value = address
        self._signal("wdata").value = value
        self._signal("wstrb").value = strobes
        await self._send({"aw": max(0, -self.data_delay), "w": max(0, self.data_delay)})
        return (await self._answer("b", ("resp",)))[0]

    async def read(self, address: int) -> tuple[int, int]:
        """Reads a word and returns it with ``RRESP``."""
        self._signal("araddr").value = address
        await self._send({"ar": 0})
        value, response = await self._answer("r", ("data", "resp"))
        return value, response

    async def in_a_row(
        self, reads: Sequence[int], writes: Mapping[int, int], *, seed: object
    ) -> None:
        """Offers reads and writes, each without a pause, while answers are taken now and then.

        Every one is answered, once and in order: a read as when it is alone, a write with OKAY. Of
        each register in ``writes`` what was written last is found, in the bits that it has there.
        ``reads`` are of others.
        """
        rng = random.Random(f"{self._prefix} {seed}")
        alone = [await self.read(address) for address in reads]
        for share in (1.0, 0.3, 0.04):
            order = rng.choices(range(len(reads)), k=24)
            stores = [(rng.choice(list(writes)), rng.getrandbits(64)) for _ in order]
            offers = {
                "ar": deque({"addr": reads[which]} for which in order),
                "aw": deque({"addr": address} for address, _ in stores),
                "w": deque({"data": value, "strb": 0xFF} for _, value in stores),
            }
            answers = await self._play(offers, share, rng)
            assert answers["r"] == [alone[which] for which in order]
            assert answers["b"] == [(0,)] * len(stores)
            for address, value in dict(stores).items():
                assert await self.read(address) == (value & writes[address], 0), hex(address)

    async def _play(
        self, offers: dict[str, deque[dict[str, int]]], share: float, rng: random.Random
    ) -> dict[str, list[tuple[int, ...]]]:
        """The answers to ``offers``, of which one is taken in a ``share`` of the cycles."""
        names = {"r": ("data", "resp"), "b": ("resp",)}
        answers: dict[str, list[tuple[int, ...]]] = {"r": [], "b": []}
        waiting: dict[str, tuple[int, ...] | None] = {"r": None, "b": None}
        due = {"r": len(offers["ar"]), "b": len(offers["aw"])}
        quiet = 0
        # And a while longer, in which nothing more may come.
        while quiet < 10 or any(len(answers[channel]) < count for channel, count in due.items()):
            for channel, queue in offers.items():
                self._signal(f"{channel}valid").value = int(bool(queue))
                for name, value in (queue[0] if queue else {}).items():
                    self._signal(f"{channel}{name}").value = value
            ready = {channel: rng.random() < share for channel in answers}
            for channel, takes in ready.items():
                self._signal(f"{channel}ready").value = int(takes)
            await self._edge
            quiet += 1
            for channel, queue in offers.items():
                if queue and value_of(self._signal(f"{channel}ready")):
                    queue.popleft()
                    quiet = 0
            for channel, taken in answers.items():
                if not value_of(self._signal(f"{channel}valid")):
                    assert waiting[channel] is None, f"an answer on {channel} was withdrawn"
                    continue
                answer = tuple(
                    value_of(self._signal(f"{channel}{each}")) for each in names[channel]
                )
                assert waiting[channel] in (None, answer), f"{channel} changed while it waited"
                waiting[channel] = None if ready[channel] else answer
                taken += [answer] * ready[channel]
                quiet = 0
            waits = {channel: len(queue) for channel, queue in offers.items()}
            assert quiet < 2000, f"nothing moves any more: {waits} not taken, of {due} answers"
        for channel in answers:
            self._signal(f"{channel}ready").value = 0
        return answers
