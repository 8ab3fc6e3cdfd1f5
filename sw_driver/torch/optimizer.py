"""Base of the optimizers: placing, moving and updating parameters on the module.

State is on the module. A step copies gradients to it, and parameters with bits that differ from the
module's. Then it runs the update rule on all channels and copies the parameters back.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, product
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hw.kernel.config import NARROW_RULES
from hw.narrow.formats import BLOCK_PARAMETERS
from hw.rules import rule
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.backends import module_config, parse_device
from sw_driver.axdimm.hyperparameters import checked_hyperparameters, rule_constants
from sw_driver.axdimm.launch import options_for
from sw_driver.axdimm.transport import WINDOW_BYTES
from sw_driver.device.errors import InvalidArgumentError, shown
from sw_driver.numbers import check_integer

from .formats import chosen_formats, entries_of, in_format, strangers
from .parameters import ParameterChecks
from .shards import Shard, Slot, Span, common, merged, padded, unit_of
from .state import ModuleState
from .step import Interrupts, Operations, StepHandle, StepReport, untraced

__all__ = ["ModuleOptimizer", "checked_norm"]

NORM_RULE = "sum_squares"
_ARRAYS = {4: np.float32, 2: np.uint16, 1: np.uint8}
"""NumPy types of the module's numbers, by their bytes."""
VALUE_BYTES = 4
"""Bytes of a value in the widest format."""
CHOICES = {"foreach", "fused", "capturable", "differentiable"}
"""Options for PyTorch's implementation, which do not apply here."""
OPTIONAL = {*CHOICES, "maximize", "amsgrad", "nesterov", "centered", "decoupled_weight_decay"}
"""Options that a parameter group in a state dict may lack, as in older versions of PyTorch."""

UPDATED = "The step was completed: all parameters are updated."
UNDER_WAY = (
    "The step is under way: no parameter has changed. The optimizer's next call completes it, "
    "load_state_dict() gives it up."
)
FAILED = (
    "No parameter has changed, but state on the module may have: load_state_dict() a saved one."
)
"""Notes on an error that say what an interrupted or failed step has done."""

Change = tuple[str, Tensor, list[Span]]
"""Change of a shard's tensor: its name, all its values, and the spans that the module lacks."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Update:
    """Update of one parameter in a step."""

    parameter: Tensor
    gradient: Tensor
    group: dict[str, Any]
    rule: UpdateRule
    hyperparameters: dict[str, float]
    constants: tuple[tuple[str, float], ...]
    t: int
    seed: int
    """Seed of random words for the parameter's first block of 256; later blocks count up."""
    before: tuple[Any, Tensor]
    """Parameter at the beginning of the step, see :func:`_mark`."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Rule and constants, which the parameters of one run share."""
        return self.rule.name, self.constants


