"""A transport around another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..transport import Transport

__all__ = ["TransportWrapper"]


_Transport: Any = Transport
"""Whose methods a wrapper has, though it does not spell them out."""


class TransportWrapper(_Transport):
    """Passes everything on; see :class:`~sw_driver.transport.Transport`.

    For those that change some of it: watch, hold up, serialize.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        for name in Transport.__annotations__:
            setattr(self, name, getattr(inner, name))


def _passing_on(name: str) -> Callable[..., Any]:
    def method(self: TransportWrapper, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*arguments, **named)

    return method


for _name, _member in vars(Transport).items():
    if not _name.startswith("_") and callable(_member):
        setattr(TransportWrapper, _name, _passing_on(_name))
