"""What ``nearmem ctl`` does. The hardware is loaded by the actions that need it.

An action returns its result twice, as JSON has it (None if it has printed it) and as it is shown.
"""

from __future__ import annotations

import argparse
import binascii
import itertools
import json
import math
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from sw_driver.control import ChannelState, ControlError, Controlled, RegisterValue
from sw_driver.control.client import connect
from sw_driver.control.exclusive import DeviceEntry, DeviceName, open_devices, parse_device
from sw_driver.errors import BusyError, ClosedError, NoSuchDeviceError, WrongModeError
from sw_driver.runtime.files import write_whole

from . import Failure, Refusal, build_console, open_device, print_table

__all__ = ["ACTIONS", "show"]

LIST_ANSWER_LIMIT_S = 4.0
"""A list of all devices does not wait long for one that hangs."""
LIST_COLUMNS = {
    "name": "name",
    "process": "pid",
    "program": "program",
    "device": "device",
    "channels": "channels",
    "modes": "modes",
    "running": "running",
    "since": "started",
}
WORD_BYTES = 4
WORD_TYPES = {"u32": "<u4", "f32": "<f4"}
WORD_STYLES = {"u32": ">10", "f32": ">16.9g"}
HEX_LINE_BYTES = 16
VALUES = {
    "hex": "two hexadecimal digits for each byte, or another --format",
    "u32": "an integer from 0 to 0xffffffff",
    "f32": "a number in the range of FP32",
    "raw": "a file",
}
"""What is written in each format."""

Result = tuple[Any, Iterable[Table | str]]


def show(arguments: argparse.Namespace, what: Table | str) -> None:
    """Prints, unless ``--quiet`` or ``--json`` forbids."""
    console = _console(arguments)
    if isinstance(what, str):
        console.print(what, soft_wrap=True)
    else:
        print_table(what, console)


def _list(arguments: argparse.Namespace) -> Result:
    rows: list[dict[str, Any]] = []
    for entry in open_devices():
        row: dict[str, Any] = {**asdict(entry), "channels": None, "modes": None, "running": None}
        control = connect(entry, answer_limit_s=LIST_ANSWER_LIMIT_S)
        try:
            row["channels"] = control.describe()["channels"]
            states = [control.channel_state(channel) for channel in range(row["channels"])]
            row["modes"] = [state["mode"] for state in states]
            row["running"] = [
                state["kernel_busy"] or state["operation"] is not None for state in states
            ]
        except ClosedError:
            continue
        except (BusyError, ControlError) as error:
            row["problem"] = str(error)
        rows.append(row)
    shown = [{**row, "pid": str(row["pid"]), "modes": row["modes"] or "no answer"} for row in rows]
    table = _table(
        list(LIST_COLUMNS),
        (["" if row[key] is None else row[key] for key in LIST_COLUMNS.values()] for row in shown),
    )
    problems = [row["problem"] for row in rows if "problem" in row]
    return rows, [table, *problems] if rows else ["No device is open."]


def _info(arguments: argparse.Namespace) -> Result:
    with _opened(arguments.name, arguments) as target:
        about = target.about
    rows: list[tuple[str, Any]] = []
    for name, value in about.items():
        if name == "fabric_cycles":
            rows.append(("simulated", [_simulated(about, cycles) for cycles in value]))
        else:
            rows += value.items() if isinstance(value, dict) else [(name, value)]
    cells = (
        [name.replace("_", " "), str(value) if name == "pid" else value] for name, value in rows
    )
    return about, [_table(["", ""], cells)]


def _simulated(about: Mapping[str, Any], cycles: int) -> str:
    if not about["timed"]:
        return "untimed"
    return f"{cycles:,} fabric cycles ({cycles / about['fabric_mhz']:,.1f} us)"


def _registers(arguments: argparse.Namespace) -> Result:
    device, names = _split(arguments.words, "")
    with _opened(device, arguments) as target:
        values = {
            channel: target.control.registers(channel, names or None)
            for channel in target.channels(arguments.channel)
        }
    tables = [
        _table(
            ["register", "value", "fields"],
            (
                [
                    f"{row['window']}.{row['name']}",
                    "" if row["value"] is None else f"{row['value']:#x}",
                    row["note"] or _fields(row),
                ]
                for row in rows
            ),
            title=f"Channel {channel}",
        )
        for channel, rows in values.items()
    ]
    return [{"channel": channel, **row} for channel in values for row in values[channel]], tables


