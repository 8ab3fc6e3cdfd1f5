"""``nearmem ctl``: looks at the open devices of this machine, and changes them."""

from __future__ import annotations

import argparse
import binascii
import json
import math
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import Failure, Refusal, integer, output_file

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sw_driver.control import ChannelState, Controlled, RegisterValue
    from sw_driver.control.exclusive import DeviceEntry, DeviceName

__all__ = ["add_parser", "run"]

FORMATS = ("hex", "u32", "f32", "raw")
WORD_BYTES = 4
WORD_CODES = {"u32": "I", "f32": "f"}
HEX_LINE_BYTES = 16
LIST_ANSWER_LIMIT_S = 3.0
"""A list of all devices does not wait long for one that hangs."""


class _Parser(argparse.ArgumentParser):
    """A parser that takes options between positional arguments, too."""

    _inside = False

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._inside:
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False

    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message}; '{self.prog} --help' lists what is possible")


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "ctl",
        help="list the open devices; show and change registers, modes, counters and memory",
        description="Looks at devices that programs of yours have open, and changes them. NAME is "
        "a device as `nearmem ctl list` shows it, and may be left out when one is open; or it is "
        "BACKEND[:PRESET], such as golden:tiny, for a fresh device that is closed again at the "
        "end.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)

    def action(
        name: str,
        do: Callable[[argparse.Namespace], int],
        text: str,
        json_help: str = "print the result as JSON",
    ) -> Any:
        added = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.add_argument("--json", action="store_true", help=json_help)
        added.add_argument("--quiet", action="store_true", help="print nothing but errors")
        added.set_defaults(run=run, action=do)
        return added

    def name(added: Any) -> None:
        added.add_argument("name", nargs="?", metavar="NAME", help="the device")

    def channel(added: Any) -> None:
        added.add_argument(
            "--channel", type=integer(0), metavar="C", help="only this channel (default: all)"
        )

    def words(added: Any, text: str, description: str) -> None:
        added.add_argument("words", nargs="*", metavar=text, help=description)

    def backdoor(added: Any) -> None:
        added.add_argument(
            "--backdoor",
            action="store_true",
            help="not over the host link: takes no simulated time and works in both modes",
        )

    action("list", _list, "list the open devices of this machine")

    name(action("info", _info, "show what a device is"))

    added = action("registers", _registers, "show registers and their fields")
    words(added, "[NAME] [REGISTER...]", "the device; registers, all without any")
    channel(added)

    added = action("mode", _mode, "show the modes of the channels, or switch them")
    name(added)
    channel(added)
    added.add_argument("--set", metavar="MODE", help="switch to 'normal' or 'acceleration' mode")

    added = action("counters", _counters, "show the counters of the channels")
    name(added)
    channel(added)

    name(action("allocations", _allocations, "show what is allocated, and how much is free"))

    added = action("peek", _peek, "read a channel's memory")
    words(
        added,
        "[NAME] CHANNEL ADDRESS NBYTES",
        "where; numbers may be hexadecimal (0x...) or have KiB, MiB or GiB behind them",
    )
    added.add_argument(
        "--format",
        choices=FORMATS,
        default="hex",
        help="bytes, little-endian words of 32 bits as integers or as FP32, or the bytes "
        "themselves (default: hex)",
    )
    added.add_argument(
        "--output", type=output_file, metavar="FILE", help="write there instead of printing"
    )
    backdoor(added)

    added = action("poke", _poke, "write a channel's memory")
    words(added, "[NAME] CHANNEL ADDRESS VALUE...", "where and what, see --format")
    added.add_argument(
        "--format",
        choices=FORMATS,
        default="hex",
        help="VALUE is bytes in hexadecimal such as 01ab, an integer of 32 bits, an FP32 number, "
        "or a file whose bytes are meant (default: hex); what begins with a minus sign may need -- "
        "before it",
    )
    backdoor(added)

    added = action("set", _set, "write a register, or one field of it")
    words(
        added,
        "[NAME] CHANNEL REGISTER[.FIELD] VALUE",
        "which, such as kernel.count, and an integer or the name of an encoded value",
    )

    added = action(
        "watch",
        _watch,
        "show modes, progress and counters until the device closes",
        "print one JSON object a line",
    )
    name(added)
    added.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds (default: 1)"
    )
    added.add_argument("--count", type=integer(1), metavar="N", help="end after N times")


