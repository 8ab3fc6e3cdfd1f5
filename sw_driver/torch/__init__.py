"""PyTorch's optimizers with their update on the simulated module.

They take the arguments of those in :mod:`torch.optim` and a ``device``, which is an opened
:class:`~sw_driver.axdimm.device.Axdimm` or a backend's name.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("PyTorch is not installed: pip install -e '.[torch]'") from error

from .optimizer import ModuleOptimizer
from .rules import SGD, Adagrad, Adam, Adam8bit, AdamW, AdamW8bit, Lion, RMSprop
from .step import StepHandle, StepReport

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "Lion",
    "ModuleOptimizer",
    "RMSprop",
    "StepHandle",
    "StepReport",
]
