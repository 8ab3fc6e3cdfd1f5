"""``nearmem registers``: documentation and C headers from the register map."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hw.axdimm.registers import registers_text
from hw.csr.register_map import RegisterMap, elaborated, parse_registers
from hw.kernel.config import KernelConfig
from hw.memory_node.registers.node_registers import MEMORY_NODE_RDL
from hw.pim.registers.pool_registers import PIM_RDL
from hw.rules import PAPER_RULES
from sw_driver.runtime.files import write_whole

from . import Failure, Refusal, add_output_options, output_folder, print_files

__all__ = ["MAPS", "add_parser", "load_map", "register_document", "run"]


class _Chapter(NamedTuple):
    """A description, for the rules of a kernel; its address maps; what is said before them."""

    described: Callable[[tuple[str, ...]], str]
    maps: tuple[str, ...]
    text: str


CHAPTERS = (
    _Chapter(
        registers_text,
        ("axdimm_arbiter", "axdimm_kernel"),
        "# Registers\n\n"
        "## Of a channel\n\nFrom `hw/axdimm/arbiter.rdl` and `hw/kernel/kernel.rdl`. "
        "Each register is the first eight bytes (little endian) of a 64-byte line of its own. The "
        "arbiter's window is the last 4 KB of the channel's address range and answers in both "
        "modes; the kernel's window is the 4 KB below it and answers in acceleration mode. Its "
        "registers follow from its update rules; these are the paper's "
        "(`nearmem registers --rules NAME,NAME` writes those of others).\n",
    ),
    _Chapter(
        lambda _: PIM_RDL.read_text(),
        ("pim_pool", "pim_ring", "pim_slot"),
        "## Of the PIM's pool\n\nFrom `hw/pim/registers/pim.rdl`. "
        "Registers of eight bytes (little endian) on AXI4-Lite: the pool's from 0, those of "
        "each ring, 64 bytes a ring, from 0x800, then those of each slot, 128 bytes a slot, from "
        "0x1000. What can be written are lower halves: a manager of 32 bits on the bus of 64 needs "
        "no other strobes than those of its 32 bits, and reads each half by itself.\n",
    ),
    _Chapter(
        lambda _: MEMORY_NODE_RDL.read_text(),
        ("memory_node", "memory_node_group", "memory_node_link"),
        "## Of the memory-node\n\nFrom `hw/memory_node/registers/memory_node.rdl`. "
        "Registers of eight bytes (little endian) on AXI4-Lite: the node's from 0, those of each "
        "group, 128 bytes a group, from 0x400, then those of each link, 128 bytes a link, from "
        "0x800. Any bytes of a register can be written by themselves.\n",
    ),
)

MAPS = {name: chapter.described for chapter in CHAPTERS for name in chapter.maps}
"""The address maps, with what describes them."""


def load_map(name: str) -> RegisterMap:
    """The address map ``name`` of :data:`MAPS`."""
    return parse_registers(name, MAPS[name](PAPER_RULES))


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "registers",
        help="write the register map as documentation and as C headers",
        description="Writes registers.md and C headers, made from the SystemRDL description.",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: build/registers)")
    parser.add_argument(
        "--rules",
        default=",".join(PAPER_RULES),
        metavar="NAME,NAME",
        help="update rules of the kernel (default: %(default)s)",
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def _encodings(registers: RegisterMap) -> str:
    rows = [
        f"| {register.name}.{field.name} | {code} | {meaning} |"
        for register in registers.registers
        for field in register.fields
        for meaning, code in field.encoding
    ]
    if not rows:
        return ""
    return "\n".join(
        ["#### Encoded values", "", "|Field|Code|Meaning|", "|---|---|---|", *rows, ""]
    )


def register_document(rules: tuple[str, ...] = PAPER_RULES) -> str:
    """All register maps as Markdown, the kernel's for its ``rules``."""
    try:
        from peakrdl_markdown import MarkdownExporter
    except ImportError as error:
        raise Failure("peakrdl-markdown is needed: pip install -e '.[dev]'") from error

    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for chapter in CHAPTERS:
            parts.append(chapter.text)
            for name in chapter.maps:
                path = Path(folder) / f"{name}.md"
                text = chapter.described(rules)
                MarkdownExporter().export(elaborated(name, text), str(path))
                encodings = _encodings(parse_registers(name, text))
                text = path.read_text().partition("-->\n")[2]
                # One level below the chapter.
                text = re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)
                parts += [text.rstrip() + "\n", encodings]
    return "\n".join(parts).rstrip() + "\n"


def run(arguments: argparse.Namespace) -> int:
    """Writes the files."""
    try:
        from peakrdl_cheader.exporter import CHeaderExporter
    except ImportError as error:
        raise Failure("peakrdl-cheader is needed: pip install -e '.[dev]'") from error

    try:
        rules = KernelConfig(rules=tuple(arguments.rules.split(","))).rules
    except ValueError as error:
        raise Refusal(f"--rules: {error}") from error
    folder = output_folder(arguments.out, "registers")
    document = folder / "registers.md"
    write_whole(document, register_document(rules))
    written = [document]
    with tempfile.TemporaryDirectory() as work:
        for name in MAPS:
            made = Path(work) / f"{name}.h"
            described = elaborated(name, MAPS[name](rules))
            CHeaderExporter().export(described, str(made), reuse_typedefs=False)
            written.append(folder / made.name)
            write_whole(written[-1], made.read_bytes())
    print_files(arguments, written)
    return 0
