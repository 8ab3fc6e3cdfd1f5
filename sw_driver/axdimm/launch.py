"""Starting a run of Adam: what is checked, and who follows it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from ..errors import AlignmentError, CountMismatchError, OverlapError, WrongChannelError
from ..memory.allocations import checked_size
from ..memory.pointers import AxdimmPointer
from ..runtime.streams import Stream
from ..transport import LINE_BYTES
from .channel import Channel, Mode
from .hyperparameters import AdamHyperparameters
from .runs import BEATS_PER_GROUP, PARAMETER_BYTES, PARAMETERS_PER_BEAT, AdamResult, AdamRun
from .session import Session

__all__ = ["launch_adam"]

TIMEOUT_FABRIC_CYCLES = 100_000
TIMEOUT_FABRIC_CYCLES_PER_BEAT = 64


def launch_adam(
    session: Session,
    tensors: Mapping[str, AxdimmPointer],
    nparams: int,
    hyperparameters: Mapping[str, Any],
    channel: int,
    *,
    timeout_fabric_cycles: int | None,
    stream: Stream | None,
    modes: str | None,
) -> AdamRun:
    """See :meth:`~sw_driver.axdimm.device.Axdimm.RunAdamOnAxdimmAsync`."""
    state = session.channel(channel)
    for name, pointer in tensors.items():
        session.owner(pointer)
        if pointer.channel != state.number:
            raise WrongChannelError(
                f"{name} is on channel {pointer.channel}, the run is on {state.number}",
                tensor=name,
                tensor_channel=pointer.channel,
                channel=state.number,
            )
    count = _count_of(nparams)
    adam = AdamHyperparameters(**hyperparameters)
    beats = BEATS_PER_GROUP * -(-count // PARAMETERS_PER_BEAT)
    timeout = (
        TIMEOUT_FABRIC_CYCLES + TIMEOUT_FABRIC_CYCLES_PER_BEAT * beats
        if timeout_fabric_cycles is None
        else checked_size("timeout_fabric_cycles", timeout_fabric_cycles, minimum=1)
    )
    policy = session.policy(modes)
    session.check_stream(stream)
    _check_tensors(state, tensors, count)
    settings = {
        "count": count,
        **{f"{name}_in": tensors[name].address for name in "pgmv"},
        **{f"{name}_out": tensors[name].address for name in "pmv"},
        **{name: int(value.view(np.uint32)) for name, value in adam.constants().items()},
    }
    held: list[AxdimmPointer] = []
    run = AdamRun(
        session.context,
        channel=state.number,
        nparams=count,
        t=adam.t,
        cleanup=lambda: state.end_run(run, held),
    )

    def start_and_follow() -> AdamResult:
        with state.in_mode(Mode.ACCELERATION, policy):
            state.start(settings, run)
        return state.follow(run, timeout)

    def follow(began: int) -> None:
        outcome: AdamResult | BaseException
        session.transport.set_host_time(began)
        try:
            outcome = state.follow(run, timeout)
        except BaseException as error:  # goes to whoever waits
            outcome = error
        run.finish(outcome)

    try:
        for pointer in tensors.values():
            state.allocations.hold(pointer, run.what)
            held.append(pointer)
        if stream is not None:
            stream.submit(run, start_and_follow, state.number)
            return run
        session.context.gate.check_call(run.what)
        with state.in_mode(Mode.ACCELERATION, policy):
            run.start()
            state.start(settings, run)
            began = session.transport.host_time()
            state.follower.submit(lambda: follow(began))
    except BaseException as error:
        run.finish(error)
        raise
    return run


def _check_tensors(state: Channel, tensors: Mapping[str, AxdimmPointer], count: int) -> None:
    nbytes = count * PARAMETER_BYTES
    for name, pointer in tensors.items():
        allocation = state.allocations.check(pointer)
        offset = pointer.address - allocation.address
        if offset < 0 or offset + nbytes > allocation.nbytes:
            held = max(0, allocation.nbytes - offset) // PARAMETER_BYTES if offset >= 0 else 0
            raise CountMismatchError(
                f"{name} holds {held} parameters, the run is over {count}",
                tensor=name,
                held=held,
                nparams=count,
            )
        if pointer.address % LINE_BYTES:
            raise AlignmentError(
                f"{name} starts at address {pointer.address:#x}, {pointer.address % LINE_BYTES}"
                f" bytes past a multiple of {LINE_BYTES}",
                tensor=name,
                address=pointer.address,
            )
    for (one, a), (other, b) in itertools.combinations(tensors.items(), 2):
        if a.address < b.address + nbytes and b.address < a.address + nbytes:
            raise OverlapError(
                f"{one} at {a.address:#x} and {other} at {b.address:#x} overlap within "
                f"{nbytes} bytes",
                tensors=(one, other),
                addresses=(a.address, b.address),
                nbytes=nbytes,
            )


def _count_of(nparams: int) -> int:
    try:
        count = 0 if isinstance(nparams, bool) else index(nparams)
    except TypeError:
        count = 0
    if count < 1:
        raise CountMismatchError(
            f"nparams is {nparams!r}: expected an integer of at least 1", nparams=nparams
        )
    return count