def run(arguments: argparse.Namespace) -> int:
    """Does what was asked for and returns the exit status."""
    from sw_driver.errors import AxdimmError
    from sw_driver.transport import DeviceFault, DeviceTimeout

    try:
        status = arguments.action(arguments)
        sys.stdout.flush()
        return status
    except AxdimmError as error:
        # Those of bad input are ValueErrors.
        raise (Refusal if isinstance(error, ValueError) else Failure)(str(error)) from error
    except (DeviceFault, DeviceTimeout) as error:
        raise Failure(f"the device failed: {error}") from error
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more is to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


# Which device.


@dataclass(frozen=True)
class _Target:
    control: Controlled
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.about["name"]

    def channels(self, only: int | None = None) -> Sequence[int]:
        """All channels, or the one that the user named; the device refuses one that is none."""
        return range(self.about["channels"]) if only is None else [only]


def _find(text: str | None, entries: Sequence[DeviceEntry]) -> DeviceEntry | DeviceName:
    """The open device that ``text`` names, or the backend."""
    from sw_driver.axdimm.backends import BACKENDS
    from sw_driver.control.exclusive import parse_device
    from sw_driver.errors import NoSuchDeviceError

    opened = ", ".join(entry.name for entry in entries)
    fresh = f"or name a backend ({', '.join(BACKENDS)}) to look at a fresh device"
    if text is None:
        if len(entries) == 1:
            return entries[0]
        if entries:
            raise Refusal(f"{len(entries)} devices are open: name one of {opened}")
        raise Refusal(f"no device is open: open one in a program, {fresh}")
    name = text
    if text not in {entry.name for entry in entries}:
        try:
            device = parse_device(text)
        except NoSuchDeviceError:
            device = None
        if device is not None and device.name is None and device.backend in BACKENDS:
            return device
        name = device and device.name
    for entry in entries:
        if entry.name == name:
            return entry
    which = f"open are {opened}" if opened else "none is open"
    raise Refusal(f"no device {text!r} is open ({which}): name one, {fresh}")


def _split(
    words: Sequence[str], needed: str, most: int | None = None
) -> tuple[str | None, list[str]]:
    """The device that the first word names, if it does, and the others."""
    from sw_driver.control.exclusive import open_devices

    least = len(needed.split())
    rest = list(words)
    device = None
    if len(rest) > least or (rest and most is None):
        entries = open_devices()
        try:
            _find(rest[0], entries)
        except Refusal:
            # Of several devices none is meant unless it is named.
            if len(rest) == most or len(entries) != 1:
                raise
        else:
            device = rest.pop(0)
    if len(rest) < least or (most is not None and len(rest) >= most):
        raise Refusal(f"got {len(rest)} words behind the device, {rest!r:.80}: expected {needed}")
    return device, rest


@contextmanager
def _opened(text: str | None, arguments: argparse.Namespace) -> Iterator[_Target]:
    """The device that is meant: another process's, or a fresh one that is closed at the end."""
    from rich.console import Console

    from sw_driver.axdimm.backends import BackendOptions, open_backend
    from sw_driver.axdimm.bare_control import TransportControl
    from sw_driver.control.client import ControlClient
    from sw_driver.control.exclusive import DeviceName, open_devices

    found = _find(text, open_devices())
    if not isinstance(found, DeviceName):
        client = ControlClient(found)
        yield _Target(client, client.describe())
        return
    progress = Console(stderr=True, quiet=arguments.quiet or arguments.json)
    options = BackendOptions(announce=lambda message: progress.print(message, highlight=False))
    try:
        transport = open_backend(found.model, options)
    except ValueError as error:
        raise Refusal(str(error)) from error
    except (RuntimeError, OSError) as error:
        raise Failure(str(error)) from error
    try:
        control = TransportControl(transport)
        own = {"name": found.model, "device": found.model, "preset": found.preset}
        yield _Target(control, {**own, **control.describe()})
    finally:
        transport.close()


