"""The registers of a channel by name, their fields decoded; for people who look at a device."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hw.axdimm.registers import arbiter_map
from hw.csr.register_map import Field, Register
from hw.kernel.registers import kernel_map
from sw_driver.axdimm.registers import RegisterWindow, arbiter_registers, kernel_registers
from sw_driver.errors import WrongModeError
from sw_driver.transport import Transport

from ..control import NoSuchRegisterError, RegisterAccessError, RegisterValue

__all__ = ["RegisterPath", "find_register", "read_registers", "write_register"]


@dataclass(frozen=True)
class RegisterPath:
    """A register of a window, and maybe a field of it."""

    window: str
    register: Register
    field: Field | None = None

    def __str__(self) -> str:
        name = f"{self.window}.{self.register.name}"
        return name if self.field is None else f"{name}.{self.field.name}"


@cache
def _registers(rules: tuple[str, ...]) -> list[RegisterPath]:
    maps = {"arbiter": arbiter_map(), "kernel": kernel_map(rules)}
    return [
        RegisterPath(window, register)
        for window, registers in maps.items()
        for register in registers.registers
    ]


def _window(
    transport: Transport, channel: int, name: str, rules: tuple[str, ...]
) -> RegisterWindow:
    if name == "arbiter":
        return arbiter_registers(transport, channel)
    return kernel_registers(transport, channel, rules)


@cache
def _by_name(rules: tuple[str, ...]) -> dict[str, list[RegisterPath]]:
    """What each name with and without its window, of a register and of a field, may mean."""
    found: dict[str, list[RegisterPath]] = {}
    for each in _registers(rules):
        for field in (None, *each.register.fields):
            path = RegisterPath(each.window, each.register, field)
            for name in (str(path), str(path).partition(".")[2]):
                found.setdefault(name, []).append(path)
    return found


def find_register(name: str, rules: tuple[str, ...]) -> RegisterPath:
    """What ``[WINDOW.]REGISTER[.FIELD]`` means. Raises :class:`NoSuchRegisterError`."""
    found = _matches(name, rules)
    if len(found) > 1:
        raise NoSuchRegisterError(
            f"{name!r} may be {' or '.join(map(str, found))}: say which", name=name
        )
    return found[0]


def _matches(name: str, rules: tuple[str, ...]) -> list[RegisterPath]:
    names = _by_name(rules)
    if name not in names:
        near = difflib.get_close_matches(name, names)
        expected = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "expected [arbiter.|kernel.]REGISTER; without any, all are shown"
        )
        raise NoSuchRegisterError(f"no register {name!r}: {expected}", name=name)
    return names[name]


def read_registers(
    transport: Transport, channel: int, rules: tuple[str, ...], names: Sequence[str] | None = None
) -> list[RegisterValue]:
    """Registers in the order of ``names``, or all; see :meth:`.Controlled.registers`.

    A name without a window means the register of that name in each. For the owner of the channel.
    """
    if names is None:
        paths = _registers(rules)
    else:
        paths = [path for name in names for path in _matches(name, rules)]
    accelerating = _accelerating(arbiter_registers(transport, channel))
    values: dict[str, dict[str, int]] = {"kernel": {}}
    for window in ["arbiter", "kernel"] if accelerating else ["arbiter"]:
        names = [path.register.name for path in paths if path.window == window]
        values[window] = _window(transport, channel, window, rules).read_many(names)
    return [_decoded(path, values[path.window].get(path.register.name)) for path in paths]


def _accelerating(arbiter: RegisterWindow) -> bool:
    mode = arbiter["status"]["mode"]
    return arbiter.read_field("status", "mode") == mode.code("acceleration")


def _decoded(path: RegisterPath, value: int | None) -> RegisterValue:
    fields = path.register.fields if path.field is None else (path.field,)
    decoded: dict[str, int | str] = {}
    if value is None:
        note = "answers in acceleration mode only"
    else:
        for field in fields:
            if field.sw_readable:
                code = field.extract(value)
                decoded[field.name] = {n: name for name, n in field.encoding}.get(code, code)
        note = "" if decoded else "can only be written"
    return {
        "window": path.window,
        "name": path.register.name,
        "offset": path.register.offset_bytes,
        "value": value if decoded else None,
        "fields": decoded,
        "note": note,
    }


def write_register(
    transport: Transport, channel: int, rules: tuple[str, ...], path: RegisterPath, value: int | str
) -> None:
    """Writes a register or changes a field; see :meth:`.Controlled.write_register`.

    The other fields that can be written keep their values. For the owner of the channel.
    """
    register = path.register
    fields = register.fields if path.field is None else (path.field,)
    field = fields[0] if len(fields) == 1 else None
    mask = sum(each.mask for each in fields if each.sw_writable)
    if not mask:
        raise RegisterAccessError(f"{path} can only be read", register=str(path))
    number = _number(path, field, value)
    if field is not None and not 0 <= number < 1 << field.width:
        raise RegisterAccessError(
            f"{number:#x} does not fit into {path}, which has {field.width} bits",
            register=str(path),
            value=number,
            width=field.width,
        )
    bits = number if field is None else number << field.lsb
    if bits & ~mask:
        raise RegisterAccessError(
            f"{number:#x} sets bits of {path} that cannot be written: those that can are {mask:#x}",
            register=str(path),
            value=number,
            mask=mask,
        )
    if path.window == "kernel" and not _accelerating(arbiter_registers(transport, channel)):
        raise WrongModeError(
            f"channel {channel} is in normal mode, in which its kernel's registers cannot be "
            "reached: switch to acceleration mode first",
            channel=channel,
            mode="normal",
            needed="acceleration",
        )
    window = _window(transport, channel, path.window, rules)
    kept = sum(each.mask for each in register.fields if each.sw_writable) & ~mask
    if kept:
        bits |= window.read(register.name) & kept
    window.write({register.name: bits})


def _number(path: RegisterPath, field: Field | None, value: int | str) -> int:
    if isinstance(value, int):
        return value
    codes = {} if field is None else dict(field.encoding)
    if value in codes:
        return codes[value]
    try:
        return int(value, 0)
    except ValueError:
        names = f", or one of {', '.join(codes)}" if codes else ""
        raise RegisterAccessError(
            f"{value!r} is no value for {path}: expected an integer such as 17 or 0x11{names}",
            register=str(path),
            value=value,
        ) from None
