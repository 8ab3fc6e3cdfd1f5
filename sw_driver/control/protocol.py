"""The language between a control service and its clients: a line of JSON each way.

A request is ``{"request": NAME, ...}``, named as the method of :class:`.Controlled` and with its
parameters; bytes are base64. It is answered with ``{"result": ...}``, or with ``{"error": {"type":
..., "message": ..., "details": {...}}}``, where the type is the name of an exception.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from sw_driver import errors
from sw_driver.errors import AxdimmError
from sw_driver.transport import DeviceFault, DeviceTimeout

from . import (
    AddressError,
    ControlError,
    NoSuchRegisterError,
    RegisterAccessError,
)

__all__ = [
    "CHUNK_BYTES",
    "REQUEST_LIMIT_BYTES",
    "error_from",
    "error_line",
    "parse_request",
    "request_line",
    "result_line",
]

REQUEST_LIMIT_BYTES = 1 << 20
"""Length of a request, the end of its line included."""

CHUNK_BYTES = 1 << 19
"""Most bytes of memory in a request or its answer."""

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


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected an integer")
    return value


def _of(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"expected a JSON value of type {kind.__name__}")
        return value

    return check


def _size(value: Any) -> int:
    if _integer(value) > CHUNK_BYTES:
        raise ValueError(f"expected at most {CHUNK_BYTES}")
    return value


def _names(value: Any) -> list[str] | None:
    if value is not None and not (
        isinstance(value, list) and all(isinstance(name, str) for name in value)
    ):
        raise ValueError("expected null or a list of strings")
    return value


def _setting(value: Any) -> int | str:
    return value if isinstance(value, str) else _integer(value)


def _data(value: Any) -> bytes:
    try:
        return base64.b64decode(_of(str)(value), validate=True)
    except binascii.Error as error:
        raise ValueError(f"expected base64: {error}") from error


_REQUESTS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "describe": {},
    "channel_state": {"channel": _integer},
    "registers": {"channel": _integer, "names": _names},
    "write_register": {"channel": _integer, "register": _of(str), "value": _setting},
    "set_mode": {"channel": _integer, "mode": _of(str)},
    "allocations": {},
    "memory": {},
    "peek": {
        "channel": _integer,
        "address": _integer,
        "nbytes": _size,
        "backdoor": _of(bool),
    },
    "poke": {"channel": _integer, "address": _integer, "data": _data, "backdoor": _of(bool)},
}
"""Parameters of each request, and what makes their values of JSON's or raises ``ValueError``."""


def request_line(name: str, parameters: Mapping[str, Any]) -> bytes:
    """A request as it is sent."""
    return _line({"request": name, **parameters})


def parse_request(line: bytes) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a request. Raises :class:`.ControlError`."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"the request is not JSON: {error}") from error
    name = request.pop("request", None) if isinstance(request, dict) else None
    expected = _REQUESTS.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or expected is None:
        raise ControlError(
            f'the request is none: expected {{"request": NAME, ...}} with a name of '
            f"{', '.join(_REQUESTS)}"
        )
    if request.keys() != expected.keys():
        raise ControlError(
            f"the request {name!r} has the parameters {sorted(request)!r:.200}: expected "
            f"{sorted(expected)}"
        )
    parameters = {}
    for parameter, parse in expected.items():
        try:
            parameters[parameter] = parse(request[parameter])
        except ValueError as error:
            raise ControlError(
                f"{parameter} of the request {name!r} is {request[parameter]!r:.60}: {error}"
            ) from error
    return name, parameters


def result_line(result: Any) -> bytes:
    """The answer to a request that went well."""
    return _line({"result": result})


def error_line(error: Exception) -> bytes:
    """The answer to a request that raised ``error``."""
    name = type(error).__name__
    message = str(error) if name in _EXCEPTIONS else f"{name}: {error}"
    return _line(
        {
            "error": {
                "type": name if name in _EXCEPTIONS else ControlError.__name__,
                "message": message,
                "details": error.details if isinstance(error, AxdimmError) else {},
            }
        }
    )


def error_from(answer: Any) -> Exception:
    """The exception that :func:`error_line` told of."""
    try:
        kind = _EXCEPTIONS[answer["type"]]
        message = str(answer["message"])
        if issubclass(kind, AxdimmError):
            return kind(message, **answer["details"])
        return kind(message)
    except (KeyError, TypeError) as error:
        return ControlError(
            f"the control service answered with an error of a strange kind: {error}"
        )


def _line(content: Any) -> bytes:
    return json.dumps(content, default=_plain).encode() + b"\n"


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
