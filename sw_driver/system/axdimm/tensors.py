"""Tensors of a training step under the framework: their places, and their times on the GPU."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hw.narrow.formats import BLOCK_PARAMETERS, Formats
from hw.rules import PAPER_RULES, rule
from sw_driver.workload import Trace

__all__ = ["Key", "Parameter", "kept_bytes", "least_gpu_bytes", "lifetimes", "placed"]

Key = tuple[int, str]
"""A parameter's number and the name of its tensor: ``p``, ``p_copy``, a state, or ``g``."""

_RULE = rule(PAPER_RULES[0])


@dataclass(kw_only=True)
class Parameter:
    """A parameter with its other tensors."""

    number: int
    name: str
    nbytes: int
    """Bytes in FP32, as on the GPU."""
    channel: int
    sizes: Mapping[str, int]
    """Bytes of its kept tensors: itself (``p``), a copy if there is one, and its states."""
    gradient_bytes: int
    """Bytes of its gradient; 0 if it has none."""
    updated: bool = False

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.nbytes // 4

    @property
    def key(self) -> Key:
        """Key of the tensor that the GPU fetches."""
        return self.number, "p_copy" if "p_copy" in self.sizes else "p"

    @property
    def kept(self) -> list[Key]:
        """Keys of its kept tensors."""
        return [(self.number, name) for name in self.sizes]

    @property
    def kept_bytes(self) -> int:
        """Bytes of its kept tensors."""
        return sum(self.sizes.values())


def placed(trace: Trace, formats: Formats, channels: int) -> dict[int, Parameter]:
    """Return the parameters, spread over the channels in turns, in order of creation (5.2)."""
    state = next(iter(_RULE.states))
    states: dict[int, list[int]] = {}
    for tensor in trace.tensors:
        if tensor.kind == "optimizer_state" and tensor.parameter is not None:
            states.setdefault(tensor.parameter, []).append(
                kept_bytes(formats, state, tensor.nbytes)
            )
    trained = {tensor.parameter for tensor in trace.tensors if tensor.kind == "gradient"}
    parameters: dict[int, Parameter] = {}
    for tensor in trace.tensors:
        if tensor.kind != "parameter":
            continue
        names = ("p",) if formats.copy == "none" else ("p", "p_copy")
        sizes = {name: kept_bytes(formats, name, tensor.nbytes) for name in names} | {
            f"s{index}": nbytes for index, nbytes in enumerate(states.get(tensor.id, ()))
        }
        parameters[tensor.id] = Parameter(
            number=tensor.id,
            name=tensor.name,
            nbytes=tensor.nbytes,
            channel=len(parameters) % channels,
            sizes=sizes,
            gradient_bytes=(kept_bytes(formats, "g", tensor.nbytes) if tensor.id in trained else 0),
        )
    return parameters


def kept_bytes(formats: Formats, name: str, nbytes: int) -> int:
    """Return a tensor's bytes in its format, from those in FP32; a state includes its scales."""
    if not formats.narrow:
        return nbytes
    count = -(-nbytes // (4 * BLOCK_PARAMETERS)) * BLOCK_PARAMETERS
    made = formats.tensor_bytes(_RULE, name, count)
    if formats.codes and name in _RULE.states:
        made += formats.tensor_bytes(_RULE, "scales", count) // len(_RULE.states)
    return made


def lifetimes(
    trace: Trace,
) -> tuple[dict[int, list[Any]], dict[int, list[Any]], dict[int, list[int]]]:
    """Return lists of tensors by operation.

    They are the tensors that come to the GPU before the operation, those freed after it, and the
    parameters with gradients that leave then.
    """
    ops = [op.id for op in trace.ops if op.phase != "update"]
    first: dict[int, list[Any]] = {op: [] for op in ops}
    last: dict[int, list[Any]] = {op: [] for op in ops}
    complete: dict[int, list[int]] = {}
    for tensor in trace.tensors:
        accesses = [op for op in trace.accesses[tensor.id] if op in first]
        if not accesses or tensor.kind in ("parameter", "optimizer_state"):
            continue
        key: Any = tensor.id
        if tensor.kind == "gradient" and tensor.parameter is not None:
            key = tensor.parameter, "g"
            # A gradient stays until the step has used its parameter for the last time.
            uses = [op for op in trace.accesses[tensor.parameter] if op in first]
            complete.setdefault(max(accesses + uses), []).append(tensor.parameter)
        else:
            last[accesses[-1]].append(key)
        first[accesses[0]].append(key)
    return first, last, complete


def least_gpu_bytes(trace: Trace, ahead_ops: int) -> tuple[int, int]:
    """Return the least GPU memory that a step runs with, and the operation that needs it.

    Gradients leave in the stream in which parameters are fetched. Room is given in the order of
    operations, so each waits until those before it free theirs. A parameter stays for its next
    operation if that is queued by then. A gradient leaves after the fetches that were queued before
    it. These wait for everything that operations before them need.
    """
    first, last, complete = lifetimes(trace)
    sizes = [tensor.nbytes for tensor in trace.tensors]
    comes, goes = Counter[int](), Counter[int]()
    """Bytes that come with an operation, and bytes that are gone from an operation on."""
    for op, keys in first.items():
        comes[op] += sum(sizes[key if isinstance(key, int) else key[0]] for key in keys)
    made = dict(comes)
    for op, keys in last.items():
        goes[op + 1] += sum(sizes[key] for key in keys)
    fetches: set[int] = set()
    for tensor in trace.tensors:
        uses = [op for op in trace.accesses[tensor.id] if op in first]
        if tensor.kind == "parameter" and uses:
            apart = [(a, b) for a, b in pairwise(uses) if b - a > ahead_ops]
            begins = [uses[0], *(b for _, b in apart)]
            ends = [*(a for a, _ in apart), uses[-1]]
            fetches.update(begins)
            comes.update(dict.fromkeys(begins, tensor.nbytes))
            goes.update({op + 1: tensor.nbytes for op in ends})
    queued = sorted(fetches)
    leaves = Counter[int]()
    """Bytes of gradients that leave once an operation's parameters are fetched."""
    for op, numbers in complete.items():
        nbytes = sum(sizes[number] for number in numbers)
        fetch = max((op, *queued[: bisect_right(queued, op + ahead_ops)]))
        goes[max(fetch, op + 1)] += nbytes
        leaves[fetch] += nbytes * (fetch > op)
    least, there = (0, 0), 0
    for op in range(len(trace.ops)):
        there += comes[op] - goes[op]
        least = max(least, (there + max(leaves[op] - made.get(op, 0), 0), op))
    return least
