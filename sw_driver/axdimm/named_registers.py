"""The registers of an opened channel by their names, for people who look at a device."""

from __future__ import annotations

import difflib

from hw.csr.register_map import Field, Register

from ..device.errors import InvalidArgumentError
from .channel import Channel, Mode

__all__ = ["NamedRegisters"]


class NamedRegisters:
    """Reads and writes registers and fields, beside the driver's work on the channel.

    A name is ``[WINDOW.]REGISTER[.FIELD]`` as in the register map, such as ``arbiter.status.mode``
    or ``count``; the windows are ``arbiter``, which answers always, and ``kernel``, which answers
    in acceleration mode. Accesses go over the host link and take simulated time. All methods raise
    :class:`~sw_driver.device.errors.InvalidArgumentError` for a name that is none or means two, and
    :class:`~sw_driver.device.errors.WrongModeError` for the kernel's in normal mode.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._windows = {"arbiter": channel.arbiter, "kernel": channel.kernel}
        self._known = [
            (window, register.name, *field)
            for window, registers in self._windows.items()
            for register in registers.registers
            for field in ((), *((each.name,) for each in register.fields))
        ]

    @property
    def names(self) -> list[str]:
        """All names, with their windows, in the order of the register map."""
        return [".".join(path) for path in self._known]

    def read(self, name: str) -> int | str:
        """A register's 64 bits, or a field; an encoded value that has a name is given by it.

        Also while the kernel runs. Raises :class:`~sw_driver.device.errors.InvalidArgumentError`
        for what can only be written.
        """
        window, register, field = self._found(name)
        if not any(each.sw_readable for each in ([field] if field else register.fields)):
            raise InvalidArgumentError(f"{name} can only be written", register=name)

        def bits_read() -> int:
            self._check_reachable(window)
            return self._windows[window].read(register.name)

        bits = self._channel.use(f"reading {name}", bits_read, idle=False)
        if field is None:
            return bits
        code = field.extract(bits)
        return {number: each for each, number in field.encoding}.get(code, code)

    def write(self, name: str, value: int) -> None:
        """Writes a register, or a field of it; its others keep their values.

        Raises :class:`~sw_driver.device.errors.BusyError` while the kernel runs and
        :class:`~sw_driver.device.errors.InvalidArgumentError` for what cannot be written, not with
        this
        value, or only by the driver: the mode.
        """
        window, register, field = self._found(name)
        if (window, register.name) == ("arbiter", "mode"):
            raise InvalidArgumentError(
                f"{name} is the driver's: call SetArbiterAcc or SetArbiterNormal", register=name
            )
        writable = sum(each.mask for each in register.fields if each.sw_writable)
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

    def _found(self, name: str) -> tuple[str, Register, Field | None]:
        """The window, the register and, if it is one, the field that ``name`` means."""
        path = tuple(str(name).split("."))
        found = [each for each in self._known if path in (each, each[1:])]
        if len(found) == 1:
            window, register, *field = found[0]
            described = self._windows[window][register]
            return window, described, described[field[0]] if field else None
        near = [".".join(each) for each in found]
        if not near:
            names = [*self.names, *(each.partition(".")[2] for each in self.names)]
            near = list(dict.fromkeys(difflib.get_close_matches(str(name), names)))
        raise InvalidArgumentError(
            f"{name!r} means {'two registers' if found else 'no register'}: "
            + (f"did you mean {' or '.join(near)}?" if near else "see names for those there are"),
            name=name,
        )

    def _check_reachable(self, window: str) -> None:
        if window == "kernel":
            self._channel.check_mode(Mode.ACCELERATION)
