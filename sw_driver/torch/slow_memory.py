"""Choice of the store for slow memory: the host's memory or a file, for a CPU or a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from sw_driver.device.errors import InvalidArgumentError, shown

from .cuda_store import CudaStore, Gpu
from .stores import FileStore, HostStore, Store

__all__ = ["store_at"]

_CPU = torch.device("cpu")


def store_at(slow: str | Path, device: torch.device = _CPU) -> Store:
    """Return the store for tensors in a device's memory: ``"host"``, or the path of a new file.

    In a folder it is a new file of its own. Raises ``InvalidArgumentError`` for anything else.
    """
    if slow == "host":
        if device.type == "cpu":
            return HostStore()
        return CudaStore(Gpu(device))
    if isinstance(slow, str | Path) and str(slow):
        path = Path(slow)
        if path.is_dir():
            path /= f"nearmem-{os.getpid()}-{os.urandom(4).hex()}.slow"
        try:
            return FileStore(path, device)
        except OSError as error:
            problem = f"{error.strerror or error}: "
    else:
        problem = ""
    raise InvalidArgumentError(
        f"slow is {shown(slow)}: {problem}expected 'host', a folder, or the path of a new file"
    )
