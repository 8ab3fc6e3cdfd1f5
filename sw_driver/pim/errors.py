"""What the driver of the PIM raises, beside the exceptions of :mod:`sw_driver.errors`.

As there: one exception for each way to fail, the numbers that decided in the message and in
``details``, and misuse is refused before anything is sent to the device.
"""

from __future__ import annotations

from sw_driver.errors import AxdimmError

__all__ = [
    "DescriptorError",
    "ForgottenWorkError",
    "LayerError",
    "NoProgrammablePimError",
    "NoSuchPimError",
    "PimListError",
    "PoolFullError",
    "RefusedWorkError",
    "UnknownWorkError",
]


class DescriptorError(AxdimmError, ValueError):
    """A descriptor's field cannot hold the value that it was given."""


class RefusedWorkError(AxdimmError, ValueError):
    """The pool refused a work; ``cause`` is the cause's name, and nothing was written."""

    def __init__(self, message: str, *, cause: str, **details: object) -> None:
        super().__init__(message, cause=cause, **details)
        self.cause = cause


class PoolFullError(RefusedWorkError):
    """As many works are accepted and not completed as the pool holds."""


class NoSuchPimError(AxdimmError, ValueError):
    """The number is neither that of a bank nor that of the programmable PIM."""


class PimListError(AxdimmError, ValueError):
    """``pim_ids`` are not ``num_pim`` different banks."""


class NoProgrammablePimError(AxdimmError):
    """The stack has no programmable PIM."""


class UnknownWorkError(AxdimmError, LookupError):
    """The pool has not given out this work id."""


class ForgottenWorkError(UnknownWorkError):
    """The work has completed, and another has taken its slot and its registers."""


class LayerError(AxdimmError, ValueError):
    """A layer has sizes that do not fit together, or is none that is known by its name."""
