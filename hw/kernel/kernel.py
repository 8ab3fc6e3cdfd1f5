"""Kernel that applies update rules to tensors in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature, AXI4Signature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.kernel.config import KernelConfig
from hw.kernel.lanes import Lanes
from hw.kernel.narrow_lanes import NarrowLanes
from hw.kernel.registers import WINDOW_ADDR_WIDTH, WINDOW_BYTES, kernel_map
from hw.kernel.settings import RunSettings
from hw.kernel.unit import RuleUnit
from hw.logic.expose import expose
from hw.logic.line import LINE_BITS, LINE_BYTES
from hw.narrow.formats import SCALES_LINE_PARAMETERS
from hw.narrow.run_formats import FORMATS_FIELDS, RunFormats
from hw.stream.block_loader import BlockLoader
from hw.stream.block_writer import BlockWriter
from hw.stream.fifo import StreamFifo

__all__ = ["Kernel"]

_SHALLOW_BEATS = 64
"""Maximum depth, in beats, of FIFOs made of lookup tables."""


class _Parts(NamedTuple):
    """Components of a kernel, and the signals between them."""

    csr: Any
    settings: Any
    loader: Any
    """Loader, or None if no rule loads."""
    lanes: Any
    writer: Any
    """Writer, or None if no rule stores."""
    flush: Signal
    """Flush of the FIFOs."""
    scan: Signal
    """Mode of a run that only counts gradients that are not finite."""
    again: Signal
    """Pulse that begins the run proper after a scan that found only finite gradients."""


class Kernel(wiring.Component):
    """Applies update rules to tensors in memory (paper 3.3).

    Loading of round k+1, computing of round k and storing of round k-1 overlap; a round is one
    block of each tensor. All rules share loader, writer and FIFOs. The registers and their effects
    are those of ``axdimm_kernel`` in ``kernel.rdl`` and of the rules; see
    :func:`~hw.kernel.registers.kernel_map`. In addition:

    - A refused START leaves ``done`` and the counters unchanged.
    - ``busy`` covers the check of the settings; ``cycles`` counts the cycles of ``busy``.
    - A memory error replaces the cause ``start_while_busy`` in the same run.
    - After a memory error no more bursts are issued. Those in flight complete, without computing on
      data that was loaded with an error. Then ``busy`` falls and ``done`` rises.
    - The memory range of a tensor extends to the end of its last line of 64 bytes, which is read as
      a whole; bytes beyond the tensor are not written.

    Parameters
    ----------
    config
        Configuration of the kernel.
    units
        Functional unit of each rule, if it is not a :class:`~hw.kernel.unit.RuleUnit`, for example
        one made of a vendor's operators. See :class:`~hw.kernel.lanes.Lanes` for its interface.

    Members
    -------
    s_axi : In(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The registers: 64 bits, a window of 4 KB.
    m_axi : Out(:class:`~hw.axi.bus.AXI4Signature`)
        The memory: 512 bits, ``config.address_width`` address bits, one ID.
    busy : Out(1)
        A run is in progress.
    begins : Out(1)
        Pulse in the last cycle of a check that was passed.
    running : Out(1)
        The check is over and the run is not.
    check_cycles : Out(8)
        Fabric cycles that the check takes; holds from ``begins`` until the end of the run.

    Examples
    --------
    >>> from hw.kernel.config import KernelConfig
    >>> kernel = Kernel(KernelConfig(rules=("sgd",), lanes=2))
    >>> list(kernel.signature.members)
    ['s_axi', 'm_axi', 'busy', 'begins', 'running', 'check_cycles']
    >>> kernel.m_axi.wdata.shape(), kernel.s_axi.wdata.shape()
    (unsigned(512), unsigned(64))
    """

    def __init__(self, config: KernelConfig, *, units: Sequence[Any] | None = None) -> None:
        self.config = config
        """Configuration of the kernel."""
        if units is None:
            units = [RuleUnit(rule, format=config.format) for rule in config.update_rules]
        self._units = units
        self._map = kernel_map(config.rules, config.narrow)
        if (end := self._map.registers[-1].offset_bytes + LINE_BYTES) > WINDOW_BYTES:
            raise ValueError(
                f"the rules {', '.join(config.rules)} need {end} bytes of registers, a window has "
                f"{WINDOW_BYTES}; build fewer of them into one kernel"
            )
        super().__init__(
            {
                "s_axi": In(
                    AXI4LiteSignature(addr_width=WINDOW_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
                ),
                "m_axi": Out(AXI4Signature(addr_width=config.address_width, data_width=LINE_BITS)),
                "busy": Out(1),
                "begins": Out(1),
                "running": Out(1),
                "check_cycles": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self.config
        layout: dict[str, Any] = {
            "layout": config.rounds,
            "buffer_blocks": config.buffer_blocks,
            "addr_width": config.address_width,
            "uneven": config.narrow,
        }
        csr = self._registers(m)
        m.submodules.settings = settings = RunSettings(config)
        lanes: Any = (NarrowLanes if config.narrow else Lanes)(config, units=self._units)
        m.submodules.lanes = lanes
        loader = BlockLoader(tensors=len(config.loaded), **layout) if config.loaded else None
        writer = BlockWriter(tensors=len(config.stored), **layout) if config.stored else None
        flush, scan, again = (Signal(name=name) for name in ("flush", "scan", "again"))
        fifos: list[Any] = []
        parts = _Parts(csr, settings, loader, lanes, writer, flush, scan, again)
        if loader is not None:
            m.submodules.loader = loader
            expose(m, self.m_axi, loader.axi, loader.axi.signature.members)
            for slot, name in enumerate(config.loaded):
                target = getattr(lanes.i, name)
                fifos.append(self._fifo(m, f"{name}_in", loader.o[slot], target, flush))
            m.d.comb += [lanes.loaded.eq(loader.loaded), loader.freed.eq(lanes.freed)]
        if writer is not None:
            m.submodules.writer = writer
            expose(m, self.m_axi, writer.axi, writer.axi.signature.members)
            for slot, name in enumerate(config.stored):
                source = getattr(lanes.o, name)
                fifos.append(self._fifo(m, f"{name}_out", source, writer.i[slot], flush))
            m.d.comb += [
                writer.filled.eq(lanes.filled),
                lanes.stored.eq(writer.stored),
            ]
            if not config.narrow:
                m.d.comb += [
                    writer.last_strobes.word_select(index, 4).eq(there.replicate(4))
                    for index, there in enumerate(settings.last_parameters)
                ]

        wiring.connect(m, settings.kept, lanes.constants)
        m.d.comb += [
            settings.count.eq(csr.count_count),
            *(
                getattr(settings.constants, name).eq(getattr(csr, f"{name}_value"))
                for name in settings.constants.signature.members
            ),
            *(
                getattr(csr, f"sum_{name}_value").eq(getattr(lanes.sums, name))
                for name in lanes.sums.signature.members
            ),
            lanes.rule.eq(settings.kept_rule),
            lanes.last_parameters.eq(settings.last_parameters),
            self.check_cycles.eq(settings.cycles),
        ]
        self._take_addresses(m, csr, settings)
        if config.narrow:
            self._connect_formats(m, parts)
        self._start_movers(m, parts)
        self._run(m, parts, *self._upsets(m, parts, fifos))
        return m

    def _take_addresses(self, m: Any, csr: Any, settings: Any) -> None:
        """Connect the address registers of the selected rule's tensors to their slots."""
        config = self.config
        with m.Switch(csr.rule_select):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    m.d.comb += [settings.rule.eq(number), settings.known.eq(1)]
                    loads = [f"{name}_in" for name in config.loads(rule)]
                    stores = [f"{name}_out" for name in config.stores(rule)]
                    for first, names in ((0, loads), (len(config.loaded), stores)):
                        m.d.comb += [
                            settings.addresses[slot].eq(getattr(csr, f"{name}_address"))
                            for slot, name in enumerate(names, first)
                        ]

    def _connect_formats(self, m: Any, parts: _Parts) -> None:
        """Connect the signals that depend on the formats of a run's tensors."""
        csr, settings, loader, lanes, writer, _, scan, again = parts
        skip = RunFormats(settings.kept_formats).skip_not_finite
        scanned = Signal()
        with m.If(settings.check | again):
            m.d.sync += scanned.eq(again)
        m.d.comb += [
            scan.eq(skip & ~(scanned | again)),
            settings.formats.eq(Cat(getattr(csr, f"formats_{name}") for name in FORMATS_FIELDS)),
            settings.seed.eq(csr.seed_key),
            settings.t.eq(csr.step_t),
            lanes.formats.eq(settings.kept_formats),
            lanes.seed.eq(settings.kept_seed),
            lanes.t.eq(settings.kept_t),
            lanes.scan.eq(scan),
            csr.not_finite_count.eq(lanes.not_finite),
            loader.present.eq(Mux(scan, 1 << self.config.loaded.index("g"), settings.load_present)),
            writer.present.eq(settings.store_present),
        ]
        # Known long before the check is over. Registers keep them out of the timing paths.
        for mover, way in ((loader, "load"), (writer, "store")):
            for name in ("full", "tail"):
                pairs = zip(getattr(mover, name), getattr(settings, f"{way}_{name}"), strict=True)
                for target, beats in pairs:
                    kept = Signal.like(beats, name=f"{way}_{name}", reset_less=True)
                    m.d.sync += kept.eq(beats)
                    m.d.comb += target.eq(kept)
        for target, strobes in zip(writer.last_strobes, settings.strobes, strict=True):
            m.d.comb += target.eq(strobes)

    def _start_movers(self, m: Any, parts: _Parts) -> None:
        """Start loader and writer.

        A rule without inputs does not start the loader, and one without outputs not the writer. A
        ``scan`` only loads; the run proper then begins with ``again``.
        """
        _, settings, loader, _, writer, _, scan, again = parts
        config = self.config
        for mover, tensors, first in (
            (loader, "inputs", 0),
            (writer, "outputs", len(config.loaded)),
        ):
            if mover is None:
                continue
            m.d.comb += [
                mover.load.eq(settings.check | again),
                *(
                    target.eq(line)
                    for target, line in zip(mover.lines, settings.lines[first:], strict=False)
                ),
            ]
            with m.Switch(settings.kept_rule):
                for number, rule in enumerate(config.update_rules):
                    if count := len(getattr(rule, tensors)):
                        with m.Case(number):
                            starts = self.begins
                            if config.narrow:
                                starts = again | (starts & ~scan if mover is writer else starts)
                            else:
                                m.d.comb += mover.last_tensor.eq(count - 1)
                            m.d.comb += mover.start.eq(starts)

    def _registers(self, m: Any) -> Any:
        m.submodules.csr = csr = CsrBank(self._map, addr_width=WINDOW_ADDR_WIDTH, strobes=True)
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=WINDOW_ADDR_WIDTH, parts=True)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        wiring.connect(m, lite.bus, csr.bus)
        return csr

    def _fifo(self, m: Any, name: str, source: Any, target: Any, flush: Signal) -> StreamFifo:
        depth = self.config.fifo_beats
        if name.startswith("scales"):
            # Lines of scales in a round with a BF16 widest tensor; other rounds have half as many.
            depth = max(2, depth // (SCALES_LINE_PARAMETERS // 32))
        # In block RAM a few lines of 512 bits would use little of many blocks, far apart.
        early = depth <= _SHALLOW_BEATS
        fifo = StreamFifo(shape=LINE_BITS, depth=depth, early=early)
        m.submodules[f"fifo_{name}"] = fifo
        wiring.connect(m, source, fifo.i)
        wiring.connect(m, fifo.o, target)
        m.d.comb += fifo.flush.eq(flush)
        return fifo

    def _upsets(self, m: Any, parts: _Parts, fifos: list[Any]) -> tuple[dict[str, Any], Any]:
        """Return checks of the kernel's state by cause, most serious first, and ``fifos_left``.

        A sound kernel never sets a check, and at the end of a run not ``fifos_left``: FIFOs have
        lines. All are registers, as nothing has to wait for them.
        """
        movers = [mover for mover in (parts.loader, parts.writer) if mover is not None]
        lost = [fifo.i.valid & ~fifo.i.ready for fifo in fifos]
        checks = {
            "settings_upset": [parts.lanes.constants_upset],
            "walk_upset": [parts.lanes.walk_upset, *(mover.upset for mover in movers)],
            "order_upset": lost if parts.loader is None else [*lost, parts.loader.out_of_order],
            # A run with narrow formats may leave the rest of a line in a FIFO.
            "fifos_left": [] if self.config.narrow else [~fifo.rests for fifo in fifos],
        }
        registers = {name: Signal(name=name) for name in checks}
        m.d.sync += [registers[name].eq(Cat(checked).any()) for name, checked in checks.items()]
        fifos_left = registers.pop("fifos_left")
        return registers, fifos_left

    def _run(self, m: Any, parts: _Parts, upsets: dict[str, Any], fifos_left: Any) -> None:
        """Control a run from START to ``done``, and its status registers."""
        csr, settings, loader, lanes, writer, flush, scan, again = parts
        cause_of = self._map["status"]["cause"].code
        axi = self.m_axi
        cause = Signal.like(csr.status_cause)
        done = Signal()
        failed = Signal()
        first = Signal()
        m.d.sync += first.eq(self.begins)
        counters = cycles, beats_read, beats_written, idle_cycles = tuple(
            Signal.like(getattr(csr, f"{name}_count"), name=name)
            for name in ("cycles", "beats_read", "beats_written", "idle_cycles")
        )
        m.d.comb += [
            csr.status_busy.eq(self.busy),
            csr.status_done.eq(done),
            csr.status_cause.eq(cause),
            *(
                getattr(csr, f"status_{name}").eq(0 if part is None else ~part.idle)
                for name, part in (("loading", loader), ("computing", lanes), ("storing", writer))
            ),
            csr.status_error.eq(cause != cause_of("none")),
            *(getattr(csr, f"{counter.name}_count").eq(counter) for counter in counters),
        ]
        movers = [mover for mover in (loader, writer) if mover is not None]
        at_work = [*movers, lanes]
        for part in at_work:
            m.d.comb += [part.rounds.eq(settings.rounds), part.stop.eq(failed)]
        m.d.comb += [lanes.load.eq(settings.check | again), lanes.start.eq(self.begins | again)]
        read_error = C(0, 1) if loader is None else loader.error

        read_beat = axi.rvalid & axi.rready
        write_beat = axi.wvalid & axi.wready
        idle = Cat(part.idle for part in at_work).all()
        with m.FSM(name="state") as fsm:
            m.d.comb += [
                self.busy.eq(~fsm.ongoing("IDLE")),
                self.running.eq(self.busy & ~fsm.ongoing("CHECK")),
            ]
            with m.State("IDLE"), m.If(csr.control_start):
                m.d.comb += settings.take.eq(1)
                m.d.sync += cause.eq(cause_of("none"))
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.comb += settings.check.eq(1)
                with m.If(csr.control_start):
                    m.d.sync += cause.eq(cause_of("start_while_busy"))
                with m.If(settings.fault != cause_of("none")):
                    m.d.sync += cause.eq(settings.fault)
                    m.next = "IDLE"
                with m.Elif(settings.last):
                    m.d.comb += self.begins.eq(1)
                    m.d.sync += [failed.eq(0), done.eq(0)]
                    m.next = "RUN"
            with m.State("RUN"), m.If(idle):
                m.d.comb += flush.eq(1)
                m.d.sync += done.eq(1)
                with m.If(fifos_left & ~failed):
                    m.d.sync += cause.eq(cause_of("order_upset"))
                m.next = "IDLE"
                if self.config.narrow:
                    with m.If(scan & ~failed & (lanes.not_finite == 0)):
                        m.d.sync += done.eq(0)
                        m.next = "AGAIN"
            if self.config.narrow:
                with m.State("AGAIN"):
                    m.d.comb += again.eq(1)
                    m.next = "RUN"
        with m.If(self.running):
            m.d.sync += cycles.eq(cycles + 1)
            for counter, event in (
                (beats_read, read_beat),
                (beats_written, write_beat),
                (idle_cycles, ~(read_beat | write_beat)),
            ):
                with m.If(event):
                    m.d.sync += counter.eq(counter + 1)
            # Set here, since the end of the check comes late; no data comes in the first cycle.
            with m.If(first):
                m.d.sync += [
                    cycles.eq(settings.cycles + 1),
                    idle_cycles.eq(settings.cycles + 1),
                    beats_read.eq(0),
                    beats_written.eq(0),
                ]
            with m.If(csr.control_start & ~failed):
                m.d.sync += cause.eq(cause_of("start_while_busy"))
            with m.If(Cat(mover.error for mover in movers).any() & ~failed):
                m.d.sync += [
                    failed.eq(1),
                    cause.eq(Mux(read_error, cause_of("read_error"), cause_of("write_error"))),
                ]
            for name, upset in reversed(upsets.items()):
                with m.If(upset & ~failed):
                    m.d.sync += [failed.eq(1), cause.eq(cause_of(name))]
