"""The controller of one vault, closed page: what stands between the switch and a bank's DRAM."""

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
"""Requests that are accepted and not yet answered."""


class _History:
    """What was issued in the last ``depth`` cycles, and in which layer; age 1 is the last one."""

    def __init__(self, m: Any, name: str, depth: int, issued: Any, layer: Any) -> None:
        self._issued = Signal(depth, name=f"{name}_history")
        self._layers = [Signal.like(layer, name=f"{name}_layer_{age + 1}") for age in range(depth)]
        m.d.sync += self._issued.eq(Cat(issued, self._issued))
        for entry, previous in zip(self._layers, [layer, *self._layers], strict=False):
            m.d.sync += entry.eq(previous)

    def within(self, distance: int) -> Any:
        """Whether something was issued less than ``distance`` cycles ago."""
        return self._issued[: distance - 1].any()

    def in_layer_within(self, distance: int, layer: Any) -> Any:
        """Whether something was issued in ``layer`` less than ``distance`` cycles ago."""
        hits = [self._issued[age] & (self._layers[age] == layer) for age in range(distance - 1)]
        return Cat(*hits).any()

    def count(self, distance: int) -> Any:
        """How many were issued less than ``distance`` cycles ago."""
        return sum(self._issued[: distance - 1])


class _Queue:
    """Requests that wait for their columns, in order. ``accept`` takes one, ``issue`` the head."""

    def __init__(self, m: Any, layout: Any, depth: int, *, accept: Any, issue: Any) -> None:
        self.accept, self.issue = accept, issue
        m.submodules.queue = queue = memory.Memory(shape=layout, depth=depth, init=[])
        self.put, get = queue.write_port(), queue.read_port(domain="comb")
        self.head = get.data
        self.head_entry, self.free_entry = (
            Signal(range(depth), name=name) for name in ("head_entry", "free_entry")
        )
        self.level = Signal(range(depth + 1), name="level")
        self.has_room = self.level != depth
        self.depth = depth
        m.d.comb += [
            get.addr.eq(self.head_entry),
            self.put.addr.eq(self.free_entry),
            self.put.en.eq(accept),
        ]
        m.d.sync += [
            self.head_entry.eq(self.head_entry + issue),
            self.free_entry.eq(self.free_entry + accept),
            self.level.eq(self.level + accept - issue),
        ]


class _Accesses:
    """Which accesses a request at ``place`` continues: for each of the two layers of a stretch, the
    request that would be the last of its access, as long as its column has not been issued."""

    def __init__(self, m: Any, place: Any, write: Any, queue: _Queue, *, ends: Any) -> None:
        accept = queue.accept
        stretch = Cat(place.layer_high, place.bank, place.row)
        last_stretch, last_write = Signal.like(stretch), Signal()
        last_entry = [Signal.like(queue.head_entry, name=f"last_entry_{half}") for half in range(2)]
        waiting, alive, alive_here, alive_there = Signal(2), Signal(2), Signal(), Signal()
        same = Signal()
        self.kept: Any = Signal(queue.depth, name="kept")
        """The bank of the request in this entry is not precharged after it."""
        self.joins = Signal(name="joins")
        """The request goes on with the access to its layer."""
        self.bound = same & alive_there
        """The access to the other layer may go on behind it."""
        for half in range(2):
            # All accesses end with what is queued when a refresh falls due.
            issued = queue.issue & (queue.head_entry == last_entry[half])
            m.d.comb += alive[half].eq(waiting[half] & ~issued & ~ends)
        m.d.comb += [
            same.eq((stretch == last_stretch) & (write == last_write)),
            alive_here.eq(alive.bit_select(place.layer_low, 1)),
            alive_there.eq(alive.bit_select(~place.layer_low, 1)),
            self.joins.eq(same & alive_here),
        ]
        m.d.sync += waiting.eq(alive)
        with m.If(accept):
            m.d.sync += [
                last_stretch.eq(stretch),
                last_write.eq(write),
                self.kept.bit_select(queue.free_entry, 1).eq(0),
            ]
            for half in range(2):
                with m.If(place.layer_low == half):
                    m.d.sync += [waiting[half].eq(1), last_entry[half].eq(queue.free_entry)]
                    with m.If(self.joins):
                        m.d.sync += self.kept.bit_select(last_entry[half], 1).eq(1)
                with m.Elif(~same):
                    m.d.sync += waiting[half].eq(0)


