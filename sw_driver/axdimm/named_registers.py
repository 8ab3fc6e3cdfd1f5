"""Registers of an opened channel by name, for debugging a device."""

from __future__ import annotations

import difflib

from hw.csr.register_map import Field, Register

from ..device.errors import InvalidArgumentError
from .channel import Channel, Mode

__all__ = ["NamedRegisters"]


class NamedRegisters:
    """Registers and fields of a channel by name, usable beside the driver.

    A name is ``[WINDOW.]REGISTER[.FIELD]`` as in the register map, such as ``arbiter.status.mode``
    or ``count``. The window ``arbiter`` answers always, ``kernel`` only in acceleration mode.
    Accesses go over the host link and take simulated time. All methods raise
    :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown or ambiguous name, and
    :class:`~sw_driver.device.errors.WrongModeError` for the kernel's registers in normal mode.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._windows = {"arbiter": channel.arbiter, "kernel": channel.kernel}
        self._known = [
            (window, register.name, *field)
            for window, registers in self._windows.items()
            for register in registers.registers
            for field in ((), *((known.name,) for known in register.fields))
        ]

    @property
    def names(self) -> list[str]:
        """All names, with their windows, in register-map order."""
        return [".".join(path) for path in self._known]

    def read(self, name: str) -> int | str:
        """Return a register's 64 bits, or a field; an encoded value is returned as its name.

        This also works while the kernel runs. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a write-only register.
        """
        window, register, field = self._lookup(name)
        if not any(part.sw_readable for part in ([field] if field else register.fields)):
            raise InvalidArgumentError(f"{name} can only be written", register=name)

        def bits_read() -> int:
            self._check_reachable(window)
            return self._windows[window].read(register.name)

        bits = self._channel.use(f"reading {name}", bits_read, idle=False)
        if field is None:
            return bits
        code = field.extract(bits)
        return {number: label for label, number in field.encoding}.get(code, code)

    def write(self, name: str, value: int) -> None:
        """Write a register, or one field of it; other fields keep their values.

        Raises :class:`~sw_driver.device.errors.BusyError` while the kernel runs. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a read-only register, a value
        that does not fit, or the mode, which only the driver writes.
        """
        window, register, field = self._lookup(name)
        if (window, register.name) == ("arbiter", "mode"):
            raise InvalidArgumentError(
                f"{name} is the driver's: call SetArbiterAcc or SetArbiterNormal", register=name
            )
        writable = sum(part.mask for part in register.fields if part.sw_writable)
        mask, shift = (writable & field.mask, field.lsb) if field else (writable, 0)
        if not mask:
            raise InvalidArgumentError(f"{name} can only be read", register=name)
        if type(value) is not int or value << shift & ~mask:
            raise InvalidArgumentError(
                f"{value!r} does not fit into {name}: expected an integer with no bits outside "
                f"{mask >> shift:#x}",
                register=name,
                value=value,
                mask=mask,
            )

        def written() -> None:
            self._check_reachable(window)
            bits = value << shift
            if kept := writable & ~mask:
                bits |= self._windows[window].read(register.name) & kept
            self._windows[window].write(register.name, bits)
            if (window, register.name) == ("kernel", "control"):
                self._channel.unfinished = True

        self._channel.use(f"writing {name}", written)

    def _lookup(self, name: str) -> tuple[str, Register, Field | None]:
        """Return the window, the register and, if named, the field of ``name``."""
        path = tuple(str(name).split("."))
        matches = [known for known in self._known if path in (known, known[1:])]
        if len(matches) == 1:
            window, register, *field = matches[0]
            described = self._windows[window][register]
            return window, described, described[field[0]] if field else None
        near = [".".join(match) for match in matches]
        if not near:
            names = [*self.names, *(known.partition(".")[2] for known in self.names)]
            near = list(dict.fromkeys(difflib.get_close_matches(str(name), names)))
        raise InvalidArgumentError(
            f"{name!r} means {'two registers' if matches else 'no register'}: "
            + (f"did you mean {' or '.join(near)}?" if near else "see names for those there are"),
            name=name,
        )

    def _check_reachable(self, window: str) -> None:
        if window == "kernel":
            self._channel.check_mode(Mode.ACCELERATION)
