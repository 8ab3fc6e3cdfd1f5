"""The language between a control service and its clients: a message of JSON each way.

A request is ``[NAME, ARGUMENT...]``, a method of :class:`.Controlled` and what it is called with.
It is answered with ``{"result": ...}``, or with ``{"error": [TYPE, MESSAGE, DETAILS]}``, where the
type is the name of an exception. Bytes are ``{"base64": ...}``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from sw_driver import errors
from sw_driver.errors import AxdimmError
from sw_driver.transport import DeviceFault, DeviceTimeout

from . import AddressError, ControlError, Controlled, NoSuchRegisterError, RegisterAccessError

__all__ = ["REQUESTS", "REQUEST_LIMIT_BYTES", "decoded", "encoded", "error_content", "error_from"]

REQUEST_LIMIT_BYTES = 1 << 20
"""Length of a request."""

REQUESTS = tuple(name for name in vars(Controlled) if not name.startswith("_"))

_EXCEPTIONS: Mapping[str, type[Exception]] = {
    name: getattr(errors, name) for name in errors.__all__
} | {
    exception.__name__: exception
    for exception in (
        AddressError,
        ControlError,
        DeviceFault,
        DeviceTimeout,
        NoSuchRegisterError,
        RegisterAccessError,
    )
}


def encoded(content: Any) -> bytes:
    """A message; what JSON has not is sent as text."""
    return json.dumps(content, default=_plain).encode()


def decoded(message: bytes) -> Any:
    """The content of a message. Raises :class:`.ControlError`."""
    try:
        return json.loads(message, object_hook=_whole)
    except (ValueError, TypeError, RecursionError) as error:
        raise ControlError(f"{message!r:.60} is no message: {error}") from error


def error_content(error: Exception) -> dict[str, Any]:
    """The answer to a request that raised ``error``."""
    name, message = type(error).__name__, str(error)
    if name not in _EXCEPTIONS:
        name, message = ControlError.__name__, f"{name}: {error}"
    return {"error": [name, message, error.details if isinstance(error, AxdimmError) else {}]}


def error_from(name: str, message: str, details: dict[str, Any]) -> Exception:
    """The exception that :func:`error_content` told of; raises what Python does for nonsense."""
    kind = _EXCEPTIONS[name]
    return kind(message, **details) if issubclass(kind, AxdimmError) else kind(message)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value)


def _whole(content: dict[str, Any]) -> Any:
    if content.keys() == {"base64"}:
        return base64.b64decode(content["base64"], validate=True)
    return content