class _Refresh:
    """Counts cycles since the last refresh, of which reset counts as one, and orders the next."""

    def __init__(self, m: Any, distances: VaultDistances, after: int, banks: int) -> None:
        self.busy: Any = Signal(banks, name="busy")
        """Banks from their activate until they can be activated again."""
        self.go, self.due, self.waits, self.is_over, self.closed = (
            Signal(name=name)
            for name in ("refresh", "refresh_due", "refreshing", "refreshed", "closed")
        )
        since = Signal(range(distances.refresh_interval + 1))
        m.d.comb += [
            self.due.eq(since == after),
            self.waits.eq(since >= after),
            self.is_over.eq(since >= distances.refresh_to_activate - 1),
            self.closed.eq(self.busy == 0),
            self.go.eq(self.waits & self.closed),
        ]
        m.d.sync += since.eq(Mux(self.go, 0, since + 1))


def _layer_of(place: Any) -> Any:
    return Cat(place.layer_low, place.layer_high)


def _bank_of(entry: Any) -> Any:
    """The number of a bank among those of all layers."""
    return Cat(entry.bank, entry.layer)


class VaultController(wiring.Component):
    """Reads and writes of 32 bytes, in order, through banks that are closed after every access.

    The clock is four tCK long; one column command a cycle moves 32 bytes. An access is what
    stands in the queue for one row of a bank without a request to another 512 bytes or of the
    other direction in between: its first request activates the bank, the last one known when its
    column is issued precharges it. So a stream activates a bank once for the 256 bytes of a row,
    and a lone request of 32 bytes makes a row cycle of its own. Activates run ahead of the
    columns, over the banks; what needs a bank that is still busy waits, and all behind it with it.

    Responses come in the order of the requests, one for each, also for writes: the DRAM has the
    bytes then. A read sees all writes requested before it. An idle vault answers 15 cycles after
    the request with the timing ``hmc2``, 13 with ``cashmc``.

    A request is taken only if there is room for its response, so a user that does not take
    responses stops the requests and nothing else; refreshes go on. None is postponed: two are never
    more than tREFI apart.

    Parameters
    ----------
    geometry, timing
        Organisation and timing of the vault. ``ValueError`` if refreshes come too often for the
        queue to be served in between.
    tag_bits
        Width of the tag of a request, which may be 0.

    Members
    -------
    i : In(stream of :func:`~hw.pim.vault.interface.vault_request_layout`)
    o : Out(stream of :func:`~hw.pim.vault.interface.vault_response_layout`)
    dram : Out(:class:`VaultSignature`)
    idle : Out(1)
        All accepted requests have been answered.
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
        geometry, distances, depth = self.geometry, self._distances, QUEUE_DEPTH
        bank_bits = geometry.layer_bits + geometry.bank_bits
        m: Any = Module()

        accept, issue, activate = Signal(), Signal(), Signal()
        refresh = _Refresh(m, distances, self._refresh_after, geometry.banks)
        place = data.View(geometry.address_layout, self.i.payload.address)
        queue = _Queue(m, self._entry_layout(), depth, accept=accept, issue=issue)
        accesses = _Accesses(m, place, self.i.payload.write, queue, ends=refresh.due)
        self._accept(m, place, queue, accesses)
        row = self._activate(m, place, accesses, refresh, depth=depth, accept=accept, go=activate)
        self._decide_column(m, queue, activate)
        closing = Signal()
        m.d.comb += closing.eq(issue & ~accesses.kept.bit_select(queue.head_entry, 1))
        self._reopen_banks(m, refresh.busy, queue.head, closing, bank_bits)
        with m.If(activate):
            m.d.sync += refresh.busy.bit_select(_bank_of(row), 1).eq(1)
        self._issue(m, activate, refresh.go, row, issue, closing, queue.head)
        self._move_data(m, accept, issue, queue.head)
        return m

    def _entry_layout(self) -> data.StructLayout:
        """A request in the queue."""
        return data.StructLayout(
            {
                # It waits for an activate of its own.
                "first": 1,
                "write": 1,
                "layer": self.geometry.layer_bits,
                "bank": self.geometry.bank_bits,
                "column": self.geometry.column_bits,
                "tag": self._tag_bits,
            }
        )

    def _accept(self, m: Any, place: Any, queue: _Queue, accesses: _Accesses) -> None:
        """Takes requests into the queue as long as there is room for their responses, too."""
        outstanding, answer = Signal(range(_RESPONSES + 1)), Signal()
        entry, request = queue.put.data, self.i.payload
        m.d.comb += [
            self.i.ready.eq(queue.has_room & (outstanding != _RESPONSES)),
            queue.accept.eq(self.i.valid & self.i.ready),
            answer.eq(self.o.valid & self.o.ready),
            self.idle.eq(outstanding == 0),
            entry.first.eq(~accesses.joins),
            entry.write.eq(request.write),
            entry.layer.eq(_layer_of(place)),
            entry.bank.eq(place.bank),
            entry.column.eq(place.column),
            entry.tag.eq(request.tag),
        ]
        m.d.sync += outstanding.eq(outstanding + queue.accept - answer)

    def _activate(
        self,
        m: Any,
        place: Any,
        accesses: _Accesses,
        refresh: _Refresh,
        *,
        depth: int,
        accept: Any,
        go: Any,
    ) -> Any:
        """Decides on activates, in the order of the requests that need them; the next one's row."""
        geometry, distances = self.geometry, self._distances
        row_layout = data.StructLayout(
            {
                "bank": geometry.bank_bits,
                "layer": geometry.layer_bits,
                "row": geometry.row_bits,
                # The access to the other layer of the stretch may go on behind this one.
                "bound": 1,
            }
        )
        m.submodules.rows = rows = SyncFIFO(width=row_layout.size, depth=depth)
        new_row, row = Signal(row_layout), data.View(row_layout, rows.r_data)
        m.d.comb += [
            new_row.row.eq(place.row),
            new_row.layer.eq(_layer_of(place)),
            new_row.bank.eq(place.bank),
            new_row.bound.eq(accesses.bound),
            rows.w_data.eq(new_row),
            rows.w_en.eq(accept & ~accesses.joins),
            rows.r_en.eq(go),
        ]
        same_layer = distances.activate_to_activate_same_layer
        activates = _History(
            m, "activate", max(same_layer, distances.four_activates), go, row.layer
        )
        m.d.comb += go.eq(
            rows.r_rdy
            & (~refresh.waits | row.bound & ~refresh.closed)
            & refresh.is_over
            & ~refresh.busy.bit_select(_bank_of(row), 1)
            & ~activates.within(distances.activate_to_activate)
            & ~activates.in_layer_within(same_layer, row.layer)
            & (activates.count(distances.four_activates) < 4)
        )
        return row

    def _decide_column(self, m: Any, queue: _Queue, activate: Any) -> None:
        """Decides on columns, in order."""
        distances, head, issue = self._distances, queue.head, queue.issue
        # `ripe` activates are tRCD old and have not been used.
        ripens = delayed_pulse(m, activate, distances.activate_to_column - 1, "ripening")
        ripe = Signal.like(queue.level, name="ripe")
        m.d.sync += ripe.eq(ripe + ripens - (issue & head.first))
        near = distances.column_to_column_same_layer
        reads = _History(
            m, "read", max(distances.read_to_write, near), issue & ~head.write, head.layer
        )
        writes = _History(
            m,
            "write",
            max(distances.write_to_read_same_layer, near),
            issue & head.write,
            head.layer,
        )
        blocked = Mux(
            head.write,
            reads.within(distances.read_to_write) | writes.in_layer_within(near, head.layer),
            writes.within(distances.write_to_read)
            | writes.in_layer_within(distances.write_to_read_same_layer, head.layer)
            | reads.in_layer_within(near, head.layer),
        )
        m.d.comb += issue.eq((queue.level != 0) & (~head.first | (ripe != 0)) & ~blocked)

    def _reopen_banks(self, m: Any, busy: Any, head: Any, closing: Any, bank_bits: int) -> None:
        """Ends a bank's time as busy when it can be activated again after its last column."""
        for name, direction, distance in (
            ("read", ~head.write, self._distances.read_to_activate),
            ("write", head.write, self._distances.write_to_activate),
        ):
            recovered = delayed_pulse(
                m, closing & direction, distance - 1, f"recovering_from_{name}"
            )
            banks = [
                Signal(bank_bits, name=f"{name}_bank_{age + 1}") for age in range(distance - 1)
            ]
            for entry, previous in zip(banks, [_bank_of(head), *banks], strict=False):
                m.d.sync += entry.eq(previous)
            with m.If(recovered):
                m.d.sync += busy.bit_select(banks[-1], 1).eq(0)

    def _issue(
        self, m: Any, activate: Any, refresh: Any, row: Any, issue: Any, closing: Any, head: Any
    ) -> None:
        """Shows the commands in the cycle after they were decided."""
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
        """Carries write data to the DRAM and answers, each as long after the decision as it takes.

        Bit i of a pipe is set i + 1 cycles after the decision to issue a column.
        """
        distances = self._distances
        request = self.i.payload
        store = data.StructLayout({"data": 8 * BEAT_BYTES, "strobe": BEAT_BYTES})
        m.submodules.write_data = held = memory.Memory(shape=store, depth=_RESPONSES, init=[])
        put, get = held.write_port(), held.read_port()
        put_at, get_at = Signal(range(_RESPONSES)), Signal(range(_RESPONSES))
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