def _fields(row: RegisterValue) -> str:
    fields = row["fields"]
    if row["window"] == "kernel" and [*fields] == ["value"]:  # constants and sums, in FP32
        fields = {name: f"{np.uint32(bits).view(np.float32):.9g}" for name, bits in fields.items()}
    return ", ".join(f"{name} = {_text(value)}" for name, value in fields.items())


def _mode(arguments: argparse.Namespace) -> Result:
    with _opened(arguments.name, arguments) as target:
        if arguments.set is not None:
            for channel in target.channels(arguments.channel):
                target.control.set_mode(channel, arguments.set)
        states = target.states(arguments.channel)
    table = _table(
        ["channel", "mode", "kernel"],
        (
            [
                state["channel"],
                state["mode"] + (", draining" if state["draining"] else ""),
                "running" if state["kernel_busy"] else "idle",
            ]
            for state in states
        ),
    )
    return _picked(states, "channel", "mode", "draining", "kernel_busy"), [table]


def _counters(arguments: argparse.Namespace) -> Result:
    with _opened(arguments.name, arguments) as target:
        states = target.states(arguments.channel)
    table = _table(
        ["counter", *(f"channel {state['channel']}" for state in states)],
        ([name, *(_counts(state)[name] for state in states)] for name in _counts(states[0])),
    )
    return _picked(states, "channel", "fabric_cycles", "copied_bytes", "counters"), [table]


def _picked(states: Sequence[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: state[name] for name in names} for state in states]


def _counts(state: Mapping[str, Any]) -> dict[str, int]:
    """All that a channel counts, by name."""
    copied = {f"copied {name} (bytes)": count for name, count in state["copied_bytes"].items()}
    return {"fabric cycles": state["fabric_cycles"], **copied, **state["counters"]}


def _allocations(arguments: argparse.Namespace) -> Result:
    with _opened(arguments.name, arguments) as target:
        allocations, memory = target.control.allocations(), target.control.memory()
    shown: list[Table | str] = ["Nothing is allocated."]
    if allocations:
        addressed = ({**each, "address": f"{each['address']:#x}"} for each in allocations)
        columns = ["memory", "channel", "address", "bytes", "users"]
        shown = [_table(columns, (list(each.values()) for each in addressed))]
    if memory:
        columns = ["memory", "channel", "bytes", "free", "largest free", "allocations"]
        shown.append(_table(columns, (list(each.values()) for each in memory)))
    return {"allocations": allocations, "memory": memory}, shown


def _peek(arguments: argparse.Namespace) -> Result:
    device, words = _split(arguments.words, "CHANNEL ADDRESS NBYTES", 4)
    channel, address, nbytes = map(_number, ("CHANNEL", "ADDRESS", "NBYTES"), words)
    form = arguments.format
    _check_words(form, address, nbytes)
    with _opened(device, arguments) as target, _advising(target, channel):
        data = target.control.peek(channel, address, nbytes, arguments.backdoor)
    if arguments.json:
        place = {"channel": channel, "address": address, "nbytes": nbytes, "format": form}
        content = (json.dumps({**place, **_content(form, data)}, indent=2) + "\n").encode()
    elif form == "raw":
        content = data
    else:
        content = "".join(f"{line}\n" for line in _dump(form, address, data)).encode()
    if arguments.output is not None:
        write_whole(arguments.output, content)
    elif arguments.json or not arguments.quiet:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return None, []


def _content(form: str, data: bytes) -> dict[str, Any]:
    """``data`` as JSON has it: infinities and NaN, which JSON has not, as text."""
    if form not in WORD_TYPES:
        return {"data": data.hex()}
    values = np.frombuffer(data, WORD_TYPES[form]).tolist()
    return {"values": [value if math.isfinite(value) else str(value) for value in values]}


def _dump(form: str, address: int, data: bytes) -> Iterator[str]:
    for start in range(0, len(data), HEX_LINE_BYTES):
        part = data[start : start + HEX_LINE_BYTES]
        if form == "hex":
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            values = f"{part.hex(' '):<{3 * HEX_LINE_BYTES}} {text}"
        else:
            words = np.frombuffer(part, WORD_TYPES[form]).tolist()
            values = " ".join(f"{value:{WORD_STYLES[form]}}" for value in words)
        yield f"{address + start:#012x}  {values}"


