"""Optimizers that update parameters on the module, where a store keeps their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.hyperparameters import rule_constants
from sw_driver.device.errors import shown
from sw_driver.torch import ModuleOptimizer, StepHandle
from sw_driver.torch.optimizer import checked_norm
from sw_driver.torch.step import Interrupts, untraced

__all__ = ["OffloadedOptimizer", "offloaded"]

Update = tuple[Tensor, dict[str, Any], UpdateRule, int, dict[str, float]]
"""A parameter's update: its group, the rule, the number of the step, and hyper-parameters."""


class OffloadedOptimizer(ModuleOptimizer):
    """Base of optimizers with parameters, gradients and state in a store.

    It precedes an optimizer of :mod:`sw_driver.torch` among the bases. All three are PyTorch's
    tensors, which :meth:`step` sends to the store where it lacks them, and updates there.
    """

    def __init__(self, params: Any, *args: Any, device: Any = None, **options: Any) -> None:
        self._platform = device
        super().__init__(params, *args, device=device, **options)

    def _attach(self, device: Any) -> None:
        """Set the module that computes, which the policy checks."""
        if self._formats.narrow:
            raise ValueError(
                f"the optimizer is {type(self).__name__} with {self._formats}: a store has "
                "everything in FP32; use an optimizer without 8bit in its name and without options "
                "of precision"
            )
        self._owned = False
        self._device = device.device if isinstance(device.device, Axdimm) else None
        for group in self.param_groups:
            self._rule_of(group)

    def _check_parameters(self) -> None:
        """Do nothing: all parameters can be updated."""

    @untraced
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; return the result of ``closure``.

        If it is interrupted or the storage is full, a note says what is updated, and what is not.
        Raises as :meth:`~sw_driver.torch.optimizer.ModuleOptimizer.step`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        platform, updates = self._platform, self._planned()
        done = 0
        try:
            for update in updates if not self._skips or self._are_finite(updates) else ():
                self._update(*update)
                done += 1
            platform.store.drain()
        except BaseException as error:
            names = [platform.name_of(update[0]) for update in updates]
            for words, some in (("Updated", names[:done]), ("not", names[done:])):
                error.add_note(f"{words}: {', '.join(some) or 'none'}")
            raise
        # Graphs from before the step are stale; PyTorch reports their use.
        torch.autograd.graph.increment_version([update[0] for update in updates])
        platform.moves.turn()
        platform.restart()
        return loss

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, *, error_if_nonfinite: bool = False) -> Tensor:
        """Clip with ``torch.nn.utils.clip_grad_norm_``; return the norm."""
        parameters = [one for group in self.param_groups for one in group["params"]]
        return torch.nn.utils.clip_grad_norm_(
            parameters, checked_norm(max_norm), error_if_nonfinite=error_if_nonfinite
        )

    def step_async(self) -> StepHandle:
        """Raise ``TypeError``: the step has to end before the program goes on."""
        raise TypeError("an offloaded optimizer has no step_async(): call step()")

    def inspect(self, parameter: Tensor, tensor: str) -> list[tuple[int, int, NDArray[np.float32]]]:
        """Raise ``TypeError``: tensors have no fixed place on the module."""
        raise TypeError("an offloaded optimizer has no inspect(): read optimizer.state")

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict with PyTorch's names; tensors are copies in the host's memory."""
        copied, own = self._platform.memory.copied, self.state
        try:
            self.state: Any = {
                parameter: {
                    key: copied(value) if isinstance(value, Tensor) else value
                    for key, value in state.items()
                }
                for parameter, state in own.items()
            }
            return super().state_dict()
        finally:
            self.state = own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of PyTorch's.

        See :meth:`~sw_driver.torch.optimizer.ModuleOptimizer.load_state_dict`.
        """
        super().load_state_dict(state_dict)
        self._platform.send_states(self.state)

    # Helpers.

    def _planned(self) -> list[Update]:
        """Return the updates of a step; raise the errors of one."""
        self._platform.memory.check_thread()
        self._check_groups()
        updates: list[Update] = []
        for number, group in enumerate(self.param_groups):
            rule, values = self._rule_of(group), self.hyperparameters(group)
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None or not parameter.numel():
                    continue
                if gradient.layout is not torch.strided:
                    raise TypeError(
                        f"the gradient of {self._platform.name_of(parameter)} in group {number} is "
                        f"{gradient.layout}: expected a dense one"
                    )
                state = self.state.get(parameter, {})
                taken = int(state.get("step", 0)) if self.counts_steps else int(bool(state))
                checked = self._checked(rule, values, taken + 1)
                rule_constants(rule, checked)
                updates.append((parameter, group, rule, taken + 1, checked))
        return updates

    def _are_finite(self, updates: list[Update]) -> bool:
        return all(bool(update[0].grad.isfinite().all()) for update in updates)  # type: ignore[union-attr]

    def _update(
        self,
        parameter: Tensor,
        group: dict[str, Any],
        rule: UpdateRule,
        t: int,
        hyperparameters: dict[str, float],
    ) -> None:
        """Run a rule on a parameter's tensors, in the store; those that it lacks are sent there."""
        platform, gradient = self._platform, parameter.grad
        assert gradient is not None
        keys = {name: key for name, key in self.state_keys.items() if name in rule.tensors}
        state = dict(self.state.get(parameter, {}))
        for key in keys.values():
            if state.get(key) is None:
                fill, where = self.initial(group), parameter.device
                state[key] = torch.full(parameter.shape, fill, dtype=torch.float32, device=where)
                platform.send(state[key], parameter)
        tensors = {"p": parameter, **{name: state[key] for name, key in keys.items()}}
        tensors["g"] = -gradient if group.get("maximize") else gradient
        with Interrupts():
            with platform.places(tensors, rule.outputs) as places:
                platform.store.run(rule.name, places, parameter.numel(), hyperparameters)
            if self.counts_steps:
                state["step"] = torch.tensor(float(t), dtype=torch.float32, device="cpu")
            if state:
                self.state.setdefault(parameter, {}).update(state)


def offloaded(kind: type[ModuleOptimizer]) -> type[OffloadedOptimizer]:
    """Return a class of :mod:`sw_driver.torch` adapted to parameters in a store."""
    if not (isinstance(kind, type) and issubclass(kind, ModuleOptimizer)):
        raise TypeError(
            f"the optimizer is {shown(kind)}: expected a class of sw_driver.torch, such as AdamW"
        )
    return type(f"Offloaded{kind.__name__}", (OffloadedOptimizer, kind), {})
