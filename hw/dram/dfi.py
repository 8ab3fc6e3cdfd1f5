"""DRAM side of the controller as signals of DFI 3.1 (DDR PHY Interface)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.controller import Ddr4Controller
from hw.dram.fabric_timing import COLUMN_SLOT, write_latency
from hw.dram.geometry import DramGeometry
from hw.dram.interface import SLOTS, DramCommand, DramSignature
from hw.dram.timing import DramTiming
from hw.logic.expose import expose
from hw.logic.line import LINE_BITS, LINE_BYTES

__all__ = ["DfiController", "DfiPort", "DfiSignature", "dfi_timing"]

_PINS = ("we_n", "cas_n", "ras_n")
"""Command pins that DDR4 shares with the address bits 14, 15 and 16, in that order."""

_FIRST_PIN = 14
_ADDRESS_BITS = 13
"""Minimum width of the DRAM's address, in bits: up to A12, which selects a burst of eight."""
_DESELECTED = 0b111

# JESD79-4, command truth table: WE_n, CAS_n and RAS_n, from the lowest bit.
_CODES = {
    DramCommand.REF: 0b001,
    DramCommand.PRE: 0b010,
    DramCommand.PREA: 0b010,
    DramCommand.WR: 0b100,
    DramCommand.RD: 0b101,
}


def dfi_timing(timing: DramTiming) -> dict[str, int]:
    """Return the timing parameters that :class:`DfiPort` keeps, in clocks of the PHY (tCK)."""
    return {
        "tphy_wrlat": SLOTS * write_latency(timing, COLUMN_SLOT),
        "tphy_wrdata": 0,
        "trddata_en": 0,
    }


