"""Start of a run of the kernel, after checks of its settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import numpy as np

from hw.kernel.config import NARROW_RULES
from hw.narrow.formats import BLOCK_PARAMETERS, Formats
from hw.rules import RULES
from hw.rules.update_rule import UpdateRule

from ..device.clock import Steps
from ..device.errors import InvalidArgumentError, RangeError
from ..device.memory import Allocation, AxdimmPointer, checked_size
from ..device.streams import Handle, Stream
from .channel import Channel, Mode
from .hyperparameters import checked_hyperparameters, rule_constants
from .runs import KernelRun
from .session import Session
from .transport import LINE_BYTES

__all__ = ["launch", "options_for"]

TIMEOUT_FABRIC_CYCLES = 100_000
TIMEOUT_FABRIC_CYCLES_PER_BEAT = 64


def launch(
    session: Session,
    rule: str,
    tensors: Mapping[str, AxdimmPointer],
    nparams: int,
    hyperparameters: Mapping[str, Any],
    channel: int,
    *,
    formats: Formats,
    seed: int,
    timeout_fabric_cycles: int | None,
    stream: Stream | None,
    modes: str | None,
) -> KernelRun:
    """Check and start a run, see :meth:`~sw_driver.axdimm.device.Axdimm.RunOnAxdimmAsync`.

    The caller holds the clock's lock.
    """
    state = session.channel(channel)
    chosen = _rule_of(state, rule)
    _check_formats(state, chosen, formats)
    tensors = _named_tensors(chosen, formats, tensors)
    for name, pointer in tensors.items():
        session.owner(pointer)
        if pointer.channel != state.number:
            raise InvalidArgumentError(
                f"{name} is on channel {pointer.channel}, the run is on {state.number}",
                tensor=name,
                tensor_channel=pointer.channel,
                channel=state.number,
            )
    count = _count_of(nparams, formats)
    key = checked_size("seed", seed)
    if key >> 64:
        raise InvalidArgumentError(
            f"seed is {seed}: expected an integer from 0 to {2**64 - 1}", seed=seed
        )
    checked = checked_hyperparameters(chosen, hyperparameters)
    constants = rule_constants(chosen, checked)
    if timeout_fabric_cycles is not None:
        timeout_fabric_cycles = checked_size(
            "timeout_fabric_cycles", timeout_fabric_cycles, minimum=1
        )
    policy = session.policy(modes)
    session.check_stream(stream)
    allocations = _check_tensors(state, chosen, formats, tensors, count)
    settings = {
        "count": count,
        **{f"{name}_in": tensors[name].address for name in formats.loads(chosen)},
        **{f"{name}_out": tensors[name].address for name in formats.stores(chosen)},
        **{name: int(value.view(np.uint32)) for name, value in constants.items()},
        "rule": state.rules.index(rule),
    }
    if state.narrow:
        settings |= {"formats": formats.code(), "seed": key, "step": int(checked["t"]) % 2**32}

    run = KernelRun(
        session.domain,
        rule=chosen,
        channel=state.number,
        nparams=count,
        t=int(checked["t"]) if "t" in checked else None,
        formats=formats,
    )
    timeout = (
        TIMEOUT_FABRIC_CYCLES + TIMEOUT_FABRIC_CYCLES_PER_BEAT * run.beats
        if timeout_fabric_cycles is None
        else timeout_fabric_cycles
    )

    def start() -> Steps:
        yield from state.take_in_mode(run, Mode.ACCELERATION, policy)
        try:
            run.start()
            yield from state.start(settings, run)
        finally:
            state.leave()

    def start_and_follow() -> Steps:
        yield from start()
        return (yield from state.follow(run, timeout))

    for allocation in allocations:
        allocation.users.add(run)
    if stream is not None:
        stream.submit(run, start_and_follow)
        return run
    try:
        Handle[None](f"start of {run.label}", session.domain).carry_out(start())
    except BaseException as error:
        run.finish(error)
        raise
    session.clock.begin_now(run, state.follow(run, timeout))
    return run


def options_for(name: str, rules: Iterable[str], narrow: bool) -> str:
    """Return the options that build a kernel with the rule ``name``.

    It keeps the rules in ``rules`` where both are possible together. With ``narrow`` it has narrow
    formats if its rules allow them.
    """
    settings: dict[str, Any] = {"rules": (*dict.fromkeys((*rules, name)),)}
    if narrow and name in NARROW_RULES:
        together = tuple(known for known in NARROW_RULES if known in settings["rules"])
        settings = {"narrow": True, "rules": together}
    elif narrow:
        settings = {"narrow": False, "rules": (name,)}
    return f"BackendOptions(settings={settings})"


def _rule_of(state: Channel, name: str) -> UpdateRule:
    if name in state.rules:
        return RULES[name]
    there = f"the kernel of channel {state.number} has {', '.join(state.rules)}"
    if name in tuple(RULES):
        text = f"{there}, not {name}: open it with {options_for(name, state.rules, state.narrow)}"
    else:
        text = f"no update rule {name!r}: known are {', '.join(RULES)}; {there}"
    raise InvalidArgumentError(text, rule=name, channel=state.number, rules=state.rules)


def _check_formats(state: Channel, rule: UpdateRule, formats: Formats) -> None:
    if not isinstance(formats, Formats):
        raise InvalidArgumentError(
            f"formats is {formats!r}: expected a Formats, such as Formats(gradients='bf16')",
            formats=formats,
        )
    if formats.usual or state.narrow:
        return
    advice = f"open it with {options_for(rule.name, state.rules, narrow=True)}"
    if rule.name not in NARROW_RULES:
        advice = f"{rule.name} is none of the rules that may have them, {', '.join(NARROW_RULES)}"
    raise InvalidArgumentError(
        f"the kernel of channel {state.number} has no narrow formats, but the run has {formats}: "
        f"{advice}",
        formats=formats,
        channel=state.number,
    )


def _named_tensors(
    rule: UpdateRule, formats: Formats, given: Mapping[str, Any]
) -> dict[str, AxdimmPointer]:
    """Return the run's tensors: a pointer for each expected name, and no other."""
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"tensors is {given!r}: expected a mapping from names to pointers", rule=rule.name
        )
    wanted = formats.tensors(rule)
    for name in (*wanted, *given):
        if name not in given or name not in wanted:
            wrong = "is missing" if name not in given else "was given"
            takes = ", ".join(f"{known} ({title})" for known, title in wanted.items())
            with_them = "" if formats.usual else f" with {formats}"
            raise InvalidArgumentError(
                f"tensor {name!r} {wrong}: {rule.name}{with_them} takes {takes}",
                tensor=name,
                rule=rule.name,
            )
    return dict(given)


