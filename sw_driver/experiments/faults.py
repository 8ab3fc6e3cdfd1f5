"""Flips of single bits in the simulated RTL during an Adam step, and what comes of them."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from golden.dram_map import DramAddressMap
from hw.axdimm.config import ModuleConfig, configure
from hw.logic.line import LINE_BYTES
from hw.sim.dram_device import Violation
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.device import Axdimm
from sw_driver.axdimm.rulejob import RuleJob
from sw_driver.axdimm.runs import RunResult
from sw_driver.device.errors import AxdimmError, DeviceTimeoutError
from sw_driver.device.transport import DeviceFault, DeviceTimeout
from sw_driver.report import Report, Table, Watch, count, share

__all__ = ["WHERE", "Campaign", "Effect", "Flip", "Place", "Trial", "report"]

WHERE = ("registers", "dram", "fifo")
"""Kinds of places whose bits are flipped."""

PARAMETERS = 2000
LIMIT_FABRIC_CYCLES = 20_000
"""Limit of a run, some ten times of what it takes."""


class Effect(StrEnum):
    """Effect of a flip on the step, as the driver sees it."""

    WIRE = "masked: a wire, driven anew at once"
    IDLE = "masked: idle, it stands at the end"
    OVERWRITTEN = "masked: overwritten in time"
    COUNTERS = "masked, but times or counters differ"
    ERROR = "named error"
    LIMIT = "ended by the driver's limit"
    CHECKER = "only the simulated DRAM's checker"
    WRONG = "silently wrong"


ON_A_BOARD = {
    Effect.ERROR: "yes",
    Effect.LIMIT: "yes",
    Effect.CHECKER: "no",
    Effect.WRONG: "no",
}
"""Answer for an effect that is not masked: does the host of a board notice it?"""


class Place(NamedTuple):
    """A register, or a memory with ``words`` words; a register has none."""

    number: int
    name: str
    bits: int
    words: int

    @property
    def where(self) -> str:
        """One of :data:`WHERE`."""
        if not self.words:
            return "registers"
        return "dram" if self.name.endswith(".device.mem") else "fifo"


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A bit and the fabric cycle of its flip, counted from the kernel's START."""

    place: Place
    word: int
    bit: int
    fabric_cycle: int


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A flip and what has come of it."""

    flip: Flip
    outcome: Effect
    message: str
    """The error, or the first DRAM rule that was broken."""

    def describe(self) -> dict[str, Any]:
        """Return the trial as plain values, for JSON."""
        values = asdict(self.flip) | {"place": self.flip.place.name}
        return values | {"outcome": self.outcome.name.lower(), "message": self.message}


class FlippingTransport(VerilatedTransport):
    """RTL whose bits can be flipped, on a DRAM that notes broken rules and goes on."""

    def places(self) -> list[Place]:
        """Return all registers and memories."""
        lines = map(str.split, self._call("places", 0).decode().splitlines())
        return [
            Place(number, name.removeprefix("channel."), int(bits), int(words))
            for number, (name, bits, words) in enumerate(lines)
        ]

    def flip(self, flip: Flip, began: int) -> None:
        """Flip a bit when the kernel, which starts at ``began``, is at the flip's cycle."""
        at = began + flip.fabric_cycle
        self._call("flip", 0, at, flip.place.number, flip.word, flip.bit)

    def masked(self) -> Effect:
        """Return the outcome of a flip from which nothing else came."""
        outcomes = (None, Effect.WIRE, Effect.OVERWRITTEN, Effect.IDLE)
        outcome = outcomes[self._call("flipped", 0)]
        assert outcome is not None, "the bit was not flipped"
        return outcome

    def broken_rule(self) -> str:
        """Return the first DRAM rule that was broken; none is an empty text."""
        tck = ctypes.c_uint64()
        code = self._call("violation", 0, ctypes.byref(tck))
        return "" if code < 0 else f"{Violation(code).name} at tCK {tck.value}"


