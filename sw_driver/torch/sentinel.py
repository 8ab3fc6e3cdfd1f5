"""Sentinel on a PyTorch model: trained in less memory than its step takes.

A step is profiled as it runs: which storages each operation makes and uses. Later steps repeat it,
so the next use of each storage is known. Plans of when storages come and leave are tried for two
steps each, and the fastest is kept (Ren et al., *Sentinel*, HPCA 2021).
"""

from __future__ import annotations

import sys
import time
import warnings
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_integer, check_name, check_size
from sw_driver.system.sentinel.steps import Ask, MigrationPlan, StepRecord

from .copies import PlainCopies, as_copies
from .guard import FAILED, NEVER, RESULTS
from .moves import Moves, Watched, table
from .parameters import check_training
from .residency import Held, Policy, Residency, Statistics
from .slow_memory import store_at
from .step import calls_of, uninterrupted, unwatched

__all__ = ["Sentinel"]

_KINDS = 16
"""Different steps known at a time, such as for several sequence lengths."""

_ACCUMULATES = 2**64 - 1
"""Sequence number of autograd's nodes that accumulate gradients."""

_UNSEEN = 3
"""Steps in a row that the policy does not see before it warns."""

_MOST_CALLS = 256
"""Most calls of the model in a step; beyond it the step is given up, as it would fill memory."""

_RETRIES = 8
"""Operations after which storages that had no room are asked for again."""

_LOOKED_AT = 8
"""Leaving storages tried for one that can leave at once, at most."""

_C: Any = torch._C
_FAKE = _C._TorchDispatchModeKey.FAKE


@dataclass(eq=False)
class _Kind:
    """A kind of step: its operations, and the plans for steps like it."""

    step: StepRecord
    number: int = 0
    """Number of the guard's script."""
    has_script: bool = False
    backward: float = inf
    """First operation of the backward pass."""
    budget_bytes: int = 0
    """Budget that the plans are for."""
    to_try: list[MigrationPlan] = field(default_factory=list)
    begun: bool = False
    """True if one step has run by the plan on trial."""
    best: MigrationPlan | None = None
    best_ns: float = inf

    @property
    def plan(self) -> MigrationPlan | None:
        return self.to_try[0] if self.to_try else self.best

    def plan_for(self, budget_bytes: int, step_ns: int, bytes_per_s: float) -> None:
        """Make plans to try."""
        self.budget_bytes, self.begun, self.best, self.best_ns = budget_bytes, False, None, inf
        self.to_try = self.step.plans(budget_bytes, step_ns, bytes_per_s)

    def tried(self, ns: int) -> None:
        """Record the time of a step by the plan on trial.

        The second of two steps counts: the first begins with memory as another plan has left it.
        """
        if self.to_try:
            self.begun = not self.begun
            if not self.begun:
                plan = self.to_try.pop(0)
                if ns < self.best_ns:
                    self.best, self.best_ns = plan, ns


@dataclass(eq=False)
class _Run:
    """A step in progress."""

    began_ns: int
    waited_ns: int
    """Total of waits for copies before the step, in ns."""
    step: StepRecord = field(default_factory=StepRecord)
    seen: set[Held] = field(default_factory=set)
    sequence: list[int] = field(default_factory=list)
    """Sequence number of autograd's first node in each visit of a module."""
    visit: int = -1
    updates: int = -1
    """Operation that the update begins with."""
    left_ns: int = 0
    """When the model last returned, in ns."""
    updated_ns: int = 0
    """When the update began, in ns; 0 before."""
    calls: int = 0
    """Calls of the model with gradients."""
    backward: float = inf
    """First operation of the backward pass."""
    versions: list[int] = field(default_factory=list)
    """PyTorch's change counts of the parameters at the end of the last call."""
    failed: bool = False
    """True if an operation or a forward pass has raised."""
    most_live_bytes: int = 0
    """Most bytes that were live in the steps before this one."""
    buffers: set[Held | None] = field(default_factory=set)
    small: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Tensors without a record that the step may change, and their values before it."""
    places: dict[Held, Any] = field(default_factory=dict)
    """Places in the store with the values of others before the step."""
    states: dict[Any, dict[str, Any]] | None = None
    """The optimizer's states before the update, if it can be undone."""
    needed_bytes: int = 0
    """Most bytes that one operation needed before the update."""
    whole: bool = False
    """True if the guard has followed the step to its end, so that it shares its kind's record."""
    moved_bytes: int = 0
    """Total bytes moved before the step."""
    moved: list[tuple[int, int, int]] = field(default_factory=list)
    """Bytes in fast memory, and total bytes moved out and back, after each operation."""

    @property
    def must_complete(self) -> bool:
        """True in an update that cannot be undone: it runs to its end, beyond the budget."""
        return self.updates >= 0 and self.states is None

    def see(self, held: Held) -> None:
        """Give a storage the next number of the step."""
        self.seen.add(held)
        held.slot = len(self.step.nbytes)
        self.step.nbytes.append(held.nbytes)


