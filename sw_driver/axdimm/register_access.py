"""The registers of a channel by name, their fields decoded; for people who look at a device."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from hw.axdimm.registers import arbiter_map, kernel_map
from hw.csr.register_map import Field, Register, RegisterMap
from sw_driver.axdimm.registers import RegisterWindow, arbiter_registers, kernel_registers
from sw_driver.errors import WrongModeError
from sw_driver.transport import Transport

from ..control import NoSuchRegisterError, RegisterAccessError, RegisterValue

__all__ = ["RegisterPath", "find_register", "read_registers", "write_register"]

MAPS: dict[str, RegisterMap] = {
    "arbiter": arbiter_map(),
    "kernel": kernel_map(),
}
WINDOWS = {"arbiter": arbiter_registers, "kernel": kernel_registers}
KERNEL_NOTE = "answers in acceleration mode only"
REGISTER_BITS = 64


@dataclass(frozen=True)
class RegisterPath:
    """A register of a window, and maybe a field of it."""

    window: str
    register: Register
    field: Field | None = None

    def __str__(self) -> str:
        name = f"{self.window}.{self.register.name}"
        return name if self.field is None else f"{name}.{self.field.name}"


ALL = [
    RegisterPath(window, register)
    for window, registers in MAPS.items()
    for register in registers.registers
]


def find_register(name: str) -> RegisterPath:
    """What ``[WINDOW.]REGISTER[.FIELD]`` means. Raises :class:`NoSuchRegisterError`."""
    found = _matches(name)
    if len(found) > 1:
        raise NoSuchRegisterError(
            f"{name!r} may be {' or '.join(map(str, found))}: say which", name=name
        )
    return found[0]


def _matches(name: str) -> list[RegisterPath]:
    window, dot, rest = name.partition(".")
    windows = [window] if dot and window in MAPS else list(MAPS)
    register_name, dot, field_name = (rest if len(windows) == 1 else name).partition(".")
    found: list[RegisterPath] = []
    for path in ALL:
        if path.window not in windows or path.register.name != register_name:
            continue
        fields = [field for field in path.register.fields if field.name == field_name]
        if not dot:
            found.append(path)
        elif fields:
            found.append(RegisterPath(path.window, path.register, fields[0]))
    if not found:
        raise NoSuchRegisterError(f"no register {name!r}: {_expected(name)}", name=name)
    return found


def _expected(name: str) -> str:
    """What may have been meant by a name that is none."""
    full = [str(path) for path in ALL]
    full += [
        str(RegisterPath(path.window, path.register, field))
        for path in ALL
        for field in path.register.fields
    ]
    # Without the window, too, or the last part of a name would have to make up for it.
    near = difflib.get_close_matches(name, full + [path.partition(".")[2] for path in full])
    if not near:
        return "expected [arbiter.|kernel.]REGISTER; without any, all are shown"
    return f"did you mean {' or '.join(near)}?"


def read_registers(
    transport: Transport, channel: int, names: Sequence[str] | None = None
) -> list[RegisterValue]:
    """Registers in the order of ``names``, or all; see :meth:`.Controlled.registers`.

    A name without a window means the register of that name in each. For the owner of the channel.
    """
    paths = ALL if names is None else [path for name in names for path in _matches(name)]
    windows = {name: WINDOWS[name](transport, channel) for name in MAPS}
    readable = {"arbiter": True, "kernel": _accelerating(windows["arbiter"])}
    values = {
        window: windows[window].read_many(
            [path.register.name for path in paths if path.window == window]
        )
        for window in windows
        if readable[window]
    }
    return [
        _decoded(path, values[path.window][path.register.name])
        if readable[path.window]
        else _described(path, KERNEL_NOTE)
        for path in paths
    ]


def _accelerating(arbiter: RegisterWindow) -> bool:
    mode = arbiter["status"]["mode"]
    return arbiter.read_field("status", "mode") == mode.code("acceleration")


def _described(path: RegisterPath, note: str = "") -> RegisterValue:
    return {
        "window": path.window,
        "name": path.register.name,
        "offset": path.register.offset_bytes,
        "value": None,
        "fields": {},
        "note": note,
    }


def _decoded(path: RegisterPath, value: int) -> RegisterValue:
    fields = path.register.fields if path.field is None else (path.field,)
    readable = [field for field in fields if field.sw_readable]
    if not readable:
        return _described(path, "can only be written")
    entry = _described(path)
    entry["value"] = value
    for field in readable:
        code = field.extract(value)
        names = {number: name for name, number in field.encoding}
        entry["fields"][field.name] = names.get(code, code)
    return entry


def write_register(transport: Transport, channel: int, name: str, value: int | str) -> None:
    """Writes a register or changes a field; see :meth:`.Controlled.write_register`.

    The other fields that can be written keep their values. For the owner of the channel.
    """
    path = find_register(name)
    register = path.register
    writable = sum(field.mask for field in register.fields if field.sw_writable)
    field = path.field or (register.fields[0] if len(register.fields) == 1 else None)
    mask = writable if field is None else field.mask & writable
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
    if bits & ~mask or bits >= 1 << REGISTER_BITS:
        raise RegisterAccessError(
            f"{number:#x} sets bits of {path} that cannot be written: those that can are {mask:#x}",
            register=str(path),
            value=number,
            mask=mask,
        )
    window = WINDOWS[path.window](transport, channel)
    if path.window == "kernel" and not _accelerating(arbiter_registers(transport, channel)):
        raise WrongModeError(
            f"channel {channel} is in normal mode, in which its kernel's registers cannot be "
            "reached: switch to acceleration mode first",
            channel=channel,
            mode="normal",
            needed="acceleration",
        )
    if mask != writable:
        bits |= window.read(register.name) & writable & ~mask
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