class ModuleOptimizer(torch.optim.Optimizer):
    """Base of the optimizers; it precedes PyTorch's optimizer among their bases.

    Parameters
    ----------
    params: tensors, pairs of name and tensor, or groups, as in PyTorch.
    args, options: PyTorch's arguments of the optimizer.
    device: an opened module, or a backend's name. For a name, a module with the needed update rules
        is opened, and closed with the optimizer.
    gradient_dtype, parameter_dtype: formats on the module, ``torch.float32`` or ``torch.bfloat16``.
    states: format of states on the module: ``"fp32"``, ``"dynamic"`` or ``"linear"``; None for the
        usual one of the class.
    skip_not_finite: skip steps with infinite or NaN gradients, as the module would load them.
    seed: seed of the random words that round parameters to BF16, from 0 to below 2**32.

    Raises
    ------
    ValueError: for an option that no update rule has, for parameters that share memory, and for
        errors of PyTorch's optimizer.
    TypeError: for a parameter that is not of real floating-point numbers.
    InvalidArgumentError: if the opened module lacks the update rule or narrow formats.
    """

    state_keys: ClassVar[dict[str, str]]
    """PyTorch's names of the rule's tensors in a parameter's state."""
    counts_steps: ClassVar[bool] = True
    """True if PyTorch keeps a parameter's number of steps in its state."""
    usual_states: ClassVar[str] = "fp32"
    """Default format of states."""

    last_step: StepReport | None = None
    """Report of the last step; None before the first."""
    simulated_ns: float | None = None
    """Simulated time of all steps, in ns; None before the first and without a clock."""

    def __init__(
        self,
        params: Any,
        *args: Any,
        device: Axdimm | str = "golden",
        gradient_dtype: torch.dtype = torch.float32,
        parameter_dtype: torch.dtype = torch.float32,
        states: str | None = None,
        skip_not_finite: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self._formats = chosen_formats(
            gradient_dtype, parameter_dtype, self.usual_states if states is None else states
        )
        if not isinstance(skip_not_finite, bool):
            raise ValueError(f"skip_not_finite is {shown(skip_not_finite)}: expected a bool")
        names = [*inspect.signature(super().__init__).parameters][1:]
        _check_numbers({**dict(zip(names, args, strict=False)), **options})
        self._gradient_dtype, self._skips = gradient_dtype, skip_not_finite
        self._seed = check_integer("seed", seed, 0, 2**32 - 1, error=ValueError)
        self._entries = entries_of(self.state_keys, self._formats)
        self._strangers = strangers(self.state_keys, self._formats)
        self._unit = unit_of(self._formats)
        self._device: Axdimm | None = None
        self._slots: dict[Tensor, Slot] = {}
        self._streams = []
        self._parameters = ParameterChecks(parameter_dtype)
        self._pending: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        super().__init__(params, *args, **options)
        self._attach(device)

    def _attach(self, device: Any) -> None:
        """Set the device that computes, once the parameters are known."""
        if not isinstance(device, Axdimm | str):
            raise TypeError(
                f"device is {shown(device)}: expected an opened Axdimm or a backend's name, such "
                "as 'golden'"
            )
        self._owned = isinstance(device, str)
        if isinstance(device, str):
            device = self._opened(device)
            weakref.finalize(self, device.close)
        self._device = device
        for group in self.param_groups:
            self._rule_of(group)
        self._streams = [
            device.new_stream(f"of {type(self).__name__}, channel {channel}")
            for channel in range(device.channels)
        ]

    # Implemented by the optimizers.

    def rule_name(self, group: dict[str, Any]) -> str:
        """Return the name of a group's update rule; raise ``ValueError`` if there is none."""
        raise NotImplementedError

    def hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return values that include the rule's hyper-parameters."""
        return group

    def initial(self, group: dict[str, Any]) -> float:
        """Return the initial value of a new parameter's state."""
        return 0.0

    def check_loaded(self, group: dict[str, Any]) -> None:
        """Raise ``ValueError`` for a group of a state dict of another optimizer."""
        for name in sorted(self.defaults.keys() - OPTIONAL - group.keys()):
            raise ValueError(
                f"the state dict has no {name!r} in a parameter group: it is not one of "
                f"{type(self).__name__}"
            )

    # Called by training code.

    def __repr__(self) -> str:
        first, *others = super().__repr__().splitlines()
        device = self._device
        where = "none" if device is None else f"{device.transport.name}, {device.channels} channels"
        return "\n".join([first, f"device: {where}", *others])

    @property
    def device(self) -> Axdimm:
        """Opened module that computes."""
        assert self._device is not None
        return self._device

    @untraced
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; return the result of ``closure``.

        Raises
        ------
        TypeError, ValueError, AxdimmError: for sparse gradients, for an option or hyper-parameter
            that the rule does not take, and for a module that is closed or lacks the rule or
            memory. Nothing has changed then. If the module fails during the step, parameters are
            unchanged, but the state is lost.
        RuntimeError: if the module failed in an earlier step, and no state dict was loaded since.

        An interrupt (Ctrl-C, or an error raised by another signal's handler) happens before or
        after all parameters are updated; its note says which. If before, the optimizer's next call
        completes the step, except for parameters that were written to since.
        :meth:`load_state_dict` discards the step.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._noted():
            self._begin().wait()  # PyTorch's wrapper of ``step`` calls its hooks
        return loss

    @untraced
    def step_async(self) -> StepHandle:
        """Start a step. Its gradients have been read when this returns.

        Parameters keep their old values until the step is waited for. A parameter that the program
        writes to meanwhile keeps that value. The optimizer's next call that needs the step waits
        for it. Hooks before ``step`` are called now, hooks after it when the step is complete.
        Raises as :meth:`step` does, and ``RuntimeError`` if a hook returns other arguments.
        """
        self._settle()
        before = chain(
            _global_optimizer_pre_hooks.values(), self._optimizer_step_pre_hooks.values()
        )
        for hook in before:
            if (result := hook(self, (self,), {})) is not None:
                raise RuntimeError(
                    f"{hook} returned {shown(result)}: expected None, as step_async takes no "
                    "arguments"
                )
        with self._noted():
            return self._begin(hooks=True)

    @untraced
    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, *, error_if_nonfinite: bool = False) -> Tensor:
        """Clip like ``torch.nn.utils.clip_grad_norm_`` for the optimizer's parameters.

        Return the norm. The module computes it if it has the rule ``sum_squares``. Gradients are on
        the module then, and the step copies them again only if they were scaled. Raises as
        :meth:`step` does and, with ``error_if_nonfinite``, ``RuntimeError`` for a norm that is not
        finite.
        """
        max_norm = checked_norm(max_norm)
        updates = self._plan()
        if not updates or any(
            NORM_RULE not in self.device.rules(channel) for channel in range(self.device.channels)
        ):
            return torch.nn.utils.clip_grad_norm_(
                [update.parameter for update in updates],
                max_norm,
                error_if_nonfinite=error_if_nonfinite,
            )
        operations = Operations(device=self.device, streams=self._streams)
        shards = self._by_shard(updates)
        changes = [self._changed(shard, part, "g") for shard, part in shards]
        for (shard, part), change in zip(shards, changes, strict=True):
            operations.copy(shard, *change)
            operations.run(shard, rule(NORM_RULE), {}, self._spans(part))
        operations.wait()
        for update in updates:
            self._slots[update.parameter].known.add("g")
        squares = (value for _, run in operations.runs for value in run.sums.values())
        norm = math.sqrt(math.fsum(squares))
        if error_if_nonfinite and not math.isfinite(norm):
            raise RuntimeError(f"the norm of the gradients is {norm}: they were not clipped")
        scale = max_norm / (norm + 1e-6)
        if not scale >= 1:
            for update in updates:
                update.gradient.mul_(scale)
        return torch.tensor(norm, dtype=torch.float32, device="cpu")

    @untraced
    def inspect(self, parameter: Tensor, tensor: str) -> list[tuple[int, int, NDArray[Any]]]:
        """Return a tensor of the rule, such as ``"m"``, as the module has it for a parameter.

        The result is pieces with their channel and first element. BF16 is ``uint16``, codes are
        ``uint8``; ``"scales"`` are pairs and include padding. They are read through the backdoor,
        which takes no simulated time and changes nothing. Raises ``KeyError`` before the
        parameter's first step, and the driver's errors.
        """
        self._settle()
        if not isinstance(tensor, str):
            raise TypeError(
                f"tensor is {shown(tensor)}: expected its name in the rule, such as 'm'"
            )
        if parameter not in self._slots:
            raise KeyError(f"{shown(parameter)} has no state yet: give a parameter after its step")
        slot = self._slots[parameter]
        return [
            (channel, first, values if tensor == "scales" else values[: slot.count - first])
            for channel, first, values in self._read(slot, tensor, backdoor=True)
        ]

    @untraced
    def close(self) -> None:
        """Fetch the state, free the module's memory, and close the module if the optimizer owns it.

        The state dict can still be saved; on a module that stays open, training can continue.
        Without this call an owned module closes with the optimizer, and the rest ends with the
        program.
        """
        try:
            if self._failure is None:
                self._settle()
                for slot in self._slots.values():
                    self._vacate(slot)
            for slot in self._slots.values():
                slot.shard.free()
            self._slots.clear()
        finally:
            if self._owned:
                self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # PyTorch's methods that the module changes.

    @untraced
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in PyTorch. If it raises the constructor's errors, nothing is added."""
        super().add_param_group(param_group)
        try:
            self._check_groups()
        except BaseException:
            self.param_groups.pop()
            raise

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """Return the state dict with PyTorch's names and layout.

        Tensors are copies, in FP32, or codes and scales; see ``docs/pytorch.md``.
        """
        self._settle()
        held, self.state = self.state, defaultdict(dict)
        try:
            for parameter, state in held.items():
                fetched = state.snapshot() if isinstance(state, ModuleState) else state
                self.state[parameter] = fetched
            return super().state_dict()
        finally:
            self.state = held

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of PyTorch's, and discard a step in flight.

        States stay in FP32 for parameters in other formats, where PyTorch would round them. FP32
        states become codes, or codes FP32, if that is the format here. Raises ``ValueError`` for a
        state dict that does not fit; then nothing has changed.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= {*state_dict}:
            raise ValueError(f"the state dict is {shown(state_dict)}: expected one of state_dict()")
        loaded: dict[str, Any] = {}

        def convert(_: Any, last: dict[str, Any]) -> dict[str, Any]:
            numbers = (number for group in last["param_groups"] for number in group["params"])
            named = dict(zip(numbers, self._named_parameters(), strict=False))  # PyTorch counts
            states = dict(last["state"])
            for number in states.keys() & named.keys():
                name, parameter = named[number]
                states[number] = in_format(
                    states[number], self.state_keys, self._formats, name, parameter.shape
                )
            loaded.update({**last, "state": states})
            return loaded

        hook = self.register_load_state_dict_pre_hook(convert)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        numbers = (number for group in loaded["param_groups"] for number in group["params"])
        for number, (_, parameter) in zip(numbers, self._named_parameters(), strict=True):
            for key, value in loaded["state"].get(number, {}).items():
                if key in self._entries and value is not None:
                    self.state[parameter][key] = value.to(self._entries[key].dtype)

    def __setstate__(self, state: dict[str, Any]) -> None:
        groups = state["param_groups"]
        for group in groups:
            self.check_loaded(group)
            for name in CHOICES & group.keys() & self.defaults.keys():  # PyTorch's own options
                group[name] = self.defaults[name]
        names = iter(self._named_parameters(groups))
        for group in groups:
            chosen = self._rule_of({**self.defaults, **group})
            for parameter in group["params"]:
                name, _ = next(names)
                self._check_state(name, parameter, state["state"].get(parameter, {}), chosen)
        for values in state["state"].values():
            for key in [key for key, value in values.items() if value is None]:
                del values[key]
        if self._pending is not None:
            Operations(device=self.device, streams=self._streams).recover()
            self._forget_images()
        super().__setstate__(state)
        self._pending = self._failure = None

    def _check_state(
        self, name: str, parameter: Tensor, state: Mapping[str, Any], rule: UpdateRule
    ) -> None:
        """Raise ``ValueError`` if ``state`` does not fit the parameter in this optimizer."""
        known = {*self._entries} | ({"step"} if self.counts_steps else set())
        for key, value in state.items():
            if key not in known:
                raise ValueError(
                    f"the state dict has {key!r} for {name}: {type(self).__name__} has "
                    f"{', '.join(sorted(known))}"
                )
            if key != "step" and value is not None:
                entry = self._entries[key]  # PyTorch has converted codes from bytes to FP32
                entry.check(f"{key} of {name}", value.to(entry.dtype), parameter.shape)
        needed = self._keys(rule) | {"step"}
        for key in ("step", *self._entries):
            if state and key in (known & needed) - state.keys():
                raise ValueError(f"the state dict has no {key} for {name}: save a whole one")

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            f"{type(self).__name__} holds a module, which cannot be copied or pickled: save its "
            "state_dict()"
        )

    # Checks.

    def _rule_of(self, group: dict[str, Any]) -> UpdateRule:
        """Return the group's rule; raise an error if the open module lacks it."""
        name = self.rule_name(group)
        if self._formats.narrow and name not in NARROW_RULES:
            raise ValueError(
                f"the rule {name} has no narrow formats, as {' and '.join(NARROW_RULES)} have: "
                "take a class without 8bit in its name, and leave gradient_dtype, parameter_dtype "
                "and states out"
            )
        for channel in range(0 if self._device is None else self.device.channels):
            there = self.device.rules(channel)
            if name not in there:
                options = options_for(
                    name, there, self._formats.narrow or self.device.narrow(channel)
                )
                raise InvalidArgumentError(
                    f"{type(self).__name__} needs the rule {name}, the kernel of channel {channel} "
                    f"has {', '.join(there)}: open the device with {options}",
                    rule=name,
                    channel=channel,
                    rules=there,
                )
            if self._formats.narrow and not self.device.narrow(channel):
                raise InvalidArgumentError(
                    f"{type(self).__name__} needs narrow formats, which the kernel of channel "
                    f"{channel} lacks: open the device with "
                    f"{options_for(name, there, narrow=True)}",
                    channel=channel,
                )
        return rule(name)

    def _keys(self, rule: UpdateRule) -> set[str]:
        """Return the names of a state's entries on the module under ``rule``."""
        tensors = self._formats.tensors(rule)
        return {key for key, entry in self._entries.items() if entry.tensor in tensors}

    def _checked(self, rule: UpdateRule, values: Mapping[str, Any], t: int) -> dict[str, float]:
        """Return the rule's hyper-parameters in step ``t``, taken from ``values``."""
        own = {name: _number(values, name, t) for name in rule.hyperparameters}
        return checked_hyperparameters(rule, own)

    def _named_parameters(
        self, groups: list[dict[str, Any]] | None = None
    ) -> list[tuple[str, Tensor]]:
        result = []
        for number, group in enumerate(self.param_groups if groups is None else groups):
            names = group.get("param_names", ())
            for index, parameter in enumerate(group["params"]):
                words = f"parameter {index} of group {number}"
                name = f"{words} ({names[index]!r})" if index < len(names) else words
                result.append((name, parameter))
        return result

    def _check_groups(self) -> None:
        """Raise an error for an invalid group; a program may also change groups directly."""
        for number, group in enumerate(self.param_groups):
            lacking = sorted({"params", *self.defaults} - CHOICES - group.keys())
            if lacking or not isinstance(group["params"], list):
                fault = f"lacks {', '.join(lacking)}" if lacking else "has no list of parameters"
                raise ValueError(f"group {number} {fault}: add it by add_param_group()")
            for name in sorted(CHOICES):
                if group.get(name):
                    raise ValueError(
                        f"{name} is {shown(group[name])}, but the module computes the update: "
                        "leave it out"
                    )
            self._rule_of(group)
        self._check_parameters()

    def _check_parameters(self) -> None:
        """Raise an error for parameters that cannot be converted or that share memory."""
        self._parameters.check(self._named_parameters())

    def _settle(self) -> None:
        """Complete a step in flight; raise ``RuntimeError`` if a step has failed."""
        pending = self._pending
        if pending is not None:
            pending()
        if self._failure is not None:
            raise RuntimeError(
                f"the module failed in an earlier step ({self._failure!r}), and with it the state: "
                "load_state_dict() one that was saved"
            ) from self._failure

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Add a note to an error that says what the interrupted step has done."""
        before = self.last_step
        try:
            yield
        except BaseException as error:
            note = (
                FAILED if self._failure is not None
                else UNDER_WAY if self._pending is not None
                else UPDATED if self.last_step is not before
                else None
            )  # fmt: skip
            if note and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise

    # The module.

    @torch.no_grad()
    def _begin(self, *, hooks: bool = False) -> StepHandle:
        """Start a step; with ``hooks`` call the hooks at its end."""
        with Interrupts() as interrupts:
            interrupts.kept = False
            updates = self._plan()
            operations = Operations(device=self.device, streams=self._streams)
            if self._skips:
                operations.not_finite = sum(map(self._not_finite, updates))
            if operations.not_finite:
                updates = []
            finish = self._finisher(operations, updates, hooks=hooks)
            interrupts.kept = True
            try:
                self._queue(operations, updates)
            except BaseException as error:
                if operations.queued:
                    operations.recover()
                    self._fail(error)
                raise
            self._pending = finish
            self._opt_called = True  # else PyTorch's schedulers warn that they precede the step
        return StepHandle(operations, finish)

    def _not_finite(self, update: _Update) -> int:
        """Return the number of gradients that are infinite or NaN as the module would load them."""
        values = update.gradient.to(torch.float32).to(self._gradient_dtype)
        return values.numel() - int(values.isfinite().sum())

    def _opened(self, name: str) -> Axdimm:
        """Open a module with the rules of all groups, and memory for all parameters."""
        rules = tuple(dict.fromkeys(self.rule_name(group) for group in self.param_groups))
        _, preset = parse_device(name)
        config = module_config(BackendOptions(preset=preset))
        narrow = config.narrow or self._formats.narrow
        settings: dict[str, Any] = {"rules": rules if narrow else (*rules, NORM_RULE)}
        settings |= {"narrow": True} if narrow else {}
        config = module_config(BackendOptions(preset=preset, settings=settings))
        sizes = [self._padded(parameter) for _, parameter in self._named_parameters()]
        tensors = max(len(self._formats.tensors(rule(name))) for name in rules)
        # On a channel the next tensor may begin up to a unit and a block after the end of this one.
        lack = 2 * config.block_bytes + VALUE_BYTES * self._unit
        share = VALUE_BYTES * -(-sum(sizes) // config.channels)
        share += lack * (len(sizes) if self._stochastic else 1)
        needed = 2 * WINDOW_BYTES + tensors * share
        if needed > config.capacity_bytes:
            settings["capacity_bytes"] = 1 << (needed - 1).bit_length()
        return Axdimm(name, options=BackendOptions(settings=settings))

    def _plan(self) -> list[_Update]:
        """Place a step's parameters and return their updates; raise the errors of a step."""
        self._settle()
        self._check_groups()
        for parameter, state in self.state.items():
            if isinstance(state, ModuleState) and state.slot is not self._slots.get(parameter):
                state.come_home()  # completes the step of another optimizer if it is there
        updates = []
        owners: dict[int, str] = {}
        names = iter(self._named_parameters())
        next_seed = self._seed << 32
        for group in self.param_groups:
            chosen = self._rule_of(group)
            values = self.hyperparameters(group)
            of_step: dict[int, tuple[dict[str, float], tuple[tuple[str, float], ...]]] = {}
            for parameter in group["params"]:
                name, _ = next(names)
                gradient = parameter.grad
                seed, next_seed = next_seed, next_seed + -(-parameter.numel() // BLOCK_PARAMETERS)
                if gradient is None:
                    continue
                if gradient.layout is not torch.strided:
                    raise TypeError(
                        f"the gradient of {name} is {gradient.layout}: expected a dense one"
                    )
                state = self.state.get(parameter, {})
                owner = owners.setdefault(id(state), name) if parameter in self.state else name
                if owner is not name:
                    raise ValueError(
                        f"the state of {name} is that of {owner}, too: give each its own, such as "
                        "a copy.deepcopy() of it"
                    )
                if isinstance(state, ModuleState) and state.slot.shape != parameter.shape:
                    state.come_home()
                here = state.here if isinstance(state, ModuleState) else state
                touched = self._formats.codes and here.keys() & self._entries.keys()
                if touched and isinstance(state, ModuleState):
                    state.come_home()  # the scales of both moments are copied together
                for key in sorted(self._strangers & here.keys()):
                    raise ValueError(
                        f"the state of {name} has {key}, of another format than "
                        f"{', '.join(self._entries)}: load_state_dict() converts FP32 to codes and "
                        "codes to FP32"
                    )
                for key, entry in self._entries.items():
                    if here.get(key) is not None:
                        entry.check(f"{key} in the state of {name}", here[key], parameter.shape)
                taken = int(state.get("step", 0)) if self.counts_steps else int(bool(state))
                t = taken + 1
                if t not in of_step:
                    checked = self._checked(chosen, values, t)
                    constants = rule_constants(chosen, checked)
                    of_step[t] = checked, tuple((k, float(v)) for k, v in constants.items())
                checked, constants = of_step[t]
                updates.append(
                    _Update(
                        parameter=parameter,
                        gradient=gradient,
                        group=group,
                        rule=chosen,
                        hyperparameters=checked,
                        constants=constants,
                        t=t,
                        seed=seed,
                        before=_mark(parameter),
                    )
                )
        self._place(updates)
        return updates

    def _place(self, updates: list[_Update]) -> None:
        """Place parameters without a slot, and allocate all tensors of the rules."""
        self._free_places()
        new: dict[tuple[Any, ...], list[_Update]] = {}
        for update in updates:
            if update.parameter not in self._slots:
                new.setdefault(update.kind, []).append(update)
        parameters = [update.parameter for alike in new.values() for update in alike]
        # Random words are drawn per run: a parameter's own shard keeps them independent of others.
        parts = [[parameter] for parameter in parameters] if self._stochastic else [parameters]
        slots = {}
        for part in filter(None, parts):
            start, shard = 0, Shard(self.device, sum(map(self._padded, part)), self._formats)
            for parameter in part:
                slots[parameter] = Slot(
                    shard=shard, start=start, shape=parameter.shape, device=parameter.device
                )
                start += self._padded(parameter)
        for update in updates:
            (slots.get(update.parameter) or self._slots[update.parameter]).shard.allocate(
                self._formats.tensors(update.rule)
            )
        self._slots |= slots
        for update in updates:
            state = self.state.get(update.parameter)
            if isinstance(state, ModuleState):
                state.take_to(self._slots[update.parameter], self._fetch, self._settle)

    @property
    def _stochastic(self) -> bool:
        """True if parameters are rounded with random words."""
        return self._formats.parameters != "fp32"

    def _padded(self, parameter: Tensor) -> int:
        return padded(parameter.numel(), self._unit)

    def _free_places(self) -> None:
        """Free the shards of parameters that are gone or have another shape.

        Other parameters of such a shard are placed again in their next step. State that the program
        has taken from a parameter is fetched before its slot is reused.
        """
        there = {parameter for group in self.param_groups for parameter in group["params"]}
        gone = {
            slot.shard
            for parameter, slot in self._slots.items()
            if parameter not in there or slot.shape != parameter.shape
        }
        for parameter, slot in list(self._slots.items()):
            if slot.shard in gone:
                self._vacate(slot)
                del self._slots[parameter]
            elif slot.state is not None and slot.state() is not self.state.get(parameter):
                self._vacate(slot)
        if gone:  # operations of an interrupted call may use them
            Operations(device=self.device, streams=self._streams).recover()
        for shard in gone:
            shard.free()

    def _vacate(self, slot: Slot) -> None:
        """Fetch the state that is in a slot."""
        state = slot.state and slot.state()
        if state is not None:
            state.come_home()
        slot.state = None

    def _by_shard(self, updates: list[_Update]) -> list[tuple[Shard, list[_Update]]]:
        """Return the updates of each shard, in their order on the module."""
        shards: dict[Shard, list[_Update]] = {}
        for update in updates:
            shards.setdefault(self._slots[update.parameter].shard, []).append(update)
        for part in shards.values():
            part.sort(key=lambda update: self._slots[update.parameter].start)
        return list(shards.items())

    def _spans(self, updates: list[_Update]) -> list[Span]:
        return merged(self._slots[update.parameter].span for update in updates)

    def _queue(self, operations: Operations, updates: list[_Update]) -> None:
        """Queue all of a step: in each round, copies, then runs, then copies back."""
        queued = []
        for shard, part in self._by_shard(updates):
            changes = [self._changed(shard, part, name) for name in "pg"]
            changes += self._state_here(shard, part)
            alike = [list(run) for _, run in groupby(part, key=lambda update: update.kind)]
            queued.append((shard, changes, alike, self._spans(part)))
        for shard, changes, alike, spans in queued:
            for spans_now in shard.rounds():
                for name, values, changed in changes:
                    operations.copy(shard, name, values, common(changed, spans_now))
                for run in alike:
                    rule, hyperparameters = run[0].rule, run[0].hyperparameters
                    run_spans = common(self._spans(run), spans_now)
                    operations.run(shard, rule, hyperparameters, run_spans, run[0].seed)
                image = shard.image("p")
                operations.copy(shard, "p", image, common(spans, spans_now), back=True)

    def _changed(self, shard: Shard, part: list[_Update], name: str) -> Change:
        """Return the parameters or gradients that differ from the module's copy."""
        spans: list[Span] = []
        for update in part:
            slot, parameter = self._slots[update.parameter], update.parameter
            negate = name == "g" and bool(update.group.get("maximize"))
            values = update.gradient if name == "g" else parameter
            if slot.refresh(name, values, parameter, negate=negate):
                spans.append(slot.span)
        return name, shard.image(name), merged(spans)

    def _state_here(self, shard: Shard, part: list[_Update]) -> list[Change]:
        """Return the state tensors that are on the host, or their initial values."""
        changes: dict[str, tuple[Tensor, set[Span]]] = {}
        for (key, entry), update in product(self._entries.items(), part):
            state = self.state.get(update.parameter, {})
            here = state.here if isinstance(state, ModuleState) else state
            on_module = isinstance(state, ModuleState) and key in state.away
            if key not in self._keys(update.rule) or on_module:
                continue
            if entry.tensor not in changes:
                changes[entry.tensor] = shard.zeros(entry.tensor), set()
            values, spans = changes[entry.tensor]
            slot = self._slots[update.parameter]
            values = shard.part(entry.tensor, values, slot.span)
            entry.part(values).fill_(entry.filling)
            view = entry.view(values, update.parameter.shape)
            held = here.get(key)
            initial = self.initial(update.group) or entry.filling
            view.fill_(initial) if held is None else view.copy_(held)
            spans.add(slot.span)
        return [(name, values, merged(spans)) for name, (values, spans) in changes.items()]

    def _finisher(
        self, operations: Operations, updates: list[_Update], *, hooks: bool
    ) -> Callable[[], None]:
        """Return a function that completes the step on its first call."""

        def finish() -> None:
            if self._pending is not finish:
                if operations.failed:
                    self._settle()
                return
            with self._noted(), Interrupts() as interrupts:
                interrupts.kept = False
                try:
                    operations.wait()
                except BaseException as error:
                    if operations.failed:
                        self._fail(error)
                    raise
                interrupts.kept = True
                with torch.no_grad():
                    for update in updates:
                        self._finish_update(update)
                count = sum(update.parameter.numel() for update in updates)
                self.last_step = operations.report(count)
                if self.last_step.total_ns is not None:
                    self.simulated_ns = (self.simulated_ns or 0.0) + self.last_step.total_ns
                self._pending = None
            if hooks:
                own = self._optimizer_step_post_hooks.values()
                for hook in chain(own, _global_optimizer_post_hooks.values()):
                    hook(self, (self,), {})

        return finish

    def _finish_update(self, update: _Update) -> None:
        parameter, slot = update.parameter, self._slots[update.parameter]
        (where, values), (where_before, values_before) = _mark(parameter), update.before
        same = where == where_before and torch.equal(values, values_before)
        if same and parameter.shape == slot.shape:
            parameter.copy_(slot.view(slot.shard.image("p"), parameter))
        slot.known.add("p")
        keys = self._keys(update.rule)
        if not keys:
            return
        state = slot.state and slot.state()  # also if another parameter has it now
        if state is None or state.slot is not slot:
            before = self.state.get(parameter, {})
            here = before.here if isinstance(before, ModuleState) else before
            state = ModuleState(here, slot, self._fetch, self._settle)
            self.state[parameter] = state
        state.moved(keys)
        if self.counts_steps:
            state.here["step"] = torch.tensor(update.t, dtype=torch.float32, device="cpu")

    def _fail(self, error: BaseException) -> None:
        self._pending, self._failure = None, error
        self._forget_images()

    def _forget_images(self) -> None:
        for slot in self._slots.values():
            slot.known.clear()

    @untraced
    def _fetch(self, slot: Slot, key: str) -> Tensor:
        """Return a tensor of a parameter's state, copied from the module."""
        self._settle()
        entry = self._entries[key]
        pieces = [values for _, _, values in self._read(slot, entry.tensor, modes="wait")]
        values = torch.from_numpy(
            np.concatenate([np.empty(0, _ARRAYS[entry.dtype.itemsize]), *pieces])
        )
        return entry.view(values, slot.shape).contiguous().to(slot.device)

    def _read(
        self, slot: Slot, tensor: str, **options: Any
    ) -> Iterator[tuple[int, int, NDArray[Any]]]:
        size = slot.shard.dtype(tensor).itemsize
        for channel, start, stop in slot.shard.parts([slot.span]):
            count = slot.shard.nbytes(tensor, stop - start) // size
            values = np.empty(count, _ARRAYS[size])
            there = slot.shard.pointer(tensor, channel, start)
            self.device.MemcpyAxdimm2Host(values, there, values.nbytes, **options)
            yield channel, start - slot.start, values


def checked_norm(max_norm: Any) -> float:
    """Return the limit of a norm as a float; raise ``ValueError`` if it is not one."""
    value = max_norm.item() if isinstance(max_norm, Tensor) and max_norm.numel() == 1 else max_norm
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"max_norm is {shown(max_norm)}: expected a number from 0 on")
    return float(value)


