"""Optimizers: the update rule of a parameter group, and the names of its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias, TypedDict, Unpack

import torch
from torch import Tensor

from sw_driver.axdimm import Axdimm

from .optimizer import ModuleOptimizer

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "ComputeOptions",
    "Lion",
    "Precision",
    "RMSprop",
]


Parameters: TypeAlias = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
"""Parameters in PyTorch's forms: tensors, groups, or pairs of name and tensor."""


class ComputeOptions(TypedDict, total=False):
    """Options for PyTorch's implementation, which do not apply here."""

    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class Precision(ComputeOptions, total=False):
    """Formats of tensors on the module; see :class:`ModuleOptimizer`."""

    gradient_dtype: torch.dtype
    parameter_dtype: torch.dtype
    states: str
    skip_not_finite: bool
    seed: int


class Adam(ModuleOptimizer, torch.optim.Adam):
    """``torch.optim.Adam``; with ``amsgrad=True`` it uses the rule ``amsgrad``.

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.ones(4))
    >>> weights.grad = torch.full((4,), 2.0)
    >>> with Adam([weights], lr=0.25) as optimizer:
    ...     optimizer.step()
    >>> weights.data
    tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """

    state_keys: ClassVar = {"m": "exp_avg", "v": "exp_avg_sq", "x": "max_exp_avg_sq"}

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        device: Axdimm | str = "golden",
        **precision: Unpack[Precision],
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
            device=device,
            **precision,
        )

    def rule_name(self, group: dict[str, Any]) -> str:
        if not group["decoupled_weight_decay"]:
            return "amsgrad" if group["amsgrad"] else "adam"
        if group["amsgrad"]:
            raise ValueError(
                "amsgrad is True, but no update rule has it together with decoupled weight decay: "
                "use AdamW without it, or Adam with it"
            )
        return "adamw"

    def hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {**group, "beta1": beta1, "beta2": beta2}


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW``, without ``amsgrad``.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(1000, 16)
    >>> layer(torch.ones(8, 1000)).square().mean().backward()
    >>> with AdamW(layer.parameters(), lr=1e-3, device="cycles") as optimizer:
    ...     optimizer.step()
    >>> optimizer.last_step.parameters, optimizer.last_step.bytes_to_module
    (16016, 256256)
    """

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        device: Axdimm | str = "golden",
        **precision: Unpack[Precision],
    ) -> None:
        options = {"amsgrad": amsgrad, "maximize": maximize, "device": device, **precision}
        ModuleOptimizer.__init__(self, params, lr, betas, eps, weight_decay, **options)

    def check_loaded(self, group: dict[str, Any]) -> None:
        super().check_loaded(group)
        if not group.get("decoupled_weight_decay", True):
            raise ValueError(
                "the state dict is of Adam, which has another weight decay: expected one of AdamW"
            )


class Adam8bit(Adam):
    """:class:`Adam` with eight-bit codes as states on the module.

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.ones(4096))
    >>> weights.grad = torch.ones(4096)
    >>> with Adam8bit([weights]) as small, Adam([weights]) as usual:
    ...     steps = small.step(), usual.step()
    >>> small.last_step.bytes_to_module, usual.last_step.bytes_to_module
    (41088, 65536)
    """

    usual_states: ClassVar = "dynamic"


class AdamW8bit(AdamW):
    """:class:`AdamW` with eight-bit codes as states on the module.

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.ones(4096))
    >>> weights.grad = torch.ones(4096)
    >>> with AdamW8bit([weights], lr=0.5) as optimizer:
    ...     optimizer.step()
    >>> weights.data.unique()
    tensor([0.4950])
    """

    usual_states: ClassVar = "dynamic"


class SGD(ModuleOptimizer, torch.optim.SGD):
    """``torch.optim.SGD``: plain, with momentum, or with Nesterov momentum.

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.ones(4))
    >>> weights.grad = torch.full((4,), 2.0)
    >>> with SGD([weights], lr=0.25, momentum=0.9) as optimizer:
    ...     optimizer.step()
    >>> weights.data
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    state_keys: ClassVar = {"m": "momentum_buffer"}
    counts_steps = False

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        device: Axdimm | str = "golden",
        **compute: Unpack[ComputeOptions],
    ) -> None:
        options = {"nesterov": nesterov, "maximize": maximize, "device": device, **compute}
        super().__init__(params, lr, momentum, dampening, weight_decay, **options)

    def rule_name(self, group: dict[str, Any]) -> str:
        if not group["momentum"]:
            return "sgd"
        if not group["nesterov"]:
            return "momentum"
        if group["dampening"]:
            raise ValueError(
                f"dampening is {group['dampening']} with nesterov=True: expected 0, as in PyTorch"
            )
        return "nesterov"