def _poke(arguments: argparse.Namespace) -> Result:
    device, words = _split(arguments.words, "CHANNEL ADDRESS VALUE")
    channel, address = map(_number, ("CHANNEL", "ADDRESS"), words)
    data = b"".join(_packed(arguments.format, word) for word in words[2:])
    _check_words(arguments.format, address, len(data))
    if not data:
        raise Refusal("there is nothing to write: the values have no bytes")
    with _opened(device, arguments) as target, _advising(target, channel):
        target.control.poke(channel, address, data, arguments.backdoor)
    written = {"channel": channel, "address": address, "nbytes": len(data)}
    return written, [f"Wrote {len(data):,} bytes at {address:#x} of channel {channel}."]


def _packed(form: str, word: str) -> bytes:
    try:
        if form == "hex":
            return binascii.unhexlify(word.removeprefix("0x"))
        if form == "raw":
            return Path(word).read_bytes()
        return struct.pack("<I", int(word, 0)) if form == "u32" else struct.pack("<f", float(word))
    except (ValueError, struct.error, OverflowError) as error:
        raise Refusal(f"VALUE is {word!r}: expected {VALUES[form]}") from error
    except OSError as error:
        raise Refusal(f"cannot read {word!r}: {error.strerror or error}") from error


def _set(arguments: argparse.Namespace) -> Result:
    device, words = _split(arguments.words, "CHANNEL REGISTER[.FIELD] VALUE", 4)
    channel, register, value = _number("CHANNEL", words[0]), words[1], words[2]
    with _opened(device, arguments) as target:
        target.control.write_register(channel, register, value)
    written = {"channel": channel, "register": register, "value": value}
    return written, [f"Wrote {value} to {register} of channel {channel}."]


def _watch(arguments: argparse.Namespace) -> Result:
    console = _console(arguments)
    live = console.is_terminal and not arguments.json
    screen = Live(console=console, auto_refresh=False) if live else nullcontext()
    with _opened(arguments.name, arguments) as target, screen as updated:
        try:
            for sample in _samples(target, arguments.interval, arguments.count):
                if arguments.json:
                    print(json.dumps(sample), flush=True)
                elif updated is None:
                    show(arguments, _sampled(sample))
                else:
                    updated.update(_sampled(sample), refresh=True)
        except ClosedError as error:
            return None, [f"{error}."]
    return None, []


def _samples(target: _Target, interval_s: float, count: int | None) -> Iterator[dict[str, Any]]:
    """What the channels do, and how fast they count, every ``interval_s`` seconds.

    A channel that has begun to count anew has no rates until the next time.
    """
    last: dict[int, dict[str, int]] = {}
    last_s = due_s = time.monotonic()
    for number in itertools.count(1):
        states = target.states()
        now_s = time.monotonic()
        counts = {state["channel"]: _counts(state) for state in states}
        rates = {
            channel: {
                name: (counts[channel][name] - before[name]) / (now_s - last_s) for name in before
            }
            for channel, before in last.items()
            if all(counts[channel][name] >= before[name] for name in before)
        }
        yield {
            "name": target.about["name"],
            "channels": [
                {**state, "rates_per_s": rates.get(state["channel"], {})} for state in states
            ],
        }
        if number == count:
            return
        last, last_s = counts, now_s
        due_s = max(due_s + interval_s, now_s)
        time.sleep(due_s - now_s)


def _sampled(sample: Mapping[str, Any]) -> Table:
    channels = sample["channels"]
    chained = itertools.chain.from_iterable
    rows: list[list[Any]] = [
        ["mode", *chained((state["mode"], "") for state in channels)],
        ["doing", *chained((_doing(state), "") for state in channels)],
    ]
    for queue in sorted(set(chained(state["queued"] for state in channels))):
        waiting = chained((state["queued"].get(queue, 0), "") for state in channels)
        rows.append([f"queued on {queue}", *waiting])
    for name in _counts(channels[0]):
        cells: list[Any] = [name]
        for state in channels:
            rate = state["rates_per_s"].get(name)
            cells += [_counts(state)[name], "" if rate is None else f"{rate:,.0f}"]
        rows.append(cells)
    columns = chained((f"channel {state['channel']}", "per second") for state in channels)
    table = _table(["", *columns], rows, title=sample["name"])
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _doing(state: Mapping[str, Any]) -> str:
    operation = state["operation"]
    if operation is None:
        return "kernel running" if state["kernel_busy"] else "idle"
    progress = operation["progress"]
    return operation["name"] if progress is None else f"{operation['name']} ({progress:.0%})"


