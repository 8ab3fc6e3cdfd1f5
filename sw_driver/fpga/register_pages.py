"""All register maps as a documentation page and as C headers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hw.axdimm.registers import registers_text
from hw.csr.register_map import RegisterMap, elaborated, parse_registers, renamed
from hw.kernel.config import KernelConfig
from hw.memory_node.registers.node_registers import MEMORY_NODE_RDL
from hw.pim.registers.pool_registers import PIM_RDL
from hw.rules import PAPER_RULES
from hw.verilog.generate import check_module_name, usual_name
from sw_driver.files import write_whole
from sw_driver.report import Report

from .registers import header_text

__all__ = ["MAPS", "load_map", "register_document", "register_headers", "report"]


class _Chapter(NamedTuple):
    """A chapter: a function that returns the SystemRDL, its address maps, and its introduction.

    The function takes a kernel's rules, and True for narrow formats.
    """

    described: Callable[[tuple[str, ...], bool], str]
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
        "registers follow from its update rules; these are the paper's (`nearmem registers --rules "
        "NAME,NAME` writes those of others, `--narrow` adds those of `hw/kernel/narrow.rdl`).\n",
    ),
    _Chapter(
        lambda *_: PIM_RDL.read_text(),
        ("pim_pool", "pim_ring", "pim_core", "pim_slot"),
        "## Of the PIM's pool\n\nFrom `hw/pim/registers/pim.rdl`. "
        "Registers of eight bytes (little endian) on AXI4-Lite: the pool's from 0, those of "
        "each ring, 64 bytes a ring, from 0x800, those of each core, 128 bytes a core, from "
        "0xc00, and those of each slot, 128 bytes a slot, from 0x1000. What can be written are "
        "lower halves: a manager of 32 bits on the bus of 64 needs no other strobes than those "
        "of its 32 bits, and reads each half by itself.\n",
    ),
    _Chapter(
        lambda *_: MEMORY_NODE_RDL.read_text(),
        ("memory_node", "memory_node_group", "memory_node_link"),
        "## Of the memory-node\n\nFrom `hw/memory_node/registers/memory_node.rdl`. "
        "Registers of eight bytes (little endian) on AXI4-Lite: the node's from 0, those of each "
        "group, 128 bytes a group, from 0x400, then those of each link, 128 bytes a link, from "
        "0x800. Any bytes of a register can be written by themselves.\n",
    ),
)

MAPS = {name: chapter.described for chapter in CHAPTERS for name in chapter.maps}
"""Functions that return the SystemRDL of each address map, by name."""


def load_map(name: str) -> RegisterMap:
    """Return the address map ``name`` of :data:`MAPS`."""
    return parse_registers(name, MAPS[name](PAPER_RULES, False))


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


def _shortened(text: str) -> str:
    """Return a map's page with one offset a register, and its fields as a list."""
    place = r"^- Absolute Address: (\w+)\n- Base Offset: \1\n- Size: 0x8\n"
    text = re.sub(place, r"Offset \1.\n", text, flags=re.MULTILINE)
    field = r"^#### (\w+) field\n\n<p>(.*)</p>\n"
    text = re.sub(field, r"- `\1`: \2\n", text, flags=re.MULTILINE)
    return re.sub(r"^(- `.*\n)\n(?=- `)", r"\1", text, flags=re.MULTILINE)


def register_document(rules: tuple[str, ...] = PAPER_RULES, narrow: bool = False) -> str:
    """Return all register maps as Markdown, for a kernel with ``rules`` and ``narrow`` formats.

    Raises ``ImportError`` if the writer is not installed.
    """
    from peakrdl_markdown import MarkdownExporter

    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for chapter in CHAPTERS:
            parts.append(chapter.text)
            for name in chapter.maps:
                path = Path(folder) / f"{name}.md"
                text = chapter.described(rules, narrow)
                MarkdownExporter().export(elaborated(name, text), str(path))
                encodings = _encodings(parse_registers(name, text))
                text = _shortened(path.read_text().partition("-->\n")[2])
                # Headings are one level below the chapter.
                text = re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)
                parts += [text.rstrip() + "\n", encodings]
    return "\n".join(parts).rstrip() + "\n"


def register_headers(rules: tuple[str, ...], narrow: bool, name: str) -> dict[str, str]:
    """Return the C header of each map by file name; files and identifiers begin with ``name``.

    Raises as :func:`register_document`.
    """
    headers = {}
    for map_name, described in MAPS.items():
        own = f"{name}__{map_name}"
        text = renamed(described(rules, narrow), {map_name: own}, prefix=f"{own}__")
        headers[f"{own}.h"] = header_text(elaborated(own, text))
    return headers


def report(
    folder: Path,
    rules: tuple[str, ...] | None = None,
    *,
    narrow: bool = False,
    name: str | None = None,
) -> Report:
    """Write the page and the headers into ``folder``.

    Rules default to the paper's, ``name`` to the usual one. Raises what :func:`register_document`
    does, and ``ValueError`` for bad arguments.
    """
    config = KernelConfig(rules=rules or PAPER_RULES, narrow=narrow)
    if name is not None:
        check_module_name(name)
    changes = [] if config.rules == PAPER_RULES else [f"rules={','.join(config.rules)}"]
    name = name or usual_name("nearmem", changes + ["narrow"] * narrow)
    headers = register_headers(config.rules, narrow, name)
    texts = {"registers.md": register_document(config.rules, narrow), **headers}
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        write_whole(folder / file, text)
    return Report(
        results=[*MAPS],
        machine={"rules": list(config.rules), "narrow": narrow},
        files=[folder / file for file in texts],
    )