def _check_tensors(
    state: Channel,
    rule: UpdateRule,
    formats: Formats,
    tensors: Mapping[str, AxdimmPointer],
    count: int,
) -> list[Allocation]:
    """Check the tensors and return their allocations."""
    nbytes = {name: formats.tensor_bytes(rule, name, count) for name in tensors}
    allocations = []
    for name, pointer in tensors.items():
        allocation = state.allocations.check(pointer)
        allocations.append(allocation)
        offset = pointer.address - allocation.address
        if offset < 0 or offset + nbytes[name] > allocation.nbytes:
            held_bytes = max(0, allocation.nbytes - offset) if offset >= 0 else 0
            held = held_bytes * 8 * BLOCK_PARAMETERS // formats.block_bits(rule, name)
            raise InvalidArgumentError(
                f"{name} holds {held} parameters, the run is over {count}",
                tensor=name,
                held=held,
                nparams=count,
            )
        if pointer.address % LINE_BYTES:
            raise InvalidArgumentError(
                f"{name} starts at address {pointer.address:#x}, {pointer.address % LINE_BYTES}"
                f" bytes past a multiple of {LINE_BYTES}",
                tensor=name,
                address=pointer.address,
            )
    for (one, a), (other, b) in itertools.combinations(tensors.items(), 2):
        if not {one, other} & {*formats.stores(rule)}:
            continue
        if a.address < b.address + nbytes[other] and b.address < a.address + nbytes[one]:
            raise RangeError(
                f"{one} at {a.address:#x} and {other} at {b.address:#x} overlap: they have "
                f"{nbytes[one]} and {nbytes[other]} bytes",
                tensors=(one, other),
                addresses=(a.address, b.address),
                nbytes=(nbytes[one], nbytes[other]),
            )
    return allocations


def _count_of(nparams: int, formats: Formats) -> int:
    try:
        count = 0 if isinstance(nparams, bool) else index(nparams)
    except TypeError:
        count = 0
    if count < 1:
        raise InvalidArgumentError(
            f"nparams is {nparams!r}: expected an integer of at least 1", nparams=nparams
        )
    if formats.narrow and count % BLOCK_PARAMETERS:
        raise InvalidArgumentError(
            f"nparams is {count}: expected a multiple of {BLOCK_PARAMETERS} in a run with a tensor "
            f"that is not in FP32; append {-count % BLOCK_PARAMETERS} parameters, all zeros",
            nparams=count,
        )
    return count