_NUMBERS = {
    "lr", "weight_decay", "eps", "momentum", "dampening", "alpha", "lr_decay",
    "initial_accumulator_value",
}  # fmt: skip
_FLAGS = OPTIONAL - {*CHOICES}


def _check_numbers(options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an option that has to be a number or a flag and is not."""
    for name in _NUMBERS & options.keys():
        value = options[name]
        if not isinstance(value, Tensor) and not _is_number(value):
            raise ValueError(f"{name} is {shown(value)}: expected a finite number")
    for name in _FLAGS & options.keys():
        if not isinstance(options[name], bool):
            raise ValueError(f"{name} is {shown(options[name])}: expected True or False")
    betas = options.get("betas", (0.9, 0.9))
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"betas is {shown(betas)}: expected two numbers")


def _is_number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and math.isfinite(value)


def _mark(parameter: Tensor) -> tuple[Any, Tensor]:
    """Return values that change when the program writes to a parameter.

    These are its address, PyTorch's count of writes unless views of one tensor share it, and the
    values, since writes to ``.data`` are not counted.
    """
    own = parameter.untyped_storage().nbytes() == parameter.nbytes and not parameter.is_inference()
    values = parameter.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
    where = parameter.data_ptr(), parameter._version if own else None
    return where, values.view(-1).view(torch.uint8)


def _number(values: Mapping[str, Any], name: str, t: int) -> Any:
    """Return a hyper-parameter, which may be a tensor of one element, as in PyTorch."""
    value: Any = t if name == "t" else values[name]
    return value.item() if isinstance(value, Tensor) else value