class Campaign:
    """Adam steps of one channel of the tiny preset, alike but for a flip in each.

    Opening it builds the simulator and makes the step without a flip. Raises ``RuntimeError`` if
    that is not bit-exact.
    """

    def __init__(self, announce: Callable[[str], None] | None = None) -> None:
        self.config: ModuleConfig = configure("tiny", channels=1)
        self._announce = announce
        with self._open() as device:
            job = RuleJob(device, PARAMETERS)
            self._began, self._result, self._tensors = self._step(job)
            if not job.bit_exact():
                raise RuntimeError("the step without a flip is not bit-exact: mend that first")
            assert isinstance(device.transport, FlippingTransport)
            self.places = device.transport.places()
            """All registers and memories."""
            self._addresses = {name: p.address for name, p in job.tensors[0].items()}

    def _open(self) -> Axdimm:
        transport = FlippingTransport(config=self.config, announce=self._announce, faults=True)
        return Axdimm(transport)

    @staticmethod
    def _step(job: RuleJob) -> tuple[int, RunResult, list[bytes]]:
        """Make the step and read all tensors as a host does.

        Return the fabric cycle of START, the run's counters and the tensors.
        """
        run = job.start(0, 1, timeout_fabric_cycles=LIMIT_FABRIC_CYCLES)
        (result,) = job.wait([run])
        job.device.SetArbiterNormal(0)
        tensors = []
        for pointer in job.tensors[0].values():
            held = np.empty(4 * PARAMETERS, np.uint8)
            job.device.MemcpyAxdimm2Host(held, pointer, held.nbytes)
            tensors.append(held.tobytes())
        return run.kernel_began, result, tensors

    def draw(self, where: str, number: int, seed: int) -> list[Flip]:
        """Return flips of random bits, all equally likely, at random cycles of the run.

        In the DRAM the bits are those of the run's tensors. More flips begin with the same ones.
        """
        rng = random.Random(f"{where} {seed}")
        places = [place for place in self.places if place.where == where]
        weights = [place.bits * max(1, place.words) for place in places]
        flips = []
        for _ in range(number):
            (place,) = rng.choices(places, weights)
            word, bit = rng.randrange(max(1, place.words)), rng.randrange(place.bits)
            if where == "dram":
                word, byte = self._word(rng)
                bit = 8 * byte + rng.randrange(8)
            cycle = rng.randrange(self._result.fabric_cycles)
            flips.append(Flip(place=place, word=word, bit=bit, fabric_cycle=cycle))
        return flips

    def _word(self, rng: random.Random) -> tuple[int, int]:
        """Return a byte of a tensor: the number of its line in the DRAM model, and its place."""
        geometry = self.config.part.geometry
        dram = DramAddressMap(
            bank_groups=geometry.bank_groups,
            banks_per_group=geometry.banks_per_group,
            rows=geometry.rows,
            columns=geometry.columns,
        )
        address = rng.choice([*self._addresses.values()]) + rng.randrange(4 * PARAMETERS)
        group, bank, row, column = dram.decode(address)
        bank += group * dram.banks_per_group
        line = (bank * dram.rows + row) * dram.lines_per_row
        return line + column * dram.lines_per_row // dram.columns, address % LINE_BYTES

    def trial(self, flip: Flip) -> Trial:
        """Make the step with a flip."""
        device = self._open()
        transport = device.transport
        assert isinstance(transport, FlippingTransport)
        try:
            job = RuleJob(device, PARAMETERS)
            transport.flip(flip, self._began)
            _, result, tensors = self._step(job)
        except (DeviceTimeoutError, DeviceTimeout, DeviceFault) as error:
            return Trial(flip=flip, outcome=Effect.LIMIT, message=str(error))
        except AxdimmError as error:
            return Trial(flip=flip, outcome=Effect.ERROR, message=str(error))
        else:
            rule = transport.broken_rule()
            if rule:
                outcome = Effect.CHECKER
                rule += "; the results are " + ("right" if tensors == self._tensors else "wrong")
            elif tensors != self._tensors:
                outcome = Effect.WRONG
            elif result != self._result:
                outcome = Effect.COUNTERS
            else:
                outcome = transport.masked()
            return Trial(flip=flip, outcome=outcome, message=rule)
        finally:
            transport.close()


def report(
    where: str,
    number: int,
    seed: int,
    watch: Watch = Watch(),
    announce: Callable[[str], None] | None = None,
) -> Report:
    """Make ``number`` trials and report their outcomes; see :class:`Campaign`."""
    campaign = Campaign(announce)
    flips = campaign.draw(where, number, seed)
    trials = [campaign.trial(flip) for flip in watch.track(flips, "flipping")]
    counts = Counter(trial.outcome for trial in trials)
    columns: dict[str, Callable[[Effect], str]] = {
        "outcome": lambda outcome: outcome.value,
        "flips": lambda outcome: count(counts[outcome]),
        "share": lambda outcome: share(counts[outcome] / number),
        "noticed on a board": lambda outcome: ON_A_BOARD.get(outcome, ""),
    }
    bits = sum(
        place.bits * max(1, place.words) for place in campaign.places if place.where == where
    )
    ours = f"{count(bits)} bits, none of them of a wire" if where != "dram" else "the tensors' bits"
    return Report(
        results={
            "counts": {outcome.name.lower(): counts[outcome] for outcome in Effect},
            "bits": bits,
            "trials": [trial.describe() for trial in trials],
        },
        parts=[Table.of(f"{number} flips in {where}, seed {seed}", Effect, columns)],
        notes=[f"Drawn from {ours}, and from the fabric cycles of an Adam step."],
        machine={"name": "tiny", **campaign.config.describe()},
        workload={"parameters": PARAMETERS, "where": where, "count": number, "seed": seed},
    )