ACTIONS: Mapping[str, Callable[[argparse.Namespace], Result]] = {
    action.__name__.strip("_"): action
    for action in (
        *(_list, _info, _registers, _mode, _counters, _allocations),
        *(_peek, _poke, _set, _watch),
    )
}


# Which device.


@dataclass(frozen=True)
class _Target:
    control: Controlled
    about: Mapping[str, Any]

    def channels(self, only: int | None = None) -> Sequence[int]:
        """All channels, or the one that the user named; the device refuses one that is none."""
        return range(self.about["channels"]) if only is None else [only]

    def states(self, only: int | None = None) -> list[ChannelState]:
        """What these channels are doing."""
        return [self.control.channel_state(channel) for channel in self.channels(only)]


def _find(text: str | None, entries: Sequence[DeviceEntry]) -> DeviceEntry | DeviceName:
    """The open device that ``text`` names, or the backend."""
    from sw_driver.axdimm.backends import BACKENDS

    named = {entry.name: entry for entry in entries}
    opened = ", ".join(named)
    fresh = f"or name a backend ({', '.join(BACKENDS)}) to look at a fresh device"
    if text is None:
        if len(entries) == 1:
            return entries[0]
        if entries:
            raise Refusal(f"{len(entries)} devices are open: name one of {opened}")
        raise Refusal(f"no device is open: open one in a program, {fresh}")
    if text in named:
        return named[text]
    with suppress(NoSuchDeviceError):
        device = parse_device(text)
        if device.name is None and device.backend in BACKENDS:
            return device
        if device.name in named:
            return named[device.name]
    which = f"open are {opened}" if opened else "none is open"
    raise Refusal(f"no device {text!r} is open ({which}): name one, {fresh}")


def _split(
    words: Sequence[str], needed: str, most: int | None = None
) -> tuple[str | None, list[str]]:
    """The device that the first word names, if it does, and the others."""
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
    from sw_driver.axdimm.backends import BackendOptions

    found = _find(text, open_devices())
    if isinstance(found, DeviceEntry):
        control = connect(found)
        yield _Target(control, control.describe())
        return
    progress = Console(stderr=True, quiet=arguments.quiet or arguments.json)
    options = BackendOptions(announce=build_console(progress))
    with open_device(found.model, options) as device:
        own = {"name": found.model, "device": found.model, "preset": found.preset}
        yield _Target(device.controlled, {**own, **device.controlled.describe()})


@contextmanager
def _advising(target: _Target, channel: int) -> Iterator[None]:
    """Says how to reach the memory of a channel that is in the wrong mode."""
    try:
        yield
    except WrongModeError as error:
        raise Failure(
            f"channel {channel} is in acceleration mode, in which the host cannot reach its "
            f"memory: switch it with 'nearmem ctl mode {target.about['name']} --channel {channel} "
            "--set normal', or pass --backdoor"
        ) from error


# Numbers and tables.


def _number(name: str, text: str) -> int:
    """An integer: decimal, ``0x...``, or with KiB, MiB or GiB behind it."""
    from sw_driver.experiments.settings import Key, SweepError

    with suppress(ValueError):
        return int(text, 0)
    try:
        return int(Key(name=name, kind=int).parse(text))
    except (SweepError, ValueError) as error:
        raise Refusal(
            f"{name} is {text!r:.60}: expected an integer such as 4096, 0x1000 or 4KiB"
        ) from error


def _check_words(form: str, address: int, nbytes: int) -> None:
    """Refuses words of 32 bits that do not lie on their borders."""
    if form in WORD_TYPES and (address % WORD_BYTES or nbytes % WORD_BYTES):
        raise Refusal(
            f"{nbytes} bytes at {address:#x} are not whole words: with --format {form} address and "
            f"size are multiples of {WORD_BYTES}"
        )


def _table(
    columns: Sequence[str], rows: Iterable[Iterable[Any]], *, title: str | None = None
) -> Table:
    """A table of these cells, without a header if no column has a name."""
    table = Table(*columns, title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.show_header = any(columns)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _console(arguments: argparse.Namespace) -> Console:
    # Names of programs may look like rich's markup.
    return Console(
        quiet=arguments.quiet or arguments.json, markup=False, emoji=False, highlight=False
    )
