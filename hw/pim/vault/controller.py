"""Closed-page controller of one vault, between the switch and a bank's DRAM."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.dram.fabric_timing import COLUMN_SLOT
from hw.dram.interface import SLOTS
from hw.float.parts import delayed_pulse
from hw.pim.config import BEAT_BYTES
from hw.pim.vault.distances import QUEUE_DEPTH, VaultDistances
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.vault.interface import (
    VaultCommand,
    VaultSignature,
    vault_request_layout,
    vault_response_layout,
)
from hw.pim.vault.timing import VaultTiming
from hw.stream.fifo import StreamFifo

__all__ = ["VaultController"]

_RESPONSES = 32
"""Maximum number of requests in flight (accepted, not answered)."""


class _History:
    """Commands issued in the last ``depth`` cycles, with their layers; age 1 is the last cycle."""

    def __init__(self, m: Any, name: str, depth: int, issued: Any, layer: Any) -> None:
        self._issued = Signal(depth, name=f"{name}_history")
        self._layers = [Signal.like(layer, name=f"{name}_layer_{age + 1}") for age in range(depth)]
        m.d.sync += self._issued.eq(Cat(issued, self._issued))
        for entry, previous in zip(self._layers, [layer, *self._layers], strict=False):
            m.d.sync += entry.eq(previous)

    def within(self, distance: int) -> Any:
        """Return whether a command was issued less than ``distance`` cycles ago."""
        return self._issued[: distance - 1].any()

    def in_layer_within(self, distance: int, layer: Any) -> Any:
        """Return whether a command went to ``layer`` less than ``distance`` cycles ago."""
        hits = [self._issued[age] & (self._layers[age] == layer) for age in range(distance - 1)]
        return Cat(*hits).any()

    def count(self, distance: int) -> Any:
        """Count the commands issued less than ``distance`` cycles ago."""
        return sum(self._issued[: distance - 1])


class VaultController(wiring.Component):
    """In-order controller for reads and writes of 32 bytes; banks close after every access.

    The clock is four tCK long; one column command a cycle moves 32 bytes. An access is a series of
    queued requests for one row of a bank. A request to another 512 bytes or of the other direction
    ends it. Its first request activates the bank. Its last request, as known when the column is
    issued, precharges the bank. So a stream activates a bank once for the 256 bytes of a row, and a
    lone request of 32 bytes makes its own row cycle. Activates run ahead of the columns, across
    banks. A request for a busy bank waits, and so do all requests behind it.

    Every request, also a write, has one response, in the order of the requests. After a write's
    response, the DRAM has the bytes. A read sees all writes requested before it. An idle vault
    answers 15 cycles after the request with the timing ``hmc2``, 13 with ``cashmc``.

    A request is taken only if there is room for its response. So a user that does not take
    responses stops only the requests; refreshes go on. Refreshes are not postponed: two are never
    more than tREFI apart.

    Parameters
    ----------
    geometry, timing
        Organisation and timing of the vault. ``ValueError`` if refreshes come too often for the
        queue to be served in between.
    tag_bits
        Width of a request's tag; may be 0.

    Members
    -------
    i : In(stream of :func:`~hw.pim.vault.interface.vault_request_layout`)
    o : Out(stream of :func:`~hw.pim.vault.interface.vault_response_layout`)
    dram : Out(:class:`VaultSignature`)
    idle : Out(1)
        All accepted requests have been answered.

    Examples
    --------
    >>> from hw.pim.vault.timing import vault_part
    >>> part = vault_part("hmc2")
    >>> vault = VaultController(geometry=part.geometry, timing=part.timing, tag_bits=4)
    >>> vault.i.payload.shape()
    StructLayout({'data': 256, 'strobe': 32, 'address': 28, 'tag': 4, 'write': 1})
    """

    def __init__(self, *, geometry: VaultGeometry, timing: VaultTiming, tag_bits: int = 8) -> None:
        self.geometry = geometry
        self.timing = timing
        self._tag_bits = tag_bits
        self._distances = distances = VaultDistances.of(timing)
        drain = distances.drain_cycles(geometry.banks)
        self._refresh_after = distances.refresh_interval - drain
        if self._refresh_after <= distances.refresh_to_activate:
            raise ValueError(
                "t_refi must be at least "
                f"{SLOTS * (drain + distances.refresh_to_activate + 1)} tCK for "
                f"t_rfc {timing.t_rfc} and a queue of {QUEUE_DEPTH}, got {timing.t_refi}"
            )
        super().__init__(
            {
                "i": In(stream.Signature(vault_request_layout(geometry, tag_bits))),
                "o": Out(stream.Signature(vault_response_layout(tag_bits))),
                "dram": Out(VaultSignature(geometry)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        accept = Signal()
        issue = Signal()
        put, head, head_entry, level = self._queue(m, accept, issue)
        refresh_due = Signal()
        joins, bound, kept = self._join(m, accept, put.addr, issue, head_entry, refresh_due)
        self._put(m, put, joins)
        row, rows = self._rows(m, accept & ~joins, bound)
        busy: Any = Signal(self.geometry.banks)
        activate, refresh = self._activate(m, row, rows, busy, refresh_due)
        self._choose_column(m, activate, issue, level, head)
        closing = Signal()
        m.d.comb += closing.eq(issue & ~kept.bit_select(head_entry, 1))
        self._keep_busy(m, busy, activate, row, closing, head)
        self._issue(m, activate, refresh, row, issue, closing, head)
        self._move_data(m, accept, issue, head)
        return m

    def _place(self) -> Any:
        """Return the fields of the offered request's address."""
        return data.View(self.geometry.address_layout, self.i.payload.address)

    def _layer(self) -> Any:
        place = self._place()
        return Cat(place.layer_low, place.layer_high)

    def _queue(self, m: Any, accept: Signal, issue: Signal) -> tuple[Any, Any, Signal, Signal]:
        """Place the queue of requests without a column command yet.

        Requests with ``first`` wait for their own activate. Return the write port, the head's data,
        the head's index, and the number of requests.
        """
        geometry, depth = self.geometry, QUEUE_DEPTH
        queue_layout = data.StructLayout(
            {
                "first": 1,
                "write": 1,
                "layer": geometry.layer_bits,
                "bank": geometry.bank_bits,
                "column": geometry.column_bits,
                "tag": self._tag_bits,
            }
        )
        m.submodules.queue = queue = memory.Memory(shape=queue_layout, depth=depth, init=[])
        put, get = queue.write_port(), queue.read_port(domain="comb")
        head_entry = Signal(range(depth))
        free_entry = Signal(range(depth))
        level = Signal(range(depth + 1))
        outstanding = Signal(range(_RESPONSES + 1))
        answer = Signal()
        m.d.comb += [
            self.i.ready.eq((level != depth) & (outstanding != _RESPONSES)),
            accept.eq(self.i.valid & self.i.ready),
            answer.eq(self.o.valid & self.o.ready),
            self.idle.eq(outstanding == 0),
            put.addr.eq(free_entry),
            put.en.eq(accept),
            get.addr.eq(head_entry),
        ]
        m.d.sync += [
            head_entry.eq(head_entry + issue),
            free_entry.eq(free_entry + accept),
            level.eq(level + accept - issue),
            outstanding.eq(outstanding + accept - answer),
        ]
        return put, get.data, head_entry, level

    def _put(self, m: Any, put: Any, joins: Signal) -> None:
        """Write the offered request's fields to the queue."""
        request, place = self.i.payload, self._place()
        m.d.comb += [
            put.data.first.eq(~joins),
            put.data.write.eq(request.write),
            put.data.layer.eq(self._layer()),
            put.data.bank.eq(place.bank),
            put.data.column.eq(place.column),
            put.data.tag.eq(request.tag),
        ]

    def _join(
        self,
        m: Any,
        accept: Signal,
        free_entry: Signal,
        issue: Signal,
        head_entry: Signal,
        refresh_due: Signal,
    ) -> tuple[Signal, Any, Any]:
        """Find the access that the offered request continues.

        A stretch is 512 bytes in two layers. For each layer, this keeps the last request of the
        access until its column is issued. Return whether the request continues an access, whether
        there is one in the other layer, and the queue entries that do not precharge their bank.
        """
        depth, request, place = QUEUE_DEPTH, self.i.payload, self._place()
        stretch = Cat(place.layer_high, place.bank, place.row)
        last_stretch = Signal.like(stretch)
        last_write = Signal()
        last_entry = [Signal(range(depth), name=f"last_entry_{half}") for half in range(2)]
        waiting = Signal(2)
        alive = Signal(2)
        alive_here = Signal()
        alive_there = Signal()
        kept: Any = Signal(depth)
        same = Signal()
        joins = Signal()
        for half in range(2):
            # When a refresh is due, all accesses end with their queued requests.
            m.d.comb += alive[half].eq(
                waiting[half] & ~(issue & (head_entry == last_entry[half])) & ~refresh_due
            )
        m.d.comb += [
            same.eq((stretch == last_stretch) & (request.write == last_write)),
            alive_here.eq(alive.bit_select(place.layer_low, 1)),
            alive_there.eq(alive.bit_select(~place.layer_low, 1)),
            joins.eq(same & alive_here),
        ]
        m.d.sync += waiting.eq(alive)
        with m.If(accept):
            m.d.sync += [
                last_stretch.eq(stretch),
                last_write.eq(request.write),
                kept.bit_select(free_entry, 1).eq(0),
            ]
            for half in range(2):
                with m.If(place.layer_low == half):
                    m.d.sync += [waiting[half].eq(1), last_entry[half].eq(free_entry)]
                    with m.If(joins):
                        m.d.sync += kept.bit_select(last_entry[half], 1).eq(1)
                with m.Elif(~same):
                    m.d.sync += waiting[half].eq(0)
        return joins, same & alive_there, kept

    def _rows(self, m: Any, put: Any, bound: Any) -> tuple[Any, SyncFIFO]:
        """Queue the activates that requests need; return the first one and the queue.

        An activate is ``bound`` if the access to the other layer of its stretch may go on behind
        it.
        """
        geometry, place = self.geometry, self._place()
        row_layout = data.StructLayout(
            {
                "bank": geometry.bank_bits,
                "layer": geometry.layer_bits,
                "row": geometry.row_bits,
                "bound": 1,
            }
        )
        m.submodules.rows = rows = SyncFIFO(width=row_layout.size, depth=QUEUE_DEPTH)
        new_row, row = Signal(row_layout), data.View(row_layout, rows.r_data)
        m.d.comb += [
            new_row.row.eq(place.row),
            new_row.layer.eq(self._layer()),
            new_row.bank.eq(place.bank),
            new_row.bound.eq(bound),
            rows.w_data.eq(new_row),
            rows.w_en.eq(put),
        ]
        return row, rows

    def _activate(
        self, m: Any, row: Any, rows: SyncFIFO, busy: Any, refresh_due: Signal
    ) -> tuple[Signal, Signal]:
        """Activate for the first of ``rows`` as soon as timing allows, and refresh.

        Return the pulses of both.
        """
        distances = self._distances
        activate = Signal()
        activates = _History(
            m,
            "activate",
            max(distances.activate_to_activate_same_layer, distances.four_activates),
            activate,
            row.layer,
        )
        # Cycles since the last refresh or reset.
        since = Signal(range(distances.refresh_interval + 1))
        refresh = Signal()
        refreshing = Signal()
        refreshed = Signal()
        closed = Signal()
        m.d.comb += [
            refresh_due.eq(since == self._refresh_after),
            refreshing.eq(since >= self._refresh_after),
            refreshed.eq(since >= distances.refresh_to_activate - 1),
            closed.eq(busy == 0),
            refresh.eq(refreshing & closed),
            rows.r_en.eq(activate),
            activate.eq(
                rows.r_rdy
                & (~refreshing | row.bound & ~closed)
                & refreshed
                & ~busy.bit_select(_bank(row), 1)
                & ~activates.within(distances.activate_to_activate)
                & ~activates.in_layer_within(distances.activate_to_activate_same_layer, row.layer)
                & (activates.count(distances.four_activates) < 4)
            ),
        ]
        m.d.sync += since.eq(Mux(refresh, 0, since + 1))
        return activate, refresh

    def _choose_column(
        self, m: Any, activate: Signal, issue: Signal, level: Signal, head: Any
    ) -> None:
        """Issue the columns in order; ``ripe`` counts unused activates that are tRCD old."""
        distances = self._distances
        ripens = delayed_pulse(m, activate, distances.activate_to_column - 1, "ripening")
        ripe = Signal(range(QUEUE_DEPTH + 1))
        m.d.sync += ripe.eq(ripe + ripens - (issue & head.first))
        reads = _History(
            m,
            "read",
            max(distances.read_to_write, distances.column_to_column_same_layer),
            issue & ~head.write,
            head.layer,
        )
        writes = _History(
            m,
            "write",
            max(distances.write_to_read_same_layer, distances.column_to_column_same_layer),
            issue & head.write,
            head.layer,
        )
        near = distances.column_to_column_same_layer
        blocked = Mux(
            head.write,
            reads.within(distances.read_to_write) | writes.in_layer_within(near, head.layer),
            writes.within(distances.write_to_read)
            | writes.in_layer_within(distances.write_to_read_same_layer, head.layer)
            | reads.in_layer_within(near, head.layer),
        )
        m.d.comb += issue.eq((level != 0) & (~head.first | (ripe != 0)) & ~blocked)

    def _keep_busy(
        self, m: Any, busy: Any, activate: Signal, row: Any, closing: Signal, head: Any
    ) -> None:
        """Keep a bank busy from its activate until it can be activated again."""
        distances = self._distances
        for name, direction, distance in (
            ("read", ~head.write, distances.read_to_activate),
            ("write", head.write, distances.write_to_activate),
        ):
            recovered = delayed_pulse(
                m, closing & direction, distance - 1, f"recovering_from_{name}"
            )
            banks = [
                Signal(len(_bank(head)), name=f"{name}_bank_{age + 1}")
                for age in range(distance - 1)
            ]
            for entry, previous in zip(banks, [_bank(head), *banks], strict=False):
                m.d.sync += entry.eq(previous)
            with m.If(recovered):
                m.d.sync += busy.bit_select(banks[-1], 1).eq(0)
        with m.If(activate):
            m.d.sync += busy.bit_select(_bank(row), 1).eq(1)

    def _issue(
        self, m: Any, activate: Any, refresh: Any, row: Any, issue: Any, closing: Any, head: Any
    ) -> None:
        """Drive the commands in the cycle after their decision."""
        dram, command = self.dram, VaultCommand
        row_command = Mux(
            activate, command.ACT.value, Mux(refresh, command.REF.value, command.NOP.value)
        )
        column_command = Mux(
            head.write,
            Mux(closing, command.WRA.value, command.WR.value),
            Mux(closing, command.RDA.value, command.RD.value),
        )
        for slot, shown, entry, address in (
            (self._distances.activate_slot, row_command, row, row.row),
            (COLUMN_SLOT, Mux(issue, column_command, command.NOP.value), head, head.column),
        ):
            m.d.sync += [
                getattr(dram, f"command_p{slot}").eq(shown),
                getattr(dram, f"layer_p{slot}").eq(entry.layer),
                getattr(dram, f"bank_p{slot}").eq(entry.bank),
                getattr(dram, f"address_p{slot}").eq(address),
            ]

    def _move_data(self, m: Any, accept: Any, issue: Any, head: Any) -> None:
        """Delay write data to its slot on the DRAM bus, and answers until read data is there.

        Bit i of a pipe is set i + 1 cycles after the decision to issue a column.
        """
        distances = self._distances
        request = self.i.payload
        store = data.StructLayout({"data": 8 * BEAT_BYTES, "strobe": BEAT_BYTES})
        m.submodules.write_data = held = memory.Memory(shape=store, depth=_RESPONSES, init=[])
        put, get = held.write_port(), held.read_port()
        put_at = Signal(range(_RESPONSES))
        get_at = Signal(range(_RESPONSES))
        fetch = delayed_pulse(m, issue & head.write, distances.write_latency, "write_pipe")
        m.d.comb += [
            put.addr.eq(put_at),
            put.en.eq(accept & request.write),
            put.data.data.eq(request.data),
            put.data.strobe.eq(request.strobe),
            get.addr.eq(get_at),
            get.en.eq(fetch),
            self.dram.write_data.eq(get.data.data),
            self.dram.write_mask.eq(~get.data.strobe),
        ]
        m.d.sync += [put_at.eq(put_at + put.en), get_at.eq(get_at + get.en)]

        m.submodules.answers = answers = StreamFifo(
            shape=vault_response_layout(self._tag_bits), depth=_RESPONSES
        )
        stage = data.StructLayout({"valid": 1, "write": 1, "tag": self._tag_bits})
        pipe = [
            Signal(stage, name=f"answer_{age + 1}") for age in range(distances.read_latency + 1)
        ]
        m.d.sync += [
            pipe[0].valid.eq(issue),
            pipe[0].write.eq(head.write),
            pipe[0].tag.eq(head.tag),
        ]
        for entry, previous in zip(pipe[1:], pipe, strict=False):
            m.d.sync += entry.eq(previous)
        done = answers.i.payload
        m.d.comb += [
            answers.i.valid.eq(pipe[-1].valid),
            done.data.eq(self.dram.read_data),
            done.tag.eq(pipe[-1].tag),
            done.write.eq(pipe[-1].write),
        ]
        wiring.connect(m, answers.o, wiring.flipped(self.o))


def _bank(entry: Any) -> Any:
    """Return the number of an entry's bank in the vault."""
    return Cat(entry.bank, entry.layer)