# The actions.


def _list(arguments: argparse.Namespace) -> int:
    from sw_driver.control import ControlError
    from sw_driver.control.client import ControlClient
    from sw_driver.control.exclusive import open_devices
    from sw_driver.errors import BusyError, ClosedError

    rows: list[dict[str, Any]] = []
    for entry in open_devices():
        row: dict[str, Any] = {**asdict(entry), "channels": None, "modes": None, "running": None}
        client = ControlClient(entry, answer_limit_s=LIST_ANSWER_LIMIT_S)
        try:
            row["channels"] = client.describe()["channels"]
            states = [client.channel_state(channel) for channel in range(row["channels"])]
            row["modes"] = [state["mode"] for state in states]
            row["running"] = [_running(state) for state in states]
        except ClosedError:
            continue
        except (BusyError, ControlError) as error:
            row["problem"] = str(error)
        rows.append(row)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    table = _table("name", "process", "program", "device", "channels", "modes", "running", "since")
    for row in rows:
        told = (
            [", ".join(row["modes"]), ", ".join("yes" if it else "no" for it in row["running"])]
            if row["running"] is not None
            else ["no answer", ""]
        )
        table.add_row(
            row["name"],
            str(row["pid"]),
            row["program"],
            row["device"],
            "" if row["channels"] is None else str(row["channels"]),
            *told,
            row["started"],
        )
    _show(arguments, table if rows else "No device is open.")
    for row in rows:
        if "problem" in row:
            _show(arguments, row["problem"])
    return 0


def _running(state: ChannelState) -> bool:
    return state["kernel_busy"] or state["operation"] is not None


def _info(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, arguments) as target:
        about = target.about
    if arguments.json:
        print(json.dumps(about, indent=2))
        return 0
    table = _table("", "", header=False)
    for key, value in about.items():
        if key == "fabric_cycles":
            table.add_row("simulated", ", ".join(_simulated(about, cycles) for cycles in value))
        elif isinstance(value, dict):
            for name, number in value.items():
                table.add_row(name.replace("_", " "), _text(number))
        else:
            table.add_row(key.replace("_", " "), str(value) if key == "pid" else _text(value))
    _show(arguments, table)
    return 0


def _simulated(about: Mapping[str, Any], cycles: int) -> str:
    if not about["timed"]:
        return "untimed"
    return f"{cycles:,} fabric cycles ({cycles / about['fabric_mhz']:,.1f} us)"


def _registers(arguments: argparse.Namespace) -> int:
    device, names = _split(arguments.words, "")
    with _opened(device, arguments) as target:
        values = {
            channel: target.control.registers(channel, names or None)
            for channel in target.channels(arguments.channel)
        }
    if arguments.json:
        rows = [{"channel": channel, **row} for channel in values for row in values[channel]]
        print(json.dumps(rows, indent=2))
        return 0
    for channel, rows in values.items():
        table = _table("register", "value", "fields", title=f"Channel {channel}")
        for row in rows:
            value = "" if row["value"] is None else f"{row['value']:#x}"
            table.add_row(f"{row['window']}.{row['name']}", value, row["note"] or _fields(row))
        _show(arguments, table)
    return 0


def _fields(row: RegisterValue) -> str:
    from hw.adam.rule import CONSTANTS

    fp32 = row["window"] == "kernel" and row["name"] in CONSTANTS
    return ", ".join(
        f"{name} = {_float(value) if fp32 and isinstance(value, int) else _text(value)}"
        for name, value in row["fields"].items()
    )


