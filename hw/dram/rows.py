"""Row scheduler: it precharges and activates banks ahead of the columns that need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hw.dram.fabric_timing import FabricTiming
from hw.dram.geometry import DramGeometry
from hw.dram.request import SEQUENCE_BITS, request_layout

__all__ = ["TIME_BITS", "RowScheduler"]

TIME_BITS = 16
"""Width of the time stamps, in fabric cycles. They wrap: an event that is as old as their range
looks recent for a few cycles, which can delay a command but never issue one early."""

_ITEMS = 8


class _Items(NamedTuple):
    """Queue from the first stage to the second: the banks of the requests, in order.

    ``put`` and ``get`` are the ports of its memory; ``tail`` and ``head`` count items in and out.
    """

    put: Any
    get: Any
    tail: Signal
    head: Signal


class RowScheduler(wiring.Component):
    """Keeps the rows of the queued requests open; the bank machines of the controller.

    The state of all banks is in small memories indexed by bank, not in one machine per bank:
    requests are served in order, so each of two stages looks at one bank a cycle. The first stage
    walks the queued requests and the one or two banks of each. It precharges a bank planned for
    another row as soon as no earlier request uses it and tRAS, tRTP and tWR are over. The second
    stage activates, in the same order, when tRP, tRRD and tFAW allow. Both issue up to one command
    a fabric cycle; a precharge may overtake activates that still wait.

    Members
    -------
    now : In(TIME_BITS)
        Free-running fabric cycle count.
    hold : In(1)
        Issue nothing.
    flush : In(1)
        All banks were precharged; forget the plans. Only with ``hold``.
    plan_valid, plan, plan_sequence : In(1), In(request), In(SEQUENCE_BITS)
        The queue's next request to prepare, see :class:`~hw.dram.request.RequestQueue`.
    plan_next, prepared : Out(1)
        Tell the queue to move ``plan`` on, and that one more request has its rows open or on the
        way.
    column_sequence : In(SEQUENCE_BITS)
        Number of the queue's oldest request.
    column_bank, column_ready : In(bank bits), Out(1)
        Whether tRCD is over in ``column_bank`` (an index {bank group, bank}).
    column_issue, column_write : In(1)
        A read or write to ``column_bank`` is being issued.
    precharge, precharge_bank : Out(1), Out(bank bits)
        A precharge to issue now.
    activate, activate_bank, activate_row : Out(1), Out(bank bits), Out(row bits)
        An activate to issue now.
    any_open : Out(1)
        Some bank is open or planned to be.
    """

    def __init__(self, *, geometry: DramGeometry, timing: FabricTiming) -> None:
        self._geometry = geometry
        self._timing = timing
        self._bank_bits = bank_bits = geometry.bank_group_bits + geometry.bank_bits
        super().__init__(
            {
                "now": In(TIME_BITS),
                "hold": In(1),
                "flush": In(1),
                "plan_valid": In(1),
                "plan": In(request_layout(geometry)),
                "plan_sequence": In(SEQUENCE_BITS),
                "plan_next": Out(1),
                "prepared": Out(1),
                "column_sequence": In(SEQUENCE_BITS),
                "column_bank": In(bank_bits),
                "column_ready": Out(1),
                "column_issue": In(1),
                "column_write": In(1),
                "precharge": Out(1),
                "precharge_bank": Out(bank_bits),
                "activate": Out(1),
                "activate_bank": Out(bank_bits),
                "activate_row": Out(geometry.row_bits),
                "any_open": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        activated = self._table(m, "activated", TIME_BITS)
        released = self._table(m, "released", TIME_BITS)
        items = self._items(m)
        self._release(m, released)
        self._plan(m, items, activated, released)
        self._activate(m, items, activated)
        return m

    def _items(self, m: Any) -> _Items:
        layout = data.StructLayout(
            {
                "activate": 1,
                "last": 1,
                "bank": self._bank_bits,
                "row": self._geometry.row_bits,
            }
        )
        items = self._table(m, "items", layout, _ITEMS)
        put_item = items.write_port()
        get_item = items.read_port(domain="comb")
        item_tail = Signal(range(2 * _ITEMS))
        item_head = Signal(range(2 * _ITEMS))
        return _Items(put_item, get_item, item_tail, item_head)

    def _table(self, m: Any, name: str, shape: Any, depth: int | None = None) -> Any:
        """Return a memory as deep as the number of banks, or ``depth`` if it is given."""
        depth = depth or self._geometry.banks
        m.submodules[name] = result = memory.Memory(shape=shape, depth=depth, init=[])
        return result

    def _since(self, stamp: Any) -> Any:
        """Return the fabric cycles since the time ``stamp``."""
        return (self.now - stamp)[:TIME_BITS]

    def _release(self, m: Any, released: Any) -> None:
        """Store the earliest precharge after the columns of each bank, as a time stamp."""
        timing = self._timing
        set_released = released.write_port()
        write_recovery = Signal(range(timing.write_to_precharge + 1))
        with m.If(self.column_issue & self.column_write):
            m.d.sync += write_recovery.eq(timing.write_to_precharge - 1)
        with m.Elif(write_recovery != 0):
            m.d.sync += write_recovery.eq(write_recovery - 1)
        after_read = Mux(
            write_recovery > timing.read_to_precharge, write_recovery, timing.read_to_precharge
        )
        m.d.comb += [
            set_released.addr.eq(self.column_bank),
            set_released.data.eq(
                self.now + Mux(self.column_write, timing.write_to_precharge, after_read)
            ),
            set_released.en.eq(self.column_issue),
        ]

    def _plan(self, m: Any, items: _Items, activated: Any, released: Any) -> None:
        """Build the first stage: walk the requests' banks, precharge them if needed, pass them on.

        ``activated`` and ``released`` hold the times of the banks.
        """
        timing = self._timing
        longest_recovery = max(timing.write_to_precharge, timing.read_to_precharge)
        planned_row = self._table(m, "planned_row", self._geometry.row_bits)
        set_planned_row = planned_row.write_port()
        get_planned_row = planned_row.read_port(domain="comb")
        last_user = self._table(m, "last_user", SEQUENCE_BITS)
        set_last_user, get_last_user = last_user.write_port(), last_user.read_port(domain="comb")
        get_activated = activated.read_port(domain="comb")
        get_released = released.read_port(domain="comb")
        # Banks that are open or will be, and whether it is the turn of a request's second bank.
        planned: Any = Signal(self._geometry.banks)
        second = Signal()
        line = self.plan.line
        half = line.offset[0] ^ second
        bank = Signal(self._bank_bits)
        was_planned = Signal()
        hit = Signal()
        unused = Signal()
        recovered = Signal()
        item_room = Signal()
        proceed = Signal()
        m.d.comb += [
            bank.eq(Cat(line.bank, half, line.bank_group_high)),
            get_planned_row.addr.eq(bank),
            get_last_user.addr.eq(bank),
            get_activated.addr.eq(bank),
            get_released.addr.eq(bank),
            was_planned.eq(planned.bit_select(bank, 1)),
            hit.eq(was_planned & (get_planned_row.data == line.row)),
            # The bank's last user is not an unfinished request before this one. A stale number
            # can look unfinished; then the bank waits until the request of that number finishes.
            unused.eq(
                (get_last_user.data - self.column_sequence)[:SEQUENCE_BITS]
                >= (self.plan_sequence - self.column_sequence)[:SEQUENCE_BITS]
            ),
            recovered.eq(
                (self._since(get_activated.data) >= timing.activate_to_precharge)
                & ((get_released.data - self.now - 1)[:TIME_BITS] >= longest_recovery)
            ),
            item_room.eq((items.tail - items.head)[: len(items.tail)] != _ITEMS),
            self.precharge_bank.eq(bank),
        ]
        with m.If(self.plan_valid & item_room & ~self.hold):
            m.d.comb += [
                self.precharge.eq(was_planned & ~hit & unused & recovered),
                proceed.eq(hit | ~was_planned | self.precharge),
            ]
        m.d.comb += [
            items.put.addr.eq(items.tail),
            items.put.data.activate.eq(~hit),
            items.put.data.last.eq(second | (self.plan.length == 0)),
            items.put.data.bank.eq(bank),
            items.put.data.row.eq(line.row),
            items.put.en.eq(proceed),
            set_planned_row.addr.eq(bank),
            set_planned_row.data.eq(line.row),
            set_planned_row.en.eq(proceed),
            set_last_user.addr.eq(bank),
            set_last_user.data.eq(self.plan_sequence),
            set_last_user.en.eq(proceed),
            self.plan_next.eq(proceed & items.put.data.last),
            self.any_open.eq(planned.any()),
        ]
        with m.If(proceed):
            m.d.sync += [
                second.eq(~items.put.data.last),
                planned.bit_select(bank, 1).eq(1),
                items.tail.eq(items.tail + 1),
            ]
        with m.If(self.flush):
            m.d.sync += [planned.eq(0), second.eq(0)]

    def _activate(self, m: Any, items: _Items, activated: Any) -> None:
        """Build the second stage: activate the items of the first one, in order."""
        timing = self._timing
        set_activated = activated.write_port()
        recent = self._table(m, "recent_activates", TIME_BITS, 4)
        set_recent, get_recent = recent.write_port(), recent.read_port(domain="comb")
        oldest = Signal(2)
        spacing = Signal(range(timing.activate_to_activate + 1))
        item: Any = items.get.data
        group = item.bank[self._geometry.bank_bits :]
        precharging = self._lately(
            m, "precharged", items.put.addr, self.precharge, timing.precharge_to_activate
        )
        group_activated = self._lately(
            m, "activated_group", group, self.activate, timing.activate_to_activate_same_group
        )
        item_valid = Signal()
        allowed = Signal()
        done = Signal()
        m.d.comb += [
            items.get.addr.eq(items.head),
            item_valid.eq((items.head != items.tail) & ~self.hold),
            get_recent.addr.eq(oldest),
            allowed.eq(
                ~precharging(items.get.addr)
                & (spacing == 0)
                & ~group_activated(group)
                & (self._since(get_recent.data) >= timing.four_activates)
            ),
            self.activate.eq(item_valid & item.activate & allowed),
            self.activate_bank.eq(item.bank),
            self.activate_row.eq(item.row),
            done.eq(item_valid & (~item.activate | allowed)),
            self.prepared.eq(done & item.last),
            set_activated.addr.eq(item.bank),
            set_activated.data.eq(self.now),
            set_activated.en.eq(self.activate),
            set_recent.addr.eq(oldest),
            set_recent.data.eq(self.now),
            set_recent.en.eq(self.activate),
        ]
        with m.If(spacing != 0):
            m.d.sync += spacing.eq(spacing - 1)
        with m.If(self.activate):
            m.d.sync += [oldest.eq(oldest + 1), spacing.eq(timing.activate_to_activate - 1)]
        with m.If(done):
            m.d.sync += items.head.eq(items.head + 1)

        activated_lately = self._lately(
            m, "activated", item.bank, self.activate, timing.activate_to_column
        )
        m.d.comb += self.column_ready.eq(~activated_lately(self.column_bank))
        with m.If(self.flush):
            m.d.sync += items.head.eq(items.tail)

    def _lately(
        self, m: Any, name: str, key: Any, happens: Any, cycles: int
    ) -> Callable[[Any], Any]:
        """Return a function that tells if ``happens`` with its key was less than ``cycles`` ago.

        It compares a key that comes late in the cycle with those of the last cycles, which is
        faster than computing the age of a time stamp.
        """
        event: Any = Cat(key, happens)
        events = []
        for age in range(1, cycles):
            events.append(Signal(len(event), name=f"{name}_{age}_ago"))
            m.d.sync += events[-1].eq(event)
            event = events[-1]
        return lambda late_key: Cat(event == Cat(late_key, 1) for event in events).any()