class Sentinel(Policy):
    """Training of a model within a memory budget; the training loop stays as it is.

    Losses, gradients and parameters are bit for bit those of ordinary training. The budget covers
    tensors made in the model and from its tensors until :meth:`close`: activations, gradients and
    the optimizer's state; on a CPU with the compiled guard also memory inside operations. It does
    not cover inputs or tensors smaller than ``least_bytes``.

    A step lasts from the model's call to the end of the optimizer's ``step()``. The first step is
    profiled, and so is each that is like none before; in these the least recently used storages
    leave. If an operation of the first step needs more than the budget, it gets it, and the
    optimizer's ``step()`` raises afterwards.

    Parameters
    ----------
    optimizer
        Optimizer with the ``step()`` that ends a step.
    budget
        Bytes, a size such as ``"12GiB"``, or a share of a step's peak: ``"25%"``.
    slow
        Place of all other tensors: ``"host"``, a folder, or the path of a new file.

    Raises
    ------
    InvalidArgumentError
        For an invalid argument. In training, ``torch.OutOfMemoryError`` is raised for an operation
        that needs more than the budget; nothing is lost then.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> with Sentinel(model, optimizer, budget="50%") as sentinel:
    ...     model(torch.ones(64, 256)).square().mean().backward()
    ...     optimizer.step()
    >>> sentinel.report()["steps"]
    {'profiled': 1}
    """

    scripts = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        budget: int | str,
        slow: str | Path = "host",
        least_bytes: int = 1 << 16,
    ) -> None:
        check_training(model, optimizer)
        check_integer("least_bytes", least_bytes, 0)
        self._share, self._bytes = _budget(budget)
        for name, parameter in model.named_parameters():
            lazy = nn.parameter.is_lazy(parameter)
            nbytes = 0 if lazy or parameter.layout is not torch.strided else parameter.nbytes
            if self._share is None and nbytes > self._bytes and nbytes >= least_bytes:
                raise InvalidArgumentError(
                    f"budget is {budget}: expected {nbytes} bytes or more, as {name} alone has"
                )
        self._model, self._optimizer = model, optimizer
        self._kind: _Kind | None = None
        """Kind of the present step so far, or of the last one."""
        self._kinds: deque[_Kind] = deque(maxlen=_KINDS)
        """Known kinds, the most recent first."""
        self._by_slot: dict[int, Held] = {}
        self._run: _Run | None = None
        self._last: _Run | None = None
        self._number = 0
        self._asks: deque[Ask] = deque()
        self._leaving: list[tuple[float, int]] = []
        """Storages to leave when there is no room: heap of their next use, negated, and number."""
        self._ahead: set[Held] = set()
        """Storages fetched or being fetched, and not used yet."""
        self._changing: dict[Held, None] = {}
        """Buffers that a step has changed, in the order of their first change."""
        self._steps = Counter[str]()
        """Number of steps by plan."""
        self._uses = Counter[str]()
        self._own_ns = 0
        self._unseen = 0
        """Steps in a row that the policy has not seen."""
        self._inside = False
        """True while the model is called."""
        self._resumes: _Kind | None = None
        """Kind whose script the guard follows after the operation in progress."""
        self._scripts = 0
        """Number of the guard's last script."""
        self._layers = {layer for layer in model.modules() if [*layer.parameters(recurse=False)]}
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        check_name("the device's type", device.type, ("cpu", "cuda"))
        self._moves = Moves()
        self._residency = Residency(
            Watched(store_at(slow, device), self._moves),
            self,
            self._limit,
            least_bytes=least_bytes,
            kind=device.type,
        )
        try:
            self._residency.adopt(self._lasting())
            if stays := self._staying():
                warnings.warn(
                    f"{sum(one.nbytes for one in stays)} bytes of the model stay in memory, beyond "
                    f"the budget, in {len(stays)} tensors whose memory is not of PyTorch's "
                    "allocator but of a loaded file, NumPy or other processes: give them their "
                    "own first, by tensor.data = tensor.data.clone()",
                    stacklevel=2,
                )
        except BaseException:
            self._residency.close()
            raise
        self._residency.__enter__()
        self._residency.takes = False
        # Hooks are global: with hooks of their own some modules are computed differently.
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            optimizer.register_step_pre_hook(self._update),
            optimizer.register_step_post_hook(self._end),
            model.register_state_dict_post_hook(as_copies),
        ]
        self._copies = PlainCopies(model, self._hooks)

    @property
    def statistics(self) -> Statistics:
        """Totals of bytes moved."""
        return self._residency.statistics

    @property
    def budget_bytes(self) -> int:
        """Budget in bytes; for a share, of the peak known so far."""
        return self._limit()

    def report(self) -> dict[str, Any]:
        """Return the totals so far, ready for JSON."""
        return {
            **self._residency.report(),
            "budget_bytes": self.budget_bytes,
            "waited_ms": self._waited_ns() // 10**6,
            "least_budget_bytes": self._residency.most_needed_bytes,
            "in_place_bytes": sum(one.nbytes for one in self._staying()),
            "hits": self._uses["in_time"],
            "misses": self._uses["late"] + self._uses["on_demand"],
            **{name: self._uses[name] for name in ("late", "on_demand")},
            "bookkeeping_ms": self._own_ns // 10**6,
            "steps": dict(self._steps),
        }

    def __str__(self) -> str:
        text = table(f"Sentinel: {self._steps.total()} steps", self.report())
        if self._steps.total() > 2 and {*self._steps} == {"profiled"}:
            text += "\nno step was like one before, so none was planned for"
        return text

    def timeline(self, path: Path | str) -> Path:
        """Write the last step's copies and waits, and return the file.

        The file is for https://ui.perfetto.dev, or a picture if its name ends in ``.svg`` or
        ``.png``. Raises ``InvalidArgumentError`` for a path that cannot be written.
        """
        return self._moves.write(path, "Sentinel")

    def plot(self, path: Path | str) -> Path:
        """Draw the last step's memory and copies by operation as SVG; return the file's path.

        Raises ``ValueError`` before the first step's end.
        """
        from matplotlib.figure import Figure

        from sw_driver.files import write_picture

        if self._last is None:
            raise ValueError("no step has ended yet: train for one, then plot")
        used, out, back = zip(*self._last.moved, strict=True)
        figure = Figure(figsize=(8, 5), layout="constrained")
        memory, copies = figure.subplots(2, sharex=True)
        memory.plot([nbytes / 2**20 for nbytes in used], drawstyle="steps", label="in fast memory")
        memory.axhline(self.budget_bytes / 2**20, color="k", linestyle="--", label="budget")
        for moved, label in ((out, "out"), (back, "back")):
            begun = [(after - before) / 2**20 for before, after in pairwise(moved)]
            copies.bar(range(1, len(moved)), begun, 1, label=label)
        copies.set_xlabel("operation of the step")
        memory.set_ylabel("MiB")
        copies.set_ylabel("copies begun, MiB")
        memory.legend(loc="lower right")
        copies.legend()
        return write_picture(Path(path).with_suffix(".svg"), figure)

    def close(self) -> None:
        """Bring everything back into memory, and stop watching operations."""
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._copies.close()
            self._residency.close()

    def __getstate__(self) -> Any:
        raise TypeError("Sentinel belongs to its model: copy the model, which gives a plain model")

    def __enter__(self) -> Sentinel:
        if not self._hooks:
            raise InvalidArgumentError("this policy is closed: make another")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Steps.

    def _lasting(self) -> list[Tensor]:
        states = (one for state in self._optimizer.state.values() for one in _tensors(state))
        there = [one for one in states if one.device.type == self._residency.kind]
        return [*self._model.parameters(), *self._model.buffers(), *there]

    def _staying(self) -> list[Tensor]:
        """Return the model's and optimizer's tensors in memory that cannot be moved."""
        residency = self._residency
        there = [one for one in self._lasting() if not nn.parameter.is_lazy(one)]
        large = [one for one in there if one.nbytes >= residency.least_bytes]
        return [one for one in large if residency.of(one) is None]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if _is_traced():
            return
        if module is self._model:
            self._residency.check_thread()
            self._enter_model()
        if (run := self._run) is not None and module in self._layers:
            run.sequence.append(_get_sequence_nr())
            run.visit = len(run.sequence)
            if (state := self._residency.state) is None or not state.scripted:
                run.step.visits.append(len(run.step.functions))

    @uninterrupted
    def _enter_model(self) -> None:
        self._end_interrupted(1)
        self._inside = self._residency.takes = True
        if (state := self._residency.state) is not None:
            state.inside = 1
            if state.diverged:
                self._residency.stop_script()
        if torch.is_grad_enabled():
            if self._run is not None and not _is_checkpointed():
                self._look_for_steps(self._run)
            if self._run is None:
                self._begin()
                self._note_versions()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is self._model and not _is_traced():
            self._leave_model(output)

    @uninterrupted
    def _leave_model(self, output: Any) -> None:
        self._inside = self._residency.takes = False
        if self._run is not None and not _is_checkpointed():
            self._run.left_ns = time.perf_counter_ns()
        if (state := self._residency.state) is not None:
            state.inside = 0
        if output is None and not _is_checkpointed():  # a checkpoint stops when it has enough
            self.failed()
        self._note_versions()

    def _end_interrupted(self, calls: int = 0) -> None:
        """Give up a call of the model, or an update, that has ended without its last hook.

        ``calls`` of the model have just begun.
        """
        if self._inside and calls_of(nn.Module._call_impl, self._model) <= calls:
            self._leave_model(None)
        step: Any = type(self._optimizer).step
        run = self._run
        if run is not None and run.updates >= 0 and not calls_of(step, self._optimizer):
            run.failed = True
            self._end()

    def _note_versions(self) -> None:
        if self._run is not None:
            self._run.versions = [parameter._version for parameter in self._model.parameters()]

    def _look_for_steps(self, run: _Run) -> None:
        """End a step that this optimizer does not end: another does, or the program itself."""
        run.calls += 1
        parameters = [*self._model.parameters()]
        changed = sum(map(int.__ne__, [one._version for one in parameters], run.versions))
        began = run.backward < inf
        if (state := self._residency.state) is not None and state.scripted and self._kind:
            began = state.number > self._kind.backward
        dropped = began and all(one.grad is None for one in parameters)
        # Fewer changes may come from a layer that changes its parameters when recomputed.
        updated = 2 * changed > len(parameters) or dropped
        if updated or run.calls >= _MOST_CALLS:
            run.failed = True
            self._end()
            self._note_unseen(
                "parameters change, or gradients go, without step() of the optimizer that it has"
                if updated
                else f"the model was called {run.calls} times without a step() of the optimizer",
                _UNSEEN if updated else 1,
            )

    def _note_unseen(self, reason: str, steps: int) -> None:
        self._unseen += 1
        if self._unseen == steps:
            warnings.warn(
                f"Sentinel sees no whole step, so it plans none: {reason}; give it the model that "
                "is called, as model(...), and the optimizer that trains",
                stacklevel=5,
            )

    def _begin(self) -> None:
        self._residency.adopt(self._lasting())
        self._run = _Run(time.perf_counter_ns(), self._waited_ns())
        self._run.most_live_bytes = self._residency.most_live_bytes
        self._moves.restart(getattr(self._residency.store, "anchor", lambda: None)())
        self._run.moved_bytes = self.statistics.bytes_out + self.statistics.bytes_back
        self._number = 0
        self._keep_buffers(self._run)
        if self._residency.enter_guard():
            for kind in self._kinds:
                kind.has_script = False
        if (guard := self._residency.guard) is not None:
            guard.call.begin()
            guard.state.inside = 1
        if self._kinds:
            count = len(self._kinds[0].step.functions)
            self._asks = deque(ask._replace(use=ask.use - count) for ask in self._asks)
            self._leaving = [(use + count, slot) for use, slot in self._leaving]
            self._kind = self._kinds[0]
            self._follow(self._kind, 0)

    def _follow(self, kind: _Kind, number: int) -> None:
        """Let the guard follow a kind of step from an operation on."""
        guard = self._residency.guard
        if guard is None or not kind.has_script:
            return
        plan = kind.plan
        wakes = sorted({*plan.leaving, *plan.asks}) if plan is not None else []
        guard.follow(kind.number, number, wakes)

    def _waited_ns(self) -> int:
        """Return how long host and GPU have waited for copies, in ns."""
        stalled = getattr(self._residency.store, "stalled_ns", int)
        return self.statistics.waited_ns + stalled()

    @uninterrupted
    def _update(self, *_: object) -> None:
        self._residency.check_thread()
        self._end_interrupted()
        if (run := self._run) is not None:
            run.updates, run.updated_ns = len(run.step.functions), time.perf_counter_ns()
            run.needed_bytes = self._residency.most_needed_bytes
            if self._is_new_kind():
                states = self._optimizer.state
                run.states = {one: dict(state) for one, state in states.items()}
                self._keep_small(run, self._lasting())

    @uninterrupted
    def _end(self, *_: object) -> None:
        run, kind = self._run, self._kind
        if run is None:
            self._note_unseen(
                f"the optimizer made {_UNSEEN} steps without a call of the model", _UNSEEN
            )
            return
        if (guard := self._residency.guard) is not None:
            state = guard.state
            run.whole = (
                bool(state.scripted)
                and kind is not None
                and state.number == len(kind.step.functions)
            )
            self._residency.stop_script()
        if not run.failed:
            self._unseen = 0
        if self._residency.kind == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter_ns()
        ns, waited_ns = began - run.began_ns, self._waited_ns() - run.waited_ns
        self._run, self._last = None, run
        self._note_parts(run, began)
        self._give_places(run)
        if run.failed:
            self._steps["failed"] += 1
        elif kind is not None and len(kind.step.functions) == len(run.step.functions):
            self._steps[kind.plan.name if kind.plan else "on demand"] += 1
            kind.tried(ns)
            self._kinds.remove(kind)
            self._kinds.appendleft(kind)
            self._keep_script(kind)
            moved_bytes = self.statistics.bytes_out + self.statistics.bytes_back - run.moved_bytes
            if kind.budget_bytes != self._limit() and moved_bytes:
                bytes_per_s = moved_bytes * 10**9 / max(waited_ns, 1)
                kind.plan_for(self._limit(), ns - waited_ns, bytes_per_s)
        else:
            self._steps["profiled"] += 1
            self._note_updates(run)
            if guard is not None and len(self._kinds) == _KINDS:
                guard.call.drop(self._kinds[-1].number)
            self._scripts += 1
            self._kinds.appendleft(_Kind(run.step, self._scripts, backward=run.backward))
            self._keep_script(self._kinds[0])
        self._pad_moved(run, len(run.step.functions))
        self._by_slot = {held.slot: held for held in run.seen}
        for held in self._residency:
            held.slot = held.slot if held in run.seen else -1
        self._own_ns += time.perf_counter_ns() - began
        least, limit = self._residency.most_needed_bytes, self._limit(hard=True)
        if least > limit:
            if self._steps.total() > 1:
                self._residency.most_needed_bytes = run.needed_bytes
            raise torch.OutOfMemoryError(
                f"a step needs {least} bytes of fast memory for one operation, and the budget is "
                f"{limit}: give that many, or train with a smaller batch; this step is complete "
                "and correct"
            )

    # What an operation without room inside must not leave half changed.

    def _is_new_kind(self) -> bool:
        """Return whether an operation of the step may be refused for want of room."""
        state = self._residency.state
        scripted = state is not None and state.scripted
        return bool(self._kinds) and self._kind is None and not scripted

    def _keep_buffers(self, run: _Run) -> None:
        """Copy small buffers, and large ones that steps before have changed."""
        self._keep_small(run, self._model.buffers())
        run.buffers = {self._residency.of(one) for one in self._model.buffers()}
        self._changing = {held: None for held in self._changing if held in run.buffers}
        if self._kinds:
            for held in self._changing:
                run.places[held] = self._residency.stored_copy(held)

    def _keep_small(self, run: _Run, tensors: Iterable[Tensor]) -> None:
        """Copy small tensors, which have no record; a step that is refused restores them."""
        if self._kinds:
            with unwatched(), torch.no_grad():
                run.small += [
                    (one, one.detach().clone())
                    for one in tensors
                    if one.nbytes < self._residency.least_bytes
                ]

    def written(self, held: Held) -> None:
        run = self._run
        if run is None or held in run.places:
            return
        if held in run.buffers:
            self._changing[held] = None
        if not self._is_new_kind():
            return
        is_old = run.failed or held.slot not in run.step.born
        if is_old and (run.states is not None or held in run.buffers):
            run.places[held] = self._residency.stored_copy(held)

    def _restore(self, run: _Run) -> None:
        """Give buffers, and in an update parameters and states, their values before the step."""
        with unwatched(), torch.no_grad():
            for tensor, before in reversed(run.small):
                tensor.detach().copy_(before)
        for held, place in run.places.items():
            self._residency.restore(held, place)
        self._give_places(run)
        states = self._optimizer.state
        if run.states is not None:
            for one in [*states]:
                if one in run.states:
                    states[one] = run.states[one]
                else:
                    del states[one]

    def _give_places(self, run: _Run) -> None:
        store = self._residency.store
        while run.places and store is not None:
            held, place = run.places.popitem()
            store.give(place, held.nbytes)

    def _keep_script(self, kind: _Kind) -> None:
        """Keep the step that the guard has recorded, so that it follows steps like it."""
        guard = self._residency.guard
        if guard is not None and guard.state.recording and not kind.has_script:
            step = kind.step
            kind.has_script = guard.save(kind.number, len(step.functions), step.nbytes)

    def _pad_moved(self, run: _Run, number: int) -> None:
        """Fill in the operations without Python up to ``number``."""
        if len(run.moved) < number:
            moved = self.statistics
            last = (
                run.moved[-1]
                if run.moved
                else (self._residency.used_bytes, moved.bytes_out, moved.bytes_back)
            )
            run.moved.extend([last] * (number - len(run.moved)))

    def _note_parts(self, run: _Run, ended_ns: int) -> None:
        """Note when the step's parts were, for the timeline."""
        updated_ns = run.updated_ns or ended_ns
        parts = {
            "forward": (run.began_ns, run.left_ns),
            "backward": (run.left_ns, updated_ns),
            "update": (updated_ns, ended_ns),
        }
        for name, (begin_ns, end_ns) in parts.items():
            self._moves.add("step", name, 0, begin_ns, end_ns)
        self._moves.turn()

    def _note_updates(self, run: _Run) -> None:
        """Add a visit for each parameter's update."""
        owners: dict[int, int] = {}
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        for number, one in enumerate(parameters):
            for tensor in (one, one.grad, *_tensors(self._optimizer.state.get(one, {}))):
                held = None if tensor is None else self._residency.of(tensor)
                if held is not None:
                    owners.setdefault(held.slot, number)
        last = -1
        for number in range(max(run.updates, 0), len(run.step.slots) * (run.updates >= 0)):
            owner = next((owners[slot] for slot in run.step.slots[number] if slot in owners), last)
            if owner != last:
                run.step.visits.append(number)
                last = owner

    # Called by the residency.

    def before(self, func: Any, used: list[Held]) -> int | None:
        if self._inside and not used and not _is_checkpointed():
            self._end_interrupted()
        run = self._run
        # Results made from tensors of the model count; others only within the model's calls.
        self._residency.takes = True
        if run is None or run.failed:
            return None
        began = time.perf_counter_ns()
        step, kind, state = run.step, self._kind, self._residency.state
        if kind is not None and state is not None and state.scripted:
            number = self._number = state.number
            state.number = number + 1
            self._note_uses(used)
            made_bytes = self._act(kind, number, used)
            state.wakes_at = number + _RETRIES if self._asks else NEVER
            self._own_ns += time.perf_counter_ns() - began
            return made_bytes
        number = self._number = len(step.functions)
        if state is not None:
            state.number = number + 1
        if run.sequence and (node := _C._current_autograd_node()) is not None:
            run.backward = min(run.backward, number)
            self._note_visit(run, node._sequence_nr())
        for held in used:
            if held not in run.seen:
                self._see(run, held)
        self._note_uses(used)
        slots = tuple([held.slot for held in used])
        step.functions.append(func)
        step.slots.append(slots)
        step.made.append(())
        if kind is not None and not kind.step.is_like(step, number):
            kind = next((other for other in self._kinds if other.step.begins_like(step)), None)
            self._kind = kind
            self._asks.clear()
            self._leaving.clear()
            self._resumes = kind
        made_bytes = None if kind is None else self._act(kind, number, used)
        self._own_ns += time.perf_counter_ns() - began
        return made_bytes

    def _note_uses(self, used: list[Held]) -> None:
        for held in used:
            if not held.here:
                self._uses["on_demand"] += 1
            elif held in self._ahead:
                self._uses["in_time" if held.job is None else "late"] += 1
                self._ahead.discard(held)

    def _act(self, kind: _Kind, number: int, used: list[Held]) -> int | None:
        """Do what a kind's plan says before an operation; return the bytes that this makes."""
        if (plan := kind.plan) is not None:
            self._asks.extend(plan.asks.get(number, ()))
            self._come(kind.step, number)
        # Without tensor arguments the size of the result may differ from the last step's.
        return kind.step.made_bytes[number] if used else None

    def after(self, func: Any, used: list[Held], made: list[Held]) -> None:
        self._residency.takes = self._inside
        run = self._run
        if run is None or run.failed:
            return
        began = time.perf_counter_ns()
        step, kind, number = run.step, self._kind, self._number
        state = self._residency.state
        if kind is not None and state is not None and state.scripted:
            slots = kind.step.made[number]
            if [held.nbytes for held in made] == [kind.step.nbytes[slot] for slot in slots]:
                for held, slot in zip(made, slots, strict=True):
                    self._place(held, slot)
            else:
                state.scripted = 0
                self._residency.take_orphans()
                self.diverged(RESULTS, made)
        else:
            for held in made:
                self._see(run, held)
                step.born[held.slot] = number
            step.made[number] = tuple([held.slot for held in made])
        if kind is not None and kind.plan is not None:
            for slot in kind.plan.leaving.get(number, ()):
                if (held := self._at(slot)) is not None:
                    self._residency.clean(held)
                    heappush(self._leaving, (-kind.step.next_use(slot, number + 1), slot))
        if self._resumes is not None:
            self._follow(self._resumes, number + 1)
            self._resumes = None
        self._pad_moved(run, number)
        moved = self.statistics
        run.moved.append((self._residency.used_bytes, moved.bytes_out, moved.bytes_back))
        self._own_ns += time.perf_counter_ns() - began

    def diverged(self, reason: int, new: list[Held]) -> None:
        run, kind, state = self._run, self._kind, self._residency.state
        if run is None or kind is None or state is None:
            return
        number = state.number
        results = reason == RESULTS
        run.step = kind.step if run.whole else kind.step.begin(number, without_results=results)
        run.backward = kind.backward if number > kind.backward else inf
        run.seen = {*self._residency.seen()}
        self._by_slot.update((held.slot, held) for held in run.seen)
        if results:  # other ones than in the steps before
            made = [held for held in new if held not in run.seen]
            for held in made:
                self._see(run, held)
                run.step.born[held.slot] = number - 1
            run.step.made[number - 1] = tuple([held.slot for held in made])
        if reason == FAILED:
            self.failed()

    def failed(self) -> None:
        if (run := self._run) is not None:
            run.failed, self._kind = True, None
            # Shares are of the peak of steps that complete.
            self._residency.most_live_bytes = run.most_live_bytes
            if isinstance(sys.exception(), torch.OutOfMemoryError) and not run.must_complete:
                self._restore(run)

    def _see(self, run: _Run, held: Held) -> None:
        run.see(held)
        self._place(held, held.slot)

    def _place(self, held: Held, slot: int) -> None:
        held.slot = slot
        self._by_slot[slot] = held
        if (guard := self._residency.guard) is not None:
            guard.call.see(held.number, slot)

    def _at(self, slot: int) -> Held | None:
        """Return the storage of a slot."""
        state = self._residency.state
        if state is not None and state.scripted:
            return self._residency.at(slot)
        return self._by_slot.get(slot)

    def _note_visit(self, run: _Run, sequence: int) -> None:
        visit = bisect_right(run.sequence, sequence)
        if visit != run.visit and sequence < _ACCUMULATES:
            run.visit = visit
            run.step.visits.append(len(run.step.functions))

    def _come(self, step: StepRecord, number: int) -> None:
        residency, asks = self._residency, self._asks
        while asks:
            ask = asks[0]
            held = self._at(ask.slot)
            if held is not None and not held.here and ask.use > number:
                while residency.free_bytes < held.nbytes + ask.beside_bytes:
                    victim = self._leaver(step, (), ask.use)
                    if victim is None:
                        return
                    residency.drop(victim)
                if residency.fetch(held):
                    self._ahead.add(held)
            asks.popleft()

    def victim(self, residency: Residency, stay: Collection[Held]) -> Held | None:
        if self._kind is None:
            return super().victim(residency, stay)
        if (state := residency.state) is not None and state.scripted:
            self._number = max(self._number, state.number - 1)
        step = self._kind.step
        if (held := self._leaver(step, stay)) is not None:
            return held
        # If nothing else can leave, a storage being fetched leaves once it is there.
        comes = [held for held in self._ahead if held.comes and held not in stay]
        return max(
            [*residency.movable(stay)] or comes, key=partial(self._next_use, step), default=None
        )

    def _leaver(self, step: StepRecord, stay: Collection[Held], after: float = -1) -> Held | None:
        """Return the leaving storage with the latest next use, None if there is none.

        With ``after`` the use must come after that operation, and the storage must be able to leave
        at once.
        """
        leaver, kept = None, []
        while self._leaving and leaver is None:
            use, slot = entry = heappop(self._leaving)
            held = self._at(slot)
            if held is None or not held.here or step.next_use(slot, self._number) != -use:
                continue  # it has left or been used since
            if -use <= after or (after >= 0 and len(kept) == _LOOKED_AT):
                kept.append(entry)
                break
            busy = held.comes or (after >= 0 and (not held.stored or held.job is not None))
            if busy or held in stay or not self._residency.can_leave(held):
                kept.append(entry)
            else:
                leaver = held
        for entry in kept:
            heappush(self._leaving, entry)
        return leaver

    def _next_use(self, step: StepRecord, held: Held) -> tuple[float, int]:
        known = 0 <= held.slot < len(step.nbytes)
        return step.next_use(held.slot, self._number) if known else inf, -held.used

    def freed(self, held: Held) -> None:
        if self._by_slot.get(held.slot) is held:
            del self._by_slot[held.slot]
        self._ahead.discard(held)
        if (run := self._run) is not None and held in run.seen and not run.whole:
            run.step.freed[held.slot] = len(run.step.functions)
            run.seen.discard(held)

    def _limit(self, *, hard: bool = False) -> int:
        most = self._residency.most_live_bytes
        limit = self._bytes if self._share is None else int(most * self._share)
        soft = not self._kinds or (self._run is not None and self._run.must_complete)
        return max(limit, self._residency.most_needed_bytes) if soft and not hard else limit


def _budget(budget: int | str) -> tuple[float | None, int]:
    if isinstance(budget, str) and budget.endswith("%"):
        try:
            share = float(budget[:-1]) / 100
        except ValueError:
            share = 0.0
        if 0 < share <= 1:
            return share, 0
    form = "a number of bytes, a size such as '12GiB', or a share such as '25%'"
    return None, check_size("budget", budget, form=form)


def _is_checkpointed() -> bool:
    """Return whether a call is repeated for the backward pass."""
    return _C._current_graph_task_id() != -1


def _is_traced() -> bool:
    """Return whether PyTorch only traces, as ``torch.export`` does, with tensors without bytes."""
    return torch.compiler.is_compiling() or _C._get_dispatch_mode(_FAKE) is not None


def _tensors(state: dict[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]
