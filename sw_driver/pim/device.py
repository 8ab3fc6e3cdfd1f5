"""The PIM as a program sees it: the low-level API of the paper (Table III), registers, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.csr.register_map import Register
from hw.pim.work.descriptor import FORMS
from sw_driver.device.errors import (
    DeviceTimeoutError,
    IncompatibleDeviceError,
    InvalidArgumentError,
    RangeError,
    RefusedWorkError,
    UnknownWorkError,
    WaitTimeoutError,
)

from .descriptor import ELEMENT_BYTES, Tensor, Work, banks_of
from .placing import PlacedTensor
from .planning import planned, units_in_groups
from .registers import PoolRegisters, pool_map, ring_map, slot_map
from .ring import Ring, ring_place
from .transport import QUIET_LIMIT_CYCLES, PimTransport

__all__ = ["Counters", "DataLocation", "Pim"]

_CHECK_LIMIT_CYCLES = 100_000
"""Cycles that the check of a descriptor may take; a sound one takes some hundreds."""

_CHECK_STEP_CYCLES = 16
_FIRST_STEP_CYCLES = 64
_LAST_STEP_CYCLES = 4096


class Counters(NamedTuple):
    """The counters of a work. Cycles are None if the backend has no clock; bytes are those that
    moved between memory and banks (without a clock: the least that must)."""

    multiplications_done: int
    multiplications_left: int
    additions_done: int
    additions_left: int
    cycles: int | None
    bytes_read: int
    bytes_written: int


class DataLocation(NamedTuple):
    """The banks that a work's operands, and its result, lie in, from each tensor's lowest to its
    highest byte."""

    inputs: list[int]
    outputs: list[int]


class Pim:
    """A stack of memory with its pool, over ``transport``. Calls must not overlap.

    Raises :class:`~sw_driver.device.errors.IncompatibleDeviceError` if the registers say that the
    device is another one.
    """

    def __init__(self, transport: PimTransport) -> None:
        self.transport = transport
        self.config = transport.config
        self._registers = PoolRegisters(transport)
        self._offered: dict[int, tuple[int, Work]] = {}
        """The works that were accepted, with their ids, by slot."""
        self._running: set[int] = set()
        """Ids of the works whose completion has not been seen."""
        self._check_identity()
        self._ring = Ring(transport, 0, ring_place(self.config))

    def __enter__(self) -> Pim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the device. Calling it twice does no harm."""
        self.transport.close()

    # The low-level API of the paper (Table III).

    def pim_fix(
        self,
        pim_ids: Sequence[int] | None,
        args: Work,
        ret: Tensor,
        num_pim: int,
        *,
        whole_groups: bool = False,
    ) -> int:
        """Has the banks ``pim_ids``, ``num_pim`` of them, compute ``args`` to ``ret``.

        Without ``pim_ids`` the pool chooses banks, with ``num_pim`` units, or, with
        ``whole_groups``, with as many as make whole groups of the work
        (:func:`~sw_driver.pim.planning.units_in_groups`), but no more than it has use for. Returns
        the work's id at once.

        Raises
        ------
        RefusedWorkError: the pool refused it, for ``error.cause``, or its result is where the
            driver's ring is; nothing was written. With the cause ``full`` the pool holds as many
            works of this program as it can: ask again when one has completed.
        InvalidArgumentError: ``pim_ids`` are not ``num_pim`` different banks that a descriptor can
            name, ``whole_groups`` is given with them, or a field cannot hold its value.
        """
        banks, units = 0, num_pim
        if pim_ids is not None:
            ids = list(pim_ids)
            if whole_groups:
                raise InvalidArgumentError(
                    f"pim_ids are {ids}, with whole_groups: banks that are named are taken as they "
                    "are; give None and a number of units, or leave whole_groups out",
                    pim_ids=ids,
                    num_pim=num_pim,
                )
            if num_pim < 1 or len(ids) != num_pim or len(set(ids)) != num_pim:
                raise InvalidArgumentError(
                    f"pim_ids are {ids}: expected num_pim = {num_pim} different banks, one at "
                    "least, or None to leave the choice to the pool",
                    pim_ids=ids,
                    num_pim=num_pim,
                )
            # A bank that the stack does not have is for the pool to refuse, if a bit can say it.
            for bank in ids:
                if not 0 <= bank < 32:
                    raise InvalidArgumentError(
                        f"there is no bank {bank}: expected 0 to {self.config.banks - 1}",
                        pim_id=bank,
                    )
            banks, units = sum(1 << bank for bank in ids), 0
        elif whole_groups:
            units = units_in_groups(args, num_pim)
        return self._offer(replace(args, result=ret, banks=banks, units=units))

    def pim_prog(self, *args: object) -> int:
        """Raises :class:`~sw_driver.device.errors.InvalidArgumentError`: there is none."""
        raise InvalidArgumentError(
            f"the stack has no programmable PIM (its number would be {self.config.banks}): "
            "offer what is additions and multiplications with pim_fix, compute the rest on the host"
        )

    def pim_status(self, pim_id: int) -> int:
        """1 if a bank, or the programmable PIM, is busy or not there, 0 if it is idle.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError`.
        """
        if not 0 <= pim_id <= self.config.banks:
            raise InvalidArgumentError(
                f"there is no PIM {pim_id}: expected a bank from 0 to {self.config.banks - 1}, or "
                f"{self.config.banks} for the programmable PIM",
                pim_id=pim_id,
            )
        return 1 - (self.idle >> pim_id & 1)

    def work_query(self, work_id: int) -> int:
        """1 if the work has completed, 0 if not.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for an id that was not given out.
        """
        self._collect()
        if work_id in self._running:
            return 0
        offered, _ = self._offered.get(work_id % self.config.works, (None, None))
        return int(offered == work_id or self.state(work_id) == "completed")

    def work_info(self, work_id: int) -> tuple[list[int], DataLocation]:
        """The banks that a work runs or ran on (none while it waits), and where its data is.

        Raises
        ------
        UnknownWorkError: the id was not given out, or not to this program, or another work has
            taken the slot.
        """
        slot, held = self._held(work_id)
        self._check_current(work_id, held)
        offered, work = self._offered.get(slot, (None, None))
        if work is None or offered != work_id:
            raise UnknownWorkError(
                f"work {work_id} was not offered by this program, which does not know its tensors",
                work_id=work_id,
            )
        banks = self._registers.slot(slot, "banks")
        inputs, outputs = map(work.span, work.operands), [work.span("result")]
        location = DataLocation(*(banks_of(each, self.config) for each in (inputs, outputs)))
        return [bank for bank in range(self.config.banks) if banks >> bank & 1], location

    # Registers.

    @property
    def idle(self) -> int:
        """A bit for each bank, 1 if it works for no work; above them that of the programmable PIM,
        which is 0."""
        return self._registers.pool("idle")

    @property
    def cause(self) -> str:
        """Why the last work that was offered was refused, or ``none``."""
        return self._ring.cause

    def state(self, work_id: int) -> str:
        """``waiting``, ``running`` or ``completed``.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for an id that was not given out.
        """
        slot, held = self._held(work_id)
        return "completed" if work_id < held else self._state(slot)

    def counters(self, work_id: int) -> Counters:
        """The counters of a work, all of one cycle; they stay until another takes its slot.

        Raises
        ------
        UnknownWorkError: the id was not given out, or another work has taken the slot.
        """
        self._registers.keep(work_id % self.config.works)
        held = self._registers.kept("id")
        self._check_given_out(work_id, held)
        self._check_current(work_id, held)
        values = {name: self._registers.kept(name) for name in Counters._fields}
        counters = Counters(**values)
        return counters if self.transport.timed else counters._replace(cycles=None)

    def busy_cycles(self) -> list[int]:
        """For each bank the cycles since reset in which it had a work; 0 without a clock. Reading
        them takes time."""
        return [self._registers.busy_cycles(bank) for bank in range(self.config.banks)]

    @property
    def has_offered(self) -> bool:
        """Whether a work was accepted from this program."""
        return bool(self._offered)

    # Waiting.

    def wait(self, work_id: int, *, timeout_cycles: int | None = None) -> None:
        """Lets time pass until the work has completed; raises what :meth:`wait_any` does."""
        self.wait_any([work_id], timeout_cycles=timeout_cycles)

    def wait_any(self, work_ids: Sequence[int], *, timeout_cycles: int | None = None) -> list[int]:
        """Lets time pass until some of the works have completed; returns these.

        Raises
        ------
        WaitTimeoutError: none has, after ``timeout_cycles``; they go on.
        DeviceTimeoutError: nothing has happened in the pool for ``QUIET_LIMIT_CYCLES``.
        UnknownWorkError: an id was not given out.
        """
        passed = quiet = unseen = 0
        step = _FIRST_STEP_CYCLES
        before = None
        while not (done := [work_id for work_id in work_ids if self.work_query(work_id)]):
            waited = f"waiting for {', '.join(f'work {work_id}' for work_id in work_ids)}"
            if timeout_cycles is not None:
                if passed >= timeout_cycles:
                    raise WaitTimeoutError(
                        f"{waited}: none has completed after {passed} cycles, the timeout is "
                        f"{timeout_cycles}; they go on; {self.describe()}",
                        work_ids=list(work_ids),
                        timeout_cycles=timeout_cycles,
                        state=self.describe(),
                    )
                step = min(step, timeout_cycles - passed)
            # Seldom: to read it takes time, too.
            if unseen >= _LAST_STEP_CYCLES:
                progress = self._registers.progress(self.config.works)
                quiet = quiet + unseen if progress == before else 0
                before, unseen = progress, 0
                if quiet >= QUIET_LIMIT_CYCLES:
                    raise DeviceTimeoutError(
                        f"{waited}: nothing has happened for {quiet} cycles, the limit is "
                        f"{QUIET_LIMIT_CYCLES}; {self.describe()}",
                        work_ids=list(work_ids),
                        limit_cycles=QUIET_LIMIT_CYCLES,
                        state=self.describe(),
                    )
                # Time does not stop for a work that completed meanwhile.
                continue
            self.transport.advance(step)
            passed += step
            unseen += step
            step = min(2 * step, _LAST_STEP_CYCLES)
        return done

    def describe(self) -> str:
        """The pool's state in words, for messages."""
        works = [
            f"work {self._registers.slot(slot, 'id')} {self._state(slot)}"
            f" ({self._registers.slot(slot, 'multiplications_left')} multiplications,"
            f" {self._registers.slot(slot, 'additions_left')} additions left)"
            for slot in range(self.config.works)
            if self._state(slot) in ("waiting", "running")
        ]
        return (
            f"banks idle {self.idle:#x}, last cause {self.cause}; {', '.join(works) or 'no work'}"
        )

    # Memory.

    def write_memory(self, address_bytes: int, values: NDArray[np.generic]) -> None:
        """Writes the bytes of ``values`` to the stack.

        Raises
        ------
        InvalidArgumentError: the address or the size is not a multiple of 4, or the values are not
            contiguous.
        RangeError: they do not fit into the stack, or meet the driver's ring, which is at its
            end.
        """
        if not values.flags.c_contiguous:
            raise InvalidArgumentError(
                f"the values, of shape {values.shape}, are not contiguous: copy them first",
                shape=values.shape,
            )
        self._check_range(address_bytes, values.nbytes)
        place = ring_place(self.config)
        if _meet(range(address_bytes, address_bytes + values.nbytes), place):
            raise RangeError(
                f"{values.nbytes} bytes at {address_bytes:#x} meet the driver's ring, "
                f"{place.start:#x} to {place.stop - 1:#x}: write elsewhere",
                address_bytes=address_bytes,
                bytes=values.nbytes,
                stack_bytes=self.config.stack_bytes,
            )
        self.transport.write_memory(address_bytes, values.reshape(-1).view(np.uint8))

    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of the stack; of a work's result all or nothing.

        Where a work that has not completed writes, this may let time pass until it has.

        Raises
        ------
        InvalidArgumentError: the address or the size is not a multiple of 4.
        RangeError: they are not within the stack.
        """
        self._check_range(address_bytes, nbytes)
        return self.transport.read_memory(address_bytes, nbytes)

    def write_tensor(self, placed: PlacedTensor, values: NDArray[np.float32]) -> None:
        """Writes ``values``, of the tensor's shape, to its place.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for another shape or type.
        """
        if values.shape != placed.shape or values.dtype != np.float32:
            raise InvalidArgumentError(
                f"the values are {values.dtype} of shape {values.shape}: expected float32 of "
                f"shape {placed.shape}",
                shape=values.shape,
                dtype=str(values.dtype),
            )
        for index, address in placed.blocks():
            self.write_memory(address, np.ascontiguousarray(values[index]))

    def read_tensor(self, placed: PlacedTensor) -> NDArray[np.float32]:
        """The tensor's values."""
        values = np.empty(placed.shape, np.float32)
        for index, address in placed.blocks():
            block = values[index]
            data = self.read_memory(address, block.nbytes)
            values[index] = data.view(np.float32).reshape(block.shape)
        return values

    def _check_identity(self) -> None:
        expected = {field.name: field.reset for field in pool_map()["identity"].fields}
        found = {name: self._registers.pool("identity", name) for name in expected}
        if found != expected:
            raise IncompatibleDeviceError(
                f"the device identifies itself with {found}, this driver was written for "
                f"{expected}: use the driver that belongs to the device",
                found=found,
            )
        names = ("rows", "columns", "works", "units", "rings")
        has = {name: self._registers.pool("geometry", name) for name in names}
        has["bank_bytes"] = self._registers.pool("bank_memory")
        said = {name: getattr(self.config, name) for name in has}
        if has != said:
            raise IncompatibleDeviceError(
                f"the device was made with {has}, the configuration given for it has {said}: open "
                "it with its own",
                found=has,
                expected=said,
            )

    def _check_range(self, address_bytes: int, nbytes: int) -> None:
        if address_bytes % ELEMENT_BYTES or nbytes % ELEMENT_BYTES:
            raise InvalidArgumentError(
                f"{nbytes} bytes at {address_bytes:#x}: address and size must be multiples of "
                f"{ELEMENT_BYTES}",
                address_bytes=address_bytes,
                bytes=nbytes,
            )
        if not self.config.holds(address_bytes, nbytes):
            raise RangeError(
                f"{nbytes} bytes at {address_bytes:#x} are not within "
                f"{self.config.memory_description}",
                address_bytes=address_bytes,
                bytes=nbytes,
                stack_bytes=self.config.stack_bytes,
            )

    def _offer(self, work: Work) -> int:
        work = planned(work, self.config)
        words = work.encode()
        place = ring_place(self.config)
        if work.opcode in FORMS and _meet(work.span("result"), place):
            raise RefusedWorkError(
                f"the result meets the driver's ring, {place.start:#x} to {place.stop - 1:#x}, the "
                f"last bytes of the striped memory: put it elsewhere; {work}",
                cause="out_of_range",
                work=work,
            )
        if self._is_full():
            self._collect()
        if self._is_full():
            raise RefusedWorkError(
                f"the pool is full: {len(self._running)} works have not completed, and it holds "
                f"{self.config.works}; wait for one of them; {work}",
                cause="full",
                work=work,
            )
        self._ring.write(words)
        cause, work_id = self._settle()
        if cause == "none":
            self._offered[work_id % self.config.works] = work_id, work
            self._running.add(work_id)
            return work_id
        code = ring_map()["tail"]["cause"].code(cause)
        raise RefusedWorkError(
            f"the pool refused the work: {cause} (cause {code}), see 'Refused works' in "
            f"docs/pim-spec.md; {work}",
            cause=cause,
            work=work,
        )

    def _is_full(self) -> bool:
        return len(self._running) >= self.config.works or self._ring.is_full

    def _collect(self) -> None:
        """Takes note of the works that have completed."""
        self._running.difference_update(self._ring.completed())

    def _settle(self) -> tuple[str, int]:
        """Waits until the descriptor is taken; the cause, and the id. That may last for as long as
        works of others fill the pool."""
        passed = 0
        before = None
        while (taken := self._ring.taken()) is None:
            if passed >= _CHECK_LIMIT_CYCLES:
                progress = self._registers.progress(self.config.works)
                if progress == before:
                    raise DeviceTimeoutError(
                        f"the check of a descriptor has not ended after {passed} cycles in which "
                        f"nothing has happened; {self.describe()}",
                        limit_cycles=_CHECK_LIMIT_CYCLES,
                        state=self.describe(),
                    )
                before, passed = progress, 0
            self.transport.advance(_CHECK_STEP_CYCLES)
            passed += _CHECK_STEP_CYCLES
        return taken

    def _held(self, work_id: int) -> tuple[int, int]:
        """The slot of the work ``work_id``, and the id of the work that has it now."""
        slot = work_id % self.config.works
        held = self._registers.slot(slot, "id")
        self._check_given_out(work_id, held)
        return slot, held

    def _check_given_out(self, work_id: int, held: int) -> None:
        if not self.config.works <= work_id <= held:
            raise UnknownWorkError(
                f"the pool has not given out the id {work_id}; the last of its slot is {held}",
                work_id=work_id,
                last=held,
            )

    def _check_current(self, work_id: int, held: int) -> None:
        if held != work_id:
            raise UnknownWorkError(
                f"work {work_id} has completed, and work {held} has taken its slot: ask before "
                f"{self.config.works} more works are offered",
                work_id=work_id,
                last=held,
            )

    def _state(self, slot: int) -> str:
        return _name(slot_map()["state"], self._registers.slot(slot, "state"))


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _name(register: Register, value: int) -> str:
    names = {code: name for name, code in register.fields[0].encoding}
    return names.get(value, f"unknown ({value})")
