"""Optimizers with parameters in a store, updated there as their gradients arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sw_driver.device.errors import shown
from sw_driver.torch import ModuleOptimizer, StepHandle
from sw_driver.torch.optimizer import checked_norm
from sw_driver.torch.parameters import HOOK_RESULT
from sw_driver.torch.step import Interrupts

from .gradients import StoreState, gradient_of, guarded, set_gradient
from .policy import Stored

__all__ = ["OffloadedOptimizer", "offloaded"]

IN_FLIGHT = 2
"""Gradients in flight from the host's memory to the module, at most."""


class OffloadedOptimizer(ModuleOptimizer):
    """Base of optimizers with parameters in a store.

    It precedes an optimizer of :mod:`sw_driver.torch` among the bases. A gradient leaves for the
    module as soon as it is complete, and is removed from the parameter. From the second iteration
    on, the update runs once as many gradients and uses of the parameter have been seen as in
    earlier iterations. :meth:`step` makes all updates that are left.
    """

    def __init__(self, params: Any, *args: Any, device: Any = None, **options: Any) -> None:
        self._platform = device
        self._store: Any = getattr(device, "store", None)
        tensors = getattr(device, "tensors", ())
        self._tensors = {name: key for name, key in self.state_keys.items() if name in tensors}
        """PyTorch's names of the rule's state tensors, by the rule's names."""
        self._trained: dict[Tensor, Stored] = {}
        self._sent: deque[Any] = deque()
        self._early = getattr(device, "early_updates", False)
        self._clips = False
        """True once the gradients' norm is used: the module then adds up squares on arrival."""
        self._scale = 1.0
        super().__init__(params, *args, device=device, **options)
        if self._formats.narrow or self._skips:
            raise ValueError(
                f"the optimizer is {type(self).__name__} with {self._formats} and skip_not_finite="
                f"{self._skips}: a store has everything in FP32 and updates each gradient as it "
                "comes; use an optimizer without 8bit in its name and without options of precision"
            )
        # PyTorch's Adagrad has set state in its constructor.
        self._no_state: Any = StoreState(self)
        self.state = self._no_state

    def _attach(self, device: Any) -> None:
        """Do nothing: the platform is known before the parameters are."""

    def _check_parameters(self) -> None:
        """Take over the parameters just added, which the platform has checked."""
        if self._platform is None:
            return
        group, number = self.param_groups[-1], len(self.param_groups) - 1
        rule = self.rule_name(group)
        if rule != self._platform.rule:
            raise ValueError(
                f"group {number} has the rule {rule}, but the parameters were "
                f"stored for {self._platform.rule}: give all groups options of one rule"
            )
        records = [(parameter, self._platform.find(parameter)) for parameter in group["params"]]
        for parameter, stored in records:
            if stored is None and parameter.numel():
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} in group {number} is not of "
                    "the offloaded model: pass parameters of what build() or take() returned"
                )
            if stored is not None and parameter.requires_grad and stored.stateless:
                raise ValueError(
                    f"{stored.name} was frozen when it was stored, so it has no state: unfreeze it "
                    "before build() or take()"
                )
        for parameter, stored in records:
            if stored is not None and parameter.requires_grad:
                self._trained[parameter], stored.group = stored, number
                stored.optimizer = self
                stored.hook = parameter.register_post_accumulate_grad_hook(self.take)
                parameter.__class__ = guarded(type(parameter))

    # Called by training code.

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters with a gradient that are not updated yet; end the iteration.

        Raises
        ------
        RuntimeError: if a parameter was given other memory, if hyper-parameters have changed since
            some parameters were updated, or if the module failed in an earlier step.
        InvalidArgumentError: in another thread than the platform's.
        TypeError, ValueError, AxdimmError: as
            :meth:`~sw_driver.torch.optimizer.ModuleOptimizer.step`.
        """
        self._platform.memory.check_thread()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._settle()
        self._send_back()
        waiting = self._waiting()
        try:
            for stored, hyperparameters in waiting:
                if stored.hyperparameters is None:
                    self._update(stored, hyperparameters)
            self._sent.clear()
            self._store.drain()
        except BaseException as error:
            self._failure = error
            for words, updated in (("Updated", True), ("not", False)):
                names = [s.name for s, _ in waiting if updated is (s.hyperparameters is not None)]
                error.add_note(f"{words}: {', '.join(names) or 'none'}")
            raise
        # Graphs from before the step are stale; PyTorch reports their use.
        torch.autograd.graph.increment_version([stored.parameter for stored, _ in waiting])
        for stored in self._trained.values():
            stored.steps += bool(stored.gradients)
            most_gradients, most_uses = stored.usual
            stored.usual = max(most_gradients, stored.gradients), max(most_uses, stored.uses)
        self._store.begin_iteration()
        self._platform.residency.moves.turn()
        self._restart()
        return loss

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, *, error_if_nonfinite: bool = False) -> Tensor:
        """Clip like ``torch.nn.utils.clip_grad_norm_`` for the optimizer's parameters.

        Return the norm, which the module computes. All gradients have to arrive before an update
        can run: from the first call on, all updates run in :meth:`step`. Raises ``RuntimeError`` if
        some have run already, and, with ``error_if_nonfinite``, for a norm that is not finite.
        """
        max_norm = checked_norm(max_norm)
        self._settle()
        self._early, self._clips = False, True
        for stored in self._trained.values():
            if stored.hyperparameters is not None:
                raise RuntimeError(
                    f"{stored.name} was updated when its gradient came, without clipping: "
                    "call clip_grad_norm() in the first step already, or have early_updates=False"
                )
        self._send_back()
        keys = [stored.key for stored in self._trained.values() if stored.gradients]
        norm = self._store.norm(keys) if keys else 0.0
        if error_if_nonfinite and not np.isfinite(norm):
            raise RuntimeError(f"the norm of the gradients is {norm}: they were not clipped")
        scale = max_norm / (norm + 1e-6)
        if not scale >= 1:
            self._scale = scale
        return torch.tensor(norm, dtype=torch.float32, device="cpu")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients on the module; raise ``RuntimeError`` if some have been used."""
        self._settle()
        for stored in self._trained.values():
            self._refuse_updated(stored, "zero_grad()")
        self.give_up()
        for parameter, stored in self._trained.items():
            if stored.spent and not set_to_none:
                set_gradient(parameter, self._empty(stored).zero_())
            stored.spent = False
        super().zero_grad(set_to_none=set_to_none)

    @torch.no_grad()
    def bring_back(self, stored: Stored) -> str:
        """Bring a gradient back into its parameter's ``grad``; :meth:`step` sends it again.

        Return an empty string, or the reason why it cannot be brought back. A program that reads
        gradients may change them, so from then on no update runs before :meth:`step`.
        """
        if stored.spent:
            return f"{stored.name}, which step() has used: read it between backward() and step()"
        if not stored.gradients:
            return ""
        self._settle()
        self._early = False
        if stored.hyperparameters is not None:
            return (
                f"{stored.name}, which was updated when its gradient came: have "
                "early_updates=False, or read gradients in the first step already"
            )
        values = self._empty(stored)
        values.copy_(torch.from_numpy(self._store.read(stored.key, "g")))
        if stored.negated:
            values.neg_()
        if (more := gradient_of(stored.parameter)) is not None:
            with torch.set_grad_enabled(more.requires_grad):
                values = values + more
        with Interrupts():
            self._store.discard(stored.key)
            stored.gradients = 0
            set_gradient(stored.parameter, values)
        return ""

    def drop(self, stored: Stored) -> None:
        """Discard a parameter's gradient, since the program sets its ``grad``."""
        self._settle()
        self._refuse_updated(stored, f"{stored.name}.grad = ...")
        self._store.discard(stored.key)
        self._early = self._early and not stored.gradients
        stored.gradients, stored.spent = 0, False

    def _empty(self, stored: Stored) -> Tensor:
        parameter = stored.parameter
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def _send_back(self) -> None:
        """Send gradients that are in parameters' ``grad`` to the module."""
        for parameter in self._trained:
            if gradient_of(parameter) is not None:
                self._send(parameter)

    def _refuse_updated(self, stored: Stored, call: str) -> None:
        if stored.hyperparameters is not None:
            raise RuntimeError(
                f"{call} after {stored.name} was updated: call step() first, or "
                "have early_updates=False"
            )

    def give_up(self) -> None:
        """End an iteration without a step; updates made in it stay."""
        for stored in self._trained.values():
            self._store.discard(stored.key)
        self._restart()

    def step_async(self) -> StepHandle:
        """Raise ``TypeError``: most updates run during the backward pass anyway."""
        raise TypeError("an offloaded optimizer has no step_async(): call step()")

    def inspect(self, parameter: Tensor, tensor: str) -> list[tuple[int, int, NDArray[np.float32]]]:
        """Raise ``TypeError``: the store has the tensors."""
        raise TypeError("an offloaded optimizer has no inspect(): use state_dict(), or the store")

    def close(self) -> None:
        """Release the parameters; the platform's ``close()`` calls it."""
        for parameter, stored in self._trained.items():
            if stored.optimizer is not None:
                stored.hook.remove()
                guard: Any = type(parameter)  # a plain one after torch.utils.swap_tensors()
                parameter.__class__ = getattr(guard, "_own_class", guard)
            stored.optimizer = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict with PyTorch's names; tensors are copies in the host's memory.

        Raises ``RuntimeError`` between ``backward()`` and :meth:`step`.
        """
        self._settle()
        self._check_state_unused()
        if any(stored.gradients for stored in self._trained.values()):
            raise RuntimeError(
                "state_dict() between backward() and step(): gradients are on the module already, "
                "and parameters may be updated; call step() first"
            )
        state: dict[Tensor, dict[str, Tensor]] = {}
        for parameter, stored in self._trained.items():
            if stored.steps:
                values = {
                    key: torch.from_numpy(self._store.read(stored.key, name))
                    for name, key in self._tensors.items()
                }
                if self.counts_steps:
                    step = torch.tensor(stored.steps, dtype=torch.float32, device="cpu")
                    values = {"step": step, **values}
                if values:
                    state[parameter] = values
        try:
            self.state: Any = state
            return torch.optim.Optimizer.state_dict(self)
        finally:
            self.state = self._no_state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, and discard an iteration in progress.

        See :meth:`~sw_driver.torch.optimizer.ModuleOptimizer.load_state_dict`.
        """
        self.give_up()
        super().load_state_dict(state_dict)
        for parameter, stored in self._trained.items():
            state = self.state.get(parameter, {})
            for name, key in self._tensors.items():
                value = state.get(key)
                if value is None:
                    fill = float(self.initial(self.param_groups[stored.group]))
                    value = torch.full(parameter.shape, fill, dtype=torch.float32, device="cpu")
                self._store.write(stored.key, name, value.detach().cpu().contiguous().numpy())
            stored.steps = int(state["step"]) if "step" in state else int(bool(state))
        self.state = self._no_state

    # Events of an iteration.

    def _restart(self) -> None:
        self._scale = 1.0
        self._platform.residency.restart()

    @torch.no_grad()
    def take(self, parameter: Tensor) -> None:
        """Send the gradient that autograd has just accumulated to the module.

        A gradient with a graph stays until :meth:`step`, as the program may differentiate it. There
        is none if the program's own hook has dropped it.
        """
        if parameter not in self._trained:
            raise RuntimeError(HOOK_RESULT)
        stored, gradient = self._trained[parameter], gradient_of(parameter)
        self._refuse_spent(stored)
        if gradient is not None and gradient.requires_grad:
            self.bring_back(stored)
        elif gradient is not None:
            self._send(parameter)

    @torch.no_grad()
    def _send(self, parameter: Tensor) -> None:
        """Send a gradient to the module, and run the update once it is complete."""
        self._settle()
        stored, gradient = self._trained[parameter], gradient_of(parameter)
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of {stored.name} is {gradient.layout}: expected a dense one"
            )
        self._refuse_moved(stored)
        set_gradient(parameter, None)
        if stored.hyperparameters is not None:
            self._failure = RuntimeError(
                f"{stored.name} has a further gradient, but was updated when as many had come as "
                "in the iterations before: have early_updates=False where iterations differ. Go "
                "on from a checkpoint"
            )
            raise self._failure
        if negated := bool(self.param_groups[stored.group].get("maximize")):
            gradient = -gradient
        # The copy is complete on return, whenever the module reads it.
        values = np.array(gradient.detach().cpu().numpy(), order="C")
        try:
            with Interrupts():
                self._sent.append(self._store.receive(stored.key, values, measure=self._clips))
                stored.gradients, stored.negated = stored.gradients + 1, negated
            while len(self._sent) > IN_FLIGHT:
                self._sent.popleft().wait()
            if self._early and (stored.gradients, stored.uses) == stored.usual:
                self._update(stored, self._hyperparameters_of(stored))
        except BaseException as error:
            self._failure = error
            raise

    def _update(self, stored: Stored, hyperparameters: dict[str, float]) -> None:
        self._platform.residency.release([stored])  # the update makes its values stale
        with Interrupts():
            self._store.update(stored.key, hyperparameters, scale=self._scale)
            stored.held.copied = None
            stored.hyperparameters = hyperparameters

    def _waiting(self) -> list[tuple[Stored, dict[str, float]]]:
        """Return the parameters with gradients, in order, with their hyper-parameters."""
        self._check_state_unused()
        result, groups = [], {}
        for number, group in enumerate(self.param_groups):
            groups |= dict.fromkeys(group["params"], number)
        for parameter in groups:
            if gradient_of(parameter) is not None and parameter.numel():
                stored = self._platform.find(parameter)
                raise RuntimeError(
                    f"{stored.name if stored else 'a parameter'} has a gradient, but was frozen "
                    "when optimizer() was called: unfreeze it before"
                )
        for parameter, stored in self._trained.items():
            self._refuse_moved(stored)
            self._refuse_spent(stored)
            if groups.get(parameter) != stored.group:
                raise RuntimeError(
                    f"{stored.name} was taken out of group {stored.group}: use "
                    "add_param_group(), and change no group's params"
                )
            if not stored.gradients:
                continue
            if stored.negated != bool(self.param_groups[stored.group].get("maximize")):
                raise RuntimeError(
                    f"maximize of {stored.name} was changed between backward() and step(): change "
                    "it after step()"
                )
            hyperparameters = self._hyperparameters_of(stored)
            if stored.hyperparameters not in (None, hyperparameters):
                raise RuntimeError(
                    f"{stored.name} was updated with {stored.hyperparameters} when its "
                    f"gradient came, but step() is called with {hyperparameters}: change "
                    "hyper-parameters after step(), or have early_updates=False"
                )
            result.append((stored, hyperparameters))
        return result

    def _hyperparameters_of(self, stored: Stored) -> dict[str, float]:
        group = self.param_groups[stored.group]
        return self._checked(self._rule_of(group), self.hyperparameters(group), stored.steps + 1)

    @property
    def has_stepped(self) -> bool:
        """True if the store has state that PyTorch's optimizer would have in ``state``."""
        return any(stored.steps for stored in self._trained.values())

    def _check_state_unused(self) -> None:
        if self.state is not self._no_state:
            raise RuntimeError(
                "optimizer.state was set, but the store has the state: use load_state_dict()"
            )

    def _refuse_spent(self, stored: Stored) -> None:
        if stored.spent:
            raise RuntimeError(
                f"{stored.name} has the gradient of the last step, which PyTorch would use again, "
                "but the module no longer has it: call optimizer.zero_grad() after each step()"
            )

    def _refuse_moved(self, stored: Stored) -> None:
        if self._platform.find(stored.parameter) is not stored:
            raise RuntimeError(
                f"{stored.name} was given other memory while it is offloaded (p.data = ..., or "
                "model.to()): write into it instead, with p.copy_() under torch.no_grad()"
            )


def offloaded(kind: type[ModuleOptimizer]) -> type[OffloadedOptimizer]:
    """Return a class of :mod:`sw_driver.torch` adapted to parameters in a store."""
    if not (isinstance(kind, type) and issubclass(kind, ModuleOptimizer)):
        raise TypeError(
            f"the optimizer is {shown(kind)}: expected a class of sw_driver.torch, such as AdamW"
        )
    return type(f"Offloaded{kind.__name__}", (OffloadedOptimizer, kind), {})