class Adagrad(ModuleOptimizer, torch.optim.Adagrad):
    """``torch.optim.Adagrad``.

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.ones(4))
    >>> weights.grad = torch.full((4,), 2.0)
    >>> Adagrad([weights], lr=0.25).step()
    >>> weights.data
    tensor([0.7500, 0.7500, 0.7500, 0.7500])
    """

    state_keys: ClassVar = {"s": "sum"}

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        device: Axdimm | str = "golden",
        **compute: Unpack[ComputeOptions],
    ) -> None:
        options = {"eps": eps, "maximize": maximize, "device": device, **compute}
        super().__init__(params, lr, lr_decay, weight_decay, initial_accumulator_value, **options)
        for state in self.state.values():  # PyTorch's has the default dtype and device
            state["step"] = torch.tensor(0.0, dtype=torch.float32, device="cpu")

    def rule_name(self, group: dict[str, Any]) -> str:
        return "adagrad"

    def initial(self, group: dict[str, Any]) -> float:
        return group["initial_accumulator_value"]


class RMSprop(ModuleOptimizer, torch.optim.RMSprop):
    """``torch.optim.RMSprop``, not centered and without momentum.

    Examples
    --------
    >>> import torch
    >>> RMSprop([torch.nn.Parameter(torch.ones(4))], momentum=0.9)
    Traceback (most recent call last):
        ...
    ValueError: momentum is 0.9, but no rule of RMSprop has it: leave it out
    """

    state_keys: ClassVar = {"v": "square_avg"}

    def __init__(
        self,
        params: Parameters,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
        device: Axdimm | str = "golden",
        **compute: Unpack[ComputeOptions],
    ) -> None:
        options = {"centered": centered, "maximize": maximize, "device": device, **compute}
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, **options)

    def rule_name(self, group: dict[str, Any]) -> str:
        for option in ("centered", "momentum"):
            if group[option]:
                raise ValueError(
                    f"{option} is {group[option]}, but no rule of RMSprop has it: leave it out"
                )
        return "rmsprop"


class Lion(ModuleOptimizer):
    """Lion (Chen et al., 2023), like its authors' ``Lion``; PyTorch has none.

    Raises ``ValueError`` for a negative ``lr`` or ``weight_decay``, and for betas outside [0, 1).

    Examples
    --------
    >>> import torch
    >>> weights = torch.nn.Parameter(torch.zeros(3))
    >>> weights.grad = torch.tensor([5.0, -0.1, 0.0])
    >>> Lion([weights], lr=0.25).step()
    >>> weights.data
    tensor([-0.2500,  0.2500,  0.0000])
    """

    state_keys: ClassVar = {"m": "exp_avg"}
    counts_steps = False

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        device: Axdimm | str = "golden",
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} is {value}: expected a number from 0 on")
        for value in betas:
            if not 0 <= value < 1:
                raise ValueError(f"betas is {betas}: expected two numbers from 0 to below 1")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, device=device)

    def rule_name(self, group: dict[str, Any]) -> str:
        return "lion"

    def hyperparameters(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {**group, "beta1": beta1, "beta2": beta2}
