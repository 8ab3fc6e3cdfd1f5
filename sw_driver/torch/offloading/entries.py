"""What a store knows of its tensors, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import KernelRun
from sw_driver.device.memory import NvmePointer
from sw_driver.device.streams import Handle

__all__ = ["Entry", "Kept", "StoreStatistics"]


@dataclass(eq=False)
class Kept:
    """A tensor of a store, as it is when all that is queued has been carried out."""

    name: str
    """The tensor in words, for messages."""
    nbytes: int
    entry: Entry
    used: int = 0
    """Number of the last operation that used the tensor: the larger, the later."""
    place: int | None = None
    """Offset of the tensor's room in the channel's memory, if it has any there."""
    here: bool = False
    """Whether the tensor's room on the channel has its values."""
    stored: bool = False
    """Whether the tensor's storage has its values."""
    slot: NvmePointer | None = None
    """The tensor's storage, from when it first needed some."""
    writer: Handle[Any] | None = None
    """The copy that last wrote to the tensor's storage."""
    reader: Handle[Any] | None = None
    """The copy that last read from the tensor's storage beside the channel's stream."""

    @property
    def known(self) -> bool:
        """Whether the tensor has values."""
        return self.here or self.stored


@dataclass(eq=False)
class Entry:
    """A parameter with its gradient and the optimizer's state: the tensors of its rule."""

    name: str
    rule: UpdateRule
    shape: tuple[int, ...]
    count: int
    channel: int
    tensors: dict[str, Kept] = field(default_factory=dict)
    updated: bool = False
    """Whether the parameter was updated in this iteration."""
    squares: KernelRun | None = None
    """The run that adds up the gradient's squares, if that was asked for."""

    @property
    def gradient(self) -> Kept:
        """The tensor that the parameter's gradient is received in."""
        return self.tensors["g"]

    @property
    def lasting(self) -> dict[str, Kept]:
        """The tensors that outlive a step: all but the gradient."""
        return {name: each for name, each in self.tensors.items() if name != "g"}


@dataclass(kw_only=True)
class StoreStatistics:
    """What a store has done. Counted as operations are queued, but for the kernels' times."""

    copied_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes copied by route: ``"host->module"``, with ``host``, ``module`` and ``nvme`` as ends."""
    evictions: int = 0
    """Tensors with values that had to leave the module."""
    evictions_without_write: int = 0
    """Evicted tensors that the storage already had as they were."""
    nvme_bytes: int = 0
    """Bytes of storage that are allocated."""
    peak_nvme_bytes: int = 0
    peak_module_bytes: list[int] = field(default_factory=list)
    """The most bytes of each channel that were in use."""
    runs: int = 0
    """Runs of the kernels."""
    kernel_ns: list[float] = field(default_factory=list)
    """Nanoseconds that each channel spent in its kernel; 0 on a backend without a clock."""
