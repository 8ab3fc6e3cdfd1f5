"""``nearmem ctl``: looks at the open devices of this machine, and changes them."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from . import Failure, Parser, Refusal, integer, output_file

__all__ = ["add_parser", "run"]


class _Parser(Parser):
    """A parser that takes options between positional arguments, too."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self.parse_known_args = super().parse_known_args  # which the other one calls
        return self.parse_known_intermixed_args(args, namespace)


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

    def action(name: str, text: str, json_help: str = "print the result as JSON") -> Any:
        added = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.add_argument("--json", action="store_true", help=json_help)
        added.add_argument("--quiet", action="store_true", help="print nothing but errors")
        added.set_defaults(run=run, action=name)
        return added

    def name(added: Any) -> None:
        added.add_argument("name", nargs="?", metavar="NAME", help="the device")

    def channel(added: Any) -> None:
        added.add_argument(
            "--channel", type=integer(0), metavar="C", help="only this channel (default: all)"
        )

    def words(added: Any, text: str, description: str) -> None:
        added.add_argument("words", nargs="*", metavar=text, help=description)

    def memory(added: Any, format_help: str) -> None:
        added.add_argument(
            "--format", choices=("hex", "u32", "f32", "raw"), default="hex", help=format_help
        )
        added.add_argument(
            "--backdoor",
            action="store_true",
            help="not over the host link: takes no simulated time and works in both modes",
        )

    action("list", "list the open devices of this machine")

    name(action("info", "show what a device is"))

    added = action("registers", "show registers and their fields")
    words(added, "[NAME] [REGISTER...]", "the device; registers, all without any")
    channel(added)

    added = action("mode", "show the modes of the channels, or switch them")
    name(added)
    channel(added)
    added.add_argument("--set", metavar="MODE", help="switch to 'normal' or 'acceleration' mode")

    added = action("counters", "show the counters of the channels")
    name(added)
    channel(added)

    name(action("allocations", "show what is allocated, and how much is free"))

    added = action("peek", "read a channel's memory")
    words(
        added,
        "[NAME] CHANNEL ADDRESS NBYTES",
        "where; numbers may be hexadecimal (0x...) or have KiB, MiB or GiB behind them",
    )
    memory(
        added,
        "bytes, little-endian words of 32 bits as integers or as FP32, or the bytes themselves "
        "(default: hex)",
    )
    added.add_argument(
        "--output", type=output_file, metavar="FILE", help="write there instead of printing"
    )

    added = action("poke", "write a channel's memory")
    words(added, "[NAME] CHANNEL ADDRESS VALUE...", "where and what, see --format")
    memory(
        added,
        "VALUE is bytes in hexadecimal such as 01ab, an integer of 32 bits, an FP32 number, or a "
        "file whose bytes are meant (default: hex); what begins with a minus sign may need -- "
        "before it",
    )

    added = action("set", "write a register, or one field of it")
    words(
        added,
        "[NAME] CHANNEL REGISTER[.FIELD] VALUE",
        "which, such as kernel.count, and an integer or the name of an encoded value",
    )

    added = action(
        "watch",
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

    from .ctl_actions import ACTIONS, show

    try:
        content, shown = ACTIONS[arguments.action](arguments)
        if arguments.json and content is not None:
            lines = arguments.action in ("poke", "set")
            print(json.dumps(content, indent=None if lines else 2))
        for each in shown:
            show(arguments, each)
        return 0
    except AxdimmError as error:
        # Those of bad input are ValueErrors.
        raise (Refusal if isinstance(error, ValueError) else Failure)(str(error)) from error
    except (DeviceFault, DeviceTimeout) as error:
        raise Failure(f"the device failed: {error}") from error


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds from 0.01 to 3600")
    return value