class DfiSignature(wiring.Signature):
    """The control, write data and read data interfaces of DFI, as the controller sees them.

    The frequency ratio is 1:4. Phase N of a cycle of the controller's clock is one of the DRAM's
    clocks; its signals have the suffix ``_pN``, or ``_wN`` for read data. There is one rank, and
    one enable for the whole word. Initialisation and its status, training, updates, low power,
    parity and CRC, and data bus inversion are left out.

    Members
    -------
    address_pN, bank_pN, bg_pN, act_n_pN, ras_n_pN, cas_n_pN, we_n_pN, cs_n_pN : Out
        A command of JESD79-4 in each phase, or deselect. With ACT the address is the row, whose
        bits 14 to 16 are also on ``we_n``, ``cas_n`` and ``ras_n``, as on the DRAM's pins.
    cke_pN, reset_n_pN : Out(1)
        Always 1.
    odt_pN : Out(1)
        1 from a WR for the six clocks that a burst of eight takes.
    wrdata_en_pN, wrdata_pN, wrdata_mask_pN : Out(1), Out(128), Out(16)
        Two transfers, the first in the lower half. A set bit of the mask keeps its byte.
    rddata_en_pN : Out(1)
        1 in the four clocks from a RD on.
    rddata_wN, rddata_valid_wN : In(128), In(1)
        A burst, in the four words of one cycle, any time after its RD; bursts come in order.

    Examples
    --------
    >>> from hw.dram.presets import TINY
    >>> phy = DfiSignature(TINY.geometry)
    >>> [name for name in phy.members if "rddata" in name and name.endswith("0")]
    ['rddata_en_p0', 'rddata_w0', 'rddata_valid_w0']
    >>> phy.members["wrdata_p0"]
    Out(128)
    """

    def __init__(self, geometry: DramGeometry) -> None:
        controls = {
            "address": max(geometry.address_bits, _ADDRESS_BITS),
            "bank": geometry.bank_bits,
            "bg": geometry.bank_group_bits,
            **dict.fromkeys(("act_n", *_PINS, "cs_n", "cke", "reset_n", "odt"), 1),
            "wrdata_en": 1,
            "wrdata": LINE_BITS // SLOTS,
            "wrdata_mask": LINE_BYTES // SLOTS,
            "rddata_en": 1,
        }
        answers = {"rddata": LINE_BITS // SLOTS, "rddata_valid": 1}
        super().__init__(
            {
                f"{name}_{phase}{slot}": direction(width)
                for names, phase, direction in ((controls, "p", Out), (answers, "w", In))
                for slot in range(SLOTS)
                for name, width in names.items()
            }
        )


class DfiPort(wiring.Component):
    """Commands and data of the controller in the signals of DFI; see :func:`dfi_timing`.

    Members
    -------
    dram : In(:class:`~hw.dram.interface.DramSignature`)
        The controller, which is told when read data come.
    dfi : Out(:class:`DfiSignature`)
        The PHY.
    """

    def __init__(self, *, geometry: DramGeometry, timing: DramTiming) -> None:
        self._write_latency = write_latency(timing, COLUMN_SLOT)
        super().__init__(
            {
                "dram": In(DramSignature(geometry, read_valid=True)),
                "dfi": Out(DfiSignature(geometry)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        dram = self.dram

        def phases(name: str, kind: str = "p") -> list[Any]:
            return [getattr(self.dfi, f"{name}_{kind}{slot}") for slot in range(SLOTS)]

        for slot in range(SLOTS):
            self._encode(m, slot)
        column = getattr(dram, f"command_p{COLUMN_SLOT}")
        writes = Signal(self._write_latency + 1)
        m.d.comb += writes[0].eq(column == DramCommand.WR)
        m.d.sync += writes[1:].eq(writes)
        m.d.comb += [
            Cat(phases("cke")).eq(-1),
            Cat(phases("reset_n")).eq(-1),
            Cat(phases("odt")).eq(Mux(writes[0], 0b1111, Mux(writes[1], 0b0011, 0))),
            Cat(phases("wrdata_en")).eq(writes[-1].replicate(SLOTS)),
            Cat(phases("wrdata")).eq(dram.write_data),
            Cat(phases("wrdata_mask")).eq(dram.write_mask),
            Cat(phases("rddata_en")).eq((column == DramCommand.RD).replicate(SLOTS)),
            dram.read_valid.eq(Cat(phases("rddata_valid", "w")).all()),
            dram.read_data.eq(Cat(phases("rddata", "w"))),
        ]
        return m

    def _encode(self, m: Any, slot: int) -> None:
        """Encode the command of a slot as JESD79-4 has it on the pins."""
        command, group, bank, address = (
            getattr(self.dram, f"{name}_p{slot}")
            for name in ("command", "bank_group", "bank", "address")
        )

        def phase(name: str) -> Any:
            return getattr(self.dfi, f"{name}_p{slot}")

        activates = command == DramCommand.ACT
        column = Cat(address, C(0, 10))[:10]
        pins = Cat(phase(name) for name in _PINS)
        m.d.comb += [
            phase("cs_n").eq(command == DramCommand.NOP),
            phase("act_n").eq(~activates),
            phase("bg").eq(group),
            phase("bank").eq(bank),
            phase("address").eq(
                # The command gives the address bits above the column their meaning.
                Mux(activates, address, Cat(column, command == DramCommand.PREA, C(0b10, 2)))
            ),
            pins.eq(_DESELECTED),
        ]
        with m.Switch(command):
            with m.Case(DramCommand.ACT):
                m.d.comb += pins.eq(address[_FIRST_PIN:])  # 0 if no row is so wide
            for value, code in _CODES.items():
                with m.Case(value):
                    m.d.comb += pins.eq(code)


class DfiController(wiring.Component):
    """The DDR4 controller with a PHY port in the place of the DRAM's.

    Members
    -------
    dfi : Out(:class:`DfiSignature`)
        The PHY, in place of ``dram``.
    all others: those of :class:`~hw.dram.controller.Ddr4Controller`
    """

    def __init__(self, **settings: Any) -> None:
        self._controller = controller = Ddr4Controller(**settings, read_valid=True)
        self.config = controller.config
        members = controller.signature.members
        self._own = {name: member for name, member in members.items() if name != "dram"}
        super().__init__({**self._own, "dfi": Out(DfiSignature(controller.geometry))})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.controller = controller = self._controller
        m.submodules.port = port = DfiPort(geometry=controller.geometry, timing=controller.timing)
        expose(m, self, controller, self._own)
        wiring.connect(m, controller.dram, port.dram)
        wiring.connect(m, port.dfi, wiring.flipped(self.dfi))
        return m