def _float(bits: int) -> str:
    return f"{struct.unpack('<f', struct.pack('<I', bits))[0]:.9g}"


def _mode(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, arguments) as target:
        channels = target.channels(arguments.channel)
        if arguments.set is not None:
            for channel in channels:
                target.control.set_mode(channel, arguments.set)
        states = [target.control.channel_state(channel) for channel in channels]
    rows = [
        {name: state[name] for name in ("channel", "mode", "draining", "kernel_busy")}
        for state in states
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    table = _table("channel", "mode", "kernel")
    for state in states:
        table.add_row(
            str(state["channel"]),
            state["mode"] + (", draining" if state["draining"] else ""),
            "running" if state["kernel_busy"] else "idle",
        )
    _show(arguments, table)
    return 0


def _counters(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, arguments) as target:
        states = [
            target.control.channel_state(channel) for channel in target.channels(arguments.channel)
        ]
    if arguments.json:
        names = ("channel", "fabric_cycles", "copied_bytes", "counters")
        print(json.dumps([{name: state[name] for name in names} for state in states], indent=2))
        return 0
    table = _table("counter", *(f"channel {state['channel']}" for state in states))
    for name in _counts(states[0]):
        table.add_row(name, *(f"{_counts(state).get(name, 0):,}" for state in states))
    _show(arguments, table)
    return 0


def _counts(state: ChannelState) -> dict[str, int]:
    """All that a channel counts, by name."""
    copied = {f"copied {name} (bytes)": count for name, count in state["copied_bytes"].items()}
    return {"fabric cycles": state["fabric_cycles"], **copied, **state["counters"]}


def _allocations(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, arguments) as target:
        allocations, memories = target.control.allocations(), target.control.memory()
    if arguments.json:
        print(json.dumps({"allocations": allocations, "memory": memories}, indent=2))
        return 0
    if not allocations:
        _show(arguments, "Nothing is allocated.")
    else:
        table = _table("memory", "channel", "address", "bytes", "users")
        for entry in allocations:
            table.add_row(
                entry["memory"],
                str(entry["channel"]),
                f"{entry['address']:#x}",
                f"{entry['nbytes']:,}",
                str(entry["users"]),
            )
        _show(arguments, table)
    if memories:
        table = _table("memory", "channel", "bytes", "free", "largest free", "allocations")
        for entry in memories:
            numbers = (
                entry["total_bytes"],
                entry["free_bytes"],
                entry["largest_free_bytes"],
                entry["allocations"],
            )
            table.add_row(
                entry["memory"], str(entry["channel"]), *(f"{number:,}" for number in numbers)
            )
        _show(arguments, table)
    return 0


def _peek(arguments: argparse.Namespace) -> int:
    device, words = _split(arguments.words, "CHANNEL ADDRESS NBYTES", 4)
    names = ("CHANNEL", "ADDRESS", "NBYTES")
    channel, address, nbytes = map(_number, names, words)
    form = arguments.format
    _check_words(form, address, nbytes)
    with _opened(device, arguments) as target, _advising(target, channel):
        data = target.control.peek(channel, address, nbytes, arguments.backdoor)
    place = {"channel": channel, "address": address, "nbytes": nbytes, "format": form}
    if arguments.json:
        content = (json.dumps({**place, **_content(form, data)}, indent=2) + "\n").encode()
    elif form == "raw":
        content = data
    else:
        content = "".join(f"{line}\n" for line in _dump(form, address, data)).encode()
    if arguments.output is not None:
        try:
            arguments.output.write_bytes(content)
        except OSError as error:
            raise Failure(
                f"cannot write {str(arguments.output)!r}: {error.strerror or error}"
            ) from error
    elif arguments.json or not arguments.quiet:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return 0


@contextmanager
def _advising(target: _Target, channel: int) -> Iterator[None]:
    """Says how to reach the memory of a channel that is in the wrong mode."""
    from sw_driver.errors import WrongModeError

    try:
        yield
    except WrongModeError as error:
        raise Failure(
            f"channel {channel} is in acceleration mode, in which the host cannot reach its "
            f"memory: switch it with 'nearmem ctl mode {target.name} --channel {channel} --set "
            "normal', or pass --backdoor"
        ) from error


def _content(form: str, data: bytes) -> dict[str, Any]:
    """``data`` as JSON has it: infinities and NaN, which JSON has not, as text."""
    if form not in WORD_CODES:
        return {"data": data.hex()}
    return {
        "values": [value if math.isfinite(value) else str(value) for value in _unpack(form, data)]
    }


def _unpack(form: str, data: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(data) // WORD_BYTES}{WORD_CODES[form]}", data)


def _dump(form: str, address: int, data: bytes) -> Iterable[str]:
    for start in range(0, len(data), HEX_LINE_BYTES):
        part = data[start : start + HEX_LINE_BYTES]
        if form == "hex":
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            values = f"{part.hex(' '):<{3 * HEX_LINE_BYTES}} {text}"
        elif form == "u32":
            values = " ".join(f"{value:>10}" for value in _unpack(form, part))
        else:
            values = " ".join(f"{value:>16.9g}" for value in _unpack(form, part))
        yield f"{address + start:#012x}  {values}"


def _poke(arguments: argparse.Namespace) -> int:
    device, words = _split(arguments.words, "CHANNEL ADDRESS VALUE")
    channel, address = map(_number, ("CHANNEL", "ADDRESS"), words)
    data = b"".join(_packed(arguments.format, word) for word in words[2:])
    _check_words(arguments.format, address, len(data))
    if not data:
        raise Refusal("there is nothing to write: the values have no bytes")
    with _opened(device, arguments) as target, _advising(target, channel):
        target.control.poke(channel, address, data, arguments.backdoor)
    written = {"channel": channel, "address": address, "nbytes": len(data)}
    if arguments.json:
        print(json.dumps(written))
    else:
        _show(arguments, f"Wrote {len(data):,} bytes at {address:#x} of channel {channel}.")
    return 0


def _packed(form: str, word: str) -> bytes:
    try:
        if form == "hex":
            return binascii.unhexlify(word.removeprefix("0x"))
        if form == "u32":
            return struct.pack("<I", int(word, 0))
        if form == "f32":
            return struct.pack("<f", float(word))
        return Path(word).read_bytes()
    except (ValueError, struct.error, OverflowError) as error:
        expected = {
            "hex": "two hexadecimal digits for each byte, or another --format",
            "u32": "an integer from 0 to 0xffffffff",
            "f32": "a number in the range of FP32",
        }.get(form, "a file")
        raise Refusal(f"VALUE is {word!r}: expected {expected}") from error
    except OSError as error:
        raise Refusal(f"cannot read {word!r}: {error.strerror or error}") from error


def _set(arguments: argparse.Namespace) -> int:
    device, words = _split(arguments.words, "CHANNEL REGISTER[.FIELD] VALUE", 4)
    channel, register, value = _number("CHANNEL", words[0]), words[1], words[2]
    with _opened(device, arguments) as target:
        target.control.write_register(channel, register, value)
    if arguments.json:
        print(json.dumps({"channel": channel, "register": register, "value": value}))
    else:
        _show(arguments, f"Wrote {value} to {register} of channel {channel}.")
    return 0


def _watch(arguments: argparse.Namespace) -> int:
    from rich.live import Live

    from sw_driver.errors import ClosedError

    shown = _console(arguments)
    with _opened(arguments.name, arguments) as target:
        samples = _samples(target, arguments.interval, arguments.count)
        try:
            if arguments.json:
                for sample in samples:
                    print(json.dumps(sample), flush=True)
            elif shown.is_terminal:
                with Live(console=shown, auto_refresh=False) as live:
                    for sample in samples:
                        live.update(_sampled(target, sample), refresh=True)
            else:
                for sample in samples:
                    _show(arguments, _sampled(target, sample))
        except ClosedError as error:
            _show(arguments, f"{error}.")
    return 0


def _samples(target: _Target, interval_s: float, count: int | None) -> Iterator[dict[str, Any]]:
    """What the channels do, and how fast they count, every ``interval_s`` seconds."""
    last: dict[int, dict[str, int]] = {}
    last_s = due_s = time.monotonic()
    number = 0
    while True:
        states = [target.control.channel_state(channel) for channel in target.channels()]
        now_s = time.monotonic()
        rates = {
            state["channel"]: {
                name: (value - last[state["channel"]].get(name, 0)) / (now_s - last_s)
                for name, value in _counts(state).items()
            }
            for state in states
            if last
        }
        yield {
            "name": target.name,
            "channels": [
                {**state, "rates_per_s": rates.get(state["channel"], {})} for state in states
            ],
        }
        number += 1
        if number == count:
            return
        last, last_s = {state["channel"]: _counts(state) for state in states}, now_s
        due_s = max(due_s + interval_s, now_s)
        time.sleep(due_s - now_s)


def _sampled(target: _Target, sample: Mapping[str, Any]) -> Table:
    channels = sample["channels"]
    table = _table("", title=str(target.name))
    for state in channels:
        table.add_column(f"channel {state['channel']}", justify="right")
        table.add_column("per second", justify="right")
    table.add_row("mode", *(cell for state in channels for cell in (state["mode"], "")))
    table.add_row("doing", *(cell for state in channels for cell in (_doing(state), "")))
    for queue in sorted({queue for state in channels for queue in state["queued"]}):
        table.add_row(
            f"queued on {queue}",
            *(cell for state in channels for cell in (str(state["queued"].get(queue, 0)), "")),
        )
    for name in _counts(channels[0]):
        cells = []
        for state in channels:
            rate = state["rates_per_s"].get(name)
            cells += [f"{_counts(state).get(name, 0):,}", "" if rate is None else f"{rate:,.0f}"]
        table.add_row(name, *cells)
    return table


def _doing(state: ChannelState) -> str:
    operation = state["operation"]
    if operation is None:
        return "kernel running" if state["kernel_busy"] else "idle"
    progress = operation["progress"]
    return operation["name"] if progress is None else f"{operation['name']} ({progress:.0%})"


# Numbers and tables.


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds from 0.01 to 3600")
    return value


def _number(name: str, text: str) -> int:
    """An integer: decimal, ``0x...``, or with KiB, MiB or GiB behind it."""
    from sw_driver.experiments.settings import Key, SweepError

    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return int(Key(name=name, kind=int).parse(text))
    except (SweepError, ValueError) as error:
        raise Refusal(
            f"{name} is {text!r:.60}: expected an integer such as 4096, 0x1000 or 4KiB"
        ) from error


def _check_words(form: str, address: int, nbytes: int) -> None:
    """Refuses words of 32 bits that do not lie on their borders."""
    if form in WORD_CODES and (address % WORD_BYTES or nbytes % WORD_BYTES):
        raise Refusal(
            f"{nbytes} bytes at {address:#x} are not whole words: with --format {form} address and "
            f"size are multiples of {WORD_BYTES}"
        )


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(*columns: str, title: str | None = None, header: bool = True) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=header, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _console(arguments: argparse.Namespace) -> Console:
    from rich.console import Console

    # Names of programs may look like rich's markup.
    return Console(
        quiet=arguments.quiet or arguments.json, markup=False, emoji=False, highlight=False
    )


def _show(arguments: argparse.Namespace, what: Table | str) -> None:
    console = _console(arguments)
    # What goes into a file is not squeezed into a screen.
    if not isinstance(what, str) and not console.is_terminal:
        wide = console.options.update(width=10_000)
        console.width = max(console.width, console.measure(what, options=wide).maximum)
    console.print(what, soft_wrap=isinstance(what, str))
