"""Runs with random settings, most of them next to a fault. Parameters: those of the kernel."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from hw.kernel.config import KernelConfig
from hw.kernel.registers import kernel_map
from hw.narrow.formats import CHOICES, Formats
from hw.rules.update_rule import UpdateRule
from hw_tests.bench import bench_parameters
from hw_tests.streams import unpack, value_of

PARAMETERS = bench_parameters()
CONFIG = KernelConfig(**PARAMETERS | {"rules": tuple(PARAMETERS["rules"])})
CAUSE = kernel_map(CONFIG.rules, CONFIG.narrow)["status"]["cause"]
SLOTS = len(CONFIG.loaded + CONFIG.stored)
MOST = Formats(states="linear", copy="bf16") if CONFIG.narrow else Formats()
RUNS = 400
LONGEST_ADDRESS = 40


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is asked for; ``code`` is that of the formats."""

    rule: int
    known: bool
    code: int
    count: int
    addresses: dict[int, int]
    """By slots."""

    @property
    def update_rule(self) -> UpdateRule:
        return CONFIG.update_rules[self.rule]

    @property
    def formats(self) -> Formats | None:
        return Formats.of_code(self.code)

    def tensors(self, formats: Formats) -> dict[int, str]:
        """The tensors with these formats by their slots."""
        rule = self.update_rule
        there = (formats.loads(rule), formats.stores(rule))
        most = (MOST.loads(rule), MOST.stores(rule))
        return {
            first + slot: name
            for first, names, all_names in zip((0, len(CONFIG.loaded)), there, most, strict=True)
            for slot, name in enumerate(all_names)
            if name in names
        }

    def lines(self, formats: Formats, name: str, count: int) -> int:
        return -(-formats.tensor_bytes(self.update_rule, name, count) // 64)


def choose(rng: random.Random) -> Run:
    """A run in which tensors often touch each other or the end of memory, and sometimes overlap,
    are not aligned, or have another mistake."""
    formats = Formats()
    if CONFIG.narrow and rng.random() < 0.9:
        chosen: Any = {name: rng.choice(known) for name, known in CHOICES.items()}
        formats = Formats(**chosen, skip_not_finite=rng.random() < 0.5)
    most_blocks = CONFIG.memory_bytes // (36 * 256)
    blocks = 1 + int((most_blocks - 1) * rng.random() ** rng.choice([1, 3, 20]))
    count = 256 * blocks
    if not formats.narrow or rng.random() < 0.05:
        count += rng.randrange(-255, 256)
    if rng.random() < 0.04:
        count = rng.choice([0, 0, rng.getrandbits(40), (1 << 40) - 1, (1 << 40) - 256])
    run = Run(
        rule=rng.randrange(len(CONFIG.rules)),
        known=rng.random() < 0.98,
        code=formats.code() if rng.random() < 0.97 else rng.getrandbits(9) * CONFIG.narrow,
        count=count,
        addresses={},
    )
    tensors = run.tensors(formats)
    place(rng, run, formats, tensors)
    for slot in run.tensors(MOST).keys() - tensors.keys():
        # Nobody is to look at it.
        wrong = [rng.getrandbits(LONGEST_ADDRESS), rng.choice(list(run.addresses.values()))]
        run.addresses[slot] = rng.choice(wrong)
    if rng.random() < 0.4:
        slot, other = rng.choice(list(tensors)), rng.choice(list(tensors))
        there = run.addresses[slot]
        beyond = rng.randrange(1, run.lines(formats, tensors[slot], run.count) + 2)
        run.addresses[slot] = rng.choice(
            [
                max(0, there - 64),
                (there + 64) % (1 << LONGEST_ADDRESS),
                there ^ 1 << rng.randrange(6),
                run.addresses[other],
                # Across the last address, if it has more than a line.
                -64 * beyond % (1 << LONGEST_ADDRESS),
                rng.getrandbits(LONGEST_ADDRESS) & ~63,
            ]
        )
    return run


def place(rng: random.Random, run: Run, formats: Formats, tensors: dict[int, str]) -> None:
    """One behind the other, those of the same name sometimes in place of each other."""
    homes: dict[str, list[int]] = {}
    for slot, name in tensors.items():
        shared = rng.random() < 0.5
        homes.setdefault(name if shared else f"{name} {slot}", []).append(slot)
    units = list(homes.values())
    rng.shuffle(units)
    gaps = [0 if rng.random() < 0.7 else rng.randrange(8) for _ in units]
    sizes = [run.lines(formats, tensors[unit[0]], run.count) for unit in units]
    room = CONFIG.memory_bytes // 64 - sum(gaps[1:]) - sum(sizes)
    line = max(0, rng.choice([0, room, room, rng.randrange(max(1, room))]))
    for index, (unit, gap, size) in enumerate(zip(units, gaps, sizes, strict=True)):
        line += gap if index else 0
        for slot in unit:
            run.addresses[slot] = 64 * line % (1 << LONGEST_ADDRESS)
        line += size


def outcome(run: Run) -> tuple[str, int]:
    """The cause, ``none`` if the run is accepted, and the cycles of the check."""
    everything = run.tensors(MOST)
    loaded = [slot for slot in everything if slot < len(CONFIG.loaded)]
    stored = [slot for slot in everything if slot >= len(CONFIG.loaded)]
    pairs = [(one, other) for one in stored for other in loaded]
    steps = [*((slot,) for slot in everything), *pairs, *combinations(stored, 2)]
    if not run.known:
        return "no_rule", 1
    if run.formats is None:
        return "no_format", 1
    if not run.count:
        return "zero_count", 1
    if run.formats.narrow and run.count % 256:
        return "part_of_block", 1
    tensors = run.tensors(run.formats)
    if any(run.addresses[slot] % 64 for slot in tensors):
        return "unaligned", 1
    extents = {
        slot: (begin := run.addresses[slot] // 64, begin + run.lines(run.formats, name, run.count))
        for slot, name in tensors.items()
    }
    for cycles, step in enumerate(steps, 1):
        if not all(slot in extents for slot in step):
            continue
        (begin, end), (other_begin, other_end) = extents[step[0]], extents[step[-1]]
        if len(step) == 1:
            if 64 * end > CONFIG.memory_bytes:
                return "out_of_range", cycles
        elif begin < other_end and other_begin < end:
            in_place = step[1] in loaded and tensors[step[0]] == tensors[step[1]]
            if not in_place or begin != other_begin:
                return "overlap", cycles
    return "none", len(steps)


class Bench:
    """The settings' ports."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)

    def port(self, name: str) -> int:
        return value_of(getattr(self.dut, name))

    def ask(self, run: Run | None) -> dict[str, int]:
        """Shows a run, or anything, to be taken over; returns what else was shown."""
        rng = self.rng
        more = {f"constants_{name}": rng.getrandbits(32) for name in self._constants()}
        shown = {
            "rule": run.rule if run else rng.randrange(len(CONFIG.rules)),
            "known": run.known if run else rng.getrandbits(1),
            "count": run.count if run else rng.getrandbits(40),
        }
        for slot in range(SLOTS):
            shown[f"addresses_{slot}"] = run.addresses.get(slot, 0) if run else rng.getrandbits(40)
        if CONFIG.narrow:
            shown["formats"] = run.code if run else rng.getrandbits(9)
            more |= {"seed": rng.getrandbits(64), "t": rng.getrandbits(32)}
        for name, value in (shown | more).items():
            if hasattr(self.dut, name):  # a single rule has no port
                getattr(self.dut, name).value = value
        return more

    @staticmethod
    def _constants() -> set[str]:
        return {name for rule in CONFIG.update_rules for name in rule.constants}

    def check_kept(self, run: Run, more: dict[str, int]) -> None:
        """What is shown of an accepted run."""
        port, formats, rule = self.port, run.formats, run.update_rule
        assert formats is not None
        tensors = run.tensors(formats)
        for name, value in more.items():
            assert port(f"kept_{name.removeprefix('constants_')}") == value, name
        for slot in tensors:
            assert port(f"lines_{slot}") == run.addresses[slot] // 64, slot
        in_round = formats.round_parameters(rule, CONFIG.block_bytes)
        last_round = (run.count - 1) // in_round
        tail = run.count - last_round * in_round
        tails = {slot: run.lines(formats, name, tail) for slot, name in tensors.items()}
        fulls = {slot: run.lines(formats, name, in_round) for slot, name in tensors.items()}
        expected = {"last_round": last_round, "tail_beats": max(tails.values())}
        assert unpack(CONFIG.rounds, port("rounds")) == expected
        assert port("last_parameters") == (1 << (run.count - 1) % 16 + 1) - 1
        assert max(fulls.values()) == CONFIG.block_beats
        if not CONFIG.narrow:
            return
        assert port("kept_formats") == run.code
        for way, places, first in (
            ("load", CONFIG.loaded, 0),
            ("store", CONFIG.stored, len(CONFIG.loaded)),
        ):
            slots = range(len(places))
            present = [slot for slot in slots if first + slot in tensors]
            assert port(f"{way}_present") == sum(1 << slot for slot in present)
            for slot in present:
                assert port(f"{way}_full_{slot}") == fulls[first + slot], (way, slot)
                assert port(f"{way}_tail_{slot}") == tails[first + slot], (way, slot)
                if way == "store":
                    size = formats.tensor_bytes(rule, tensors[first + slot], run.count)
                    assert port(f"strobes_{slot}") == (1 << (size - 1) % 64 + 1) - 1, slot


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def random_runs(dut: Any) -> None:
    """Each has the cause, in the cycle, and if it is accepted all that movers and lanes need."""
    bench = Bench(dut)
    edge = FallingEdge(dut.clk)
    dut.take.value = dut.check.value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await edge
    dut.rst.value = 0
    seen: Counter[str] = Counter()
    for number in range(RUNS):
        run = choose(bench.rng)
        cause, cycles = outcome(run)
        more = bench.ask(run)
        dut.take.value = 1
        await edge
        dut.take.value = 0
        dut.check.value = 1
        if number % 8 == 0:
            bench.ask(None)
        for cycle in range(1, cycles + 1):
            fault, last = value_of(dut.fault), value_of(dut.last)
            ends = cycle == cycles and cause != "none"
            assert fault == (CAUSE.code(cause) if ends else 0), (run, cause, cycle, cycles)
            assert last == (cycle == cycles) or ends, (run, cycle)
            if last and not fault:
                bench.check_kept(run, more)
            await edge
        dut.check.value = 0
        if cause == "none":
            # They hold.
            assert bench.port("cycles") == cycles
            await edge
            bench.check_kept(run, more)
        seen[cause] += 1
    dut._log.info("%s", dict(seen))
    causes = {"none", "no_rule", "zero_count", "unaligned", "out_of_range", "overlap"}
    causes |= {"no_format", "part_of_block"} if CONFIG.narrow else set()
    assert set(seen) == causes
    assert seen["none"] > RUNS // 3
