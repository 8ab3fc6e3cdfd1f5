"""Registers of a design: their SystemRDL, and the C header, HTML and SVD made from it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from systemrdl.node import AddrmapNode, FieldNode, RegNode

from hw.axdimm.channel import Channel
from hw.axdimm.module import Axdimm
from hw.axdimm.registers import registers_text
from hw.csr.register_map import elaborated, renamed
from hw.kernel.kernel import Kernel
from hw.kernel.registers import WINDOW_BYTES, kernel_text
from hw.memory_node.node import MemoryNode
from hw.memory_node.registers.node_registers import node_text
from hw.pim.pool import PimPool
from hw.pim.registers.pool_registers import pool_text

from .markup import child, document

__all__ = [
    "REGISTER_BITS",
    "Registers",
    "access_of",
    "block_name",
    "codes_of",
    "field_reset",
    "header_text",
    "registers_of",
    "reset_of",
    "words_of",
]

REGISTER_BITS = 64

_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto}"
    "td,th{text-align:left;padding:.2em 1em .2em 0;vertical-align:top}"
)


@dataclass(frozen=True, kw_only=True)
class Registers:
    """Registers behind a bus of a design."""

    text: str
    """Description of the registers in SystemRDL."""
    top: AddrmapNode
    """Elaborated address map; it holds the design's registers directly or in inner maps."""

    def blocks(self) -> Iterator[AddrmapNode]:
        """Yield the maps with registers, in address order."""
        return _blocks(self.top)

    def files(self, name: str) -> dict[str, str | bytes]:
        """Return the files of the register map of the design ``name``, by file name.

        Raises ``ImportError`` if a writer is not installed.
        """
        return {
            f"{name}.rdl": self.text,
            f"{name}.svd": self._svd(name),
            f"{name}.html": self._html(name),
            f"{name}.h": header_text(self.top),
        }

    def _html(self, name: str) -> str:
        """Return the register map as an HTML page that loads nothing from elsewhere."""
        root = ET.Element("html", lang="en")
        head, body = child(root, "head"), child(root, "body")
        child(head, "meta", charset="utf-8")
        child(head, "title", f"Registers of {name}")
        child(head, "style", _STYLE)
        child(body, "h1", f"Registers of {name}")
        for block in self.blocks():
            child(body, "h2", f"{block_name(block)} at {block.absolute_address:#x}")
            child(body, "p", words_of(block))
            for node in block.registers():
                self._html_register(body, node)
        ET.indent(root)
        return f"<!DOCTYPE html>\n{ET.tostring(root, encoding='unicode', method='html')}\n"

    def _html_register(self, body: ET.Element, node: RegNode) -> None:
        value, _ = reset_of(node)
        child(body, "h3", f"{node.inst_name} at {node.address_offset:#05x}", id=node.inst_name)
        child(body, "p", f"{words_of(node)} Reset: {value:#x}.")
        table = child(body, "table")
        for tag, cells in (
            ("th", ("bits", "field", "access", "holds")),
            *(
                (
                    "td",
                    (
                        f"{field.high}:{field.low}",
                        field.inst_name,
                        access_of(field),
                        " ".join(
                            [
                                words_of(field),
                                *(f"{m.name}: {int(m.value)}." for m in codes_of(field)),
                            ]
                        ),
                    ),
                )
                for field in node.fields()
            ),
        ):
            row = child(table, "tr")
            for cell in cells:
                child(row, tag, cell)

    def _svd(self, name: str) -> str:
        """Return the register map in CMSIS-SVD 1.3: a device with the blocks as peripherals."""
        schema = "http://www.w3.org/2001/XMLSchema-instance"
        device = ET.Element("device", {"schemaVersion": "1.3", "xmlns:xs": schema})
        device.set("xs:noNamespaceSchemaLocation", "CMSIS-SVD.xsd")
        for tag, text in (
            ("vendor", "Nearmem"),
            ("name", name),
            ("version", "1.0"),
            ("description", f"Registers of {name}"),
            ("addressUnitBits", "8"),
            ("width", str(REGISTER_BITS)),
        ):
            child(device, tag, text)
        peripherals = child(device, "peripherals")
        for block in self.blocks():
            peripheral = child(peripherals, "peripheral")
            child(peripheral, "name", block_name(block))
            child(peripheral, "description", words_of(block))
            child(peripheral, "baseAddress", hex(block.absolute_address))
            place = child(peripheral, "addressBlock")
            child(place, "offset", "0x0")
            child(place, "size", hex(block.size))
            child(place, "usage", "registers")
            registers = child(peripheral, "registers")
            for node in block.registers():
                self._svd_register(registers, node)
        return document(device)

    def _svd_register(self, registers: ET.Element, node: RegNode) -> None:
        value, mask = reset_of(node)
        register = child(registers, "register")
        child(register, "name", node.inst_name)
        child(register, "description", words_of(node))
        child(register, "addressOffset", hex(node.address_offset))
        child(register, "size", str(node.get_property("regwidth")))
        child(register, "access", access_of(node))
        child(register, "resetValue", hex(value))
        child(register, "resetMask", hex(mask))
        fields = child(register, "fields")
        for described in node.fields():
            field = child(fields, "field")
            child(field, "name", described.inst_name)
            child(field, "description", words_of(described))
            child(field, "bitOffset", str(described.low))
            child(field, "bitWidth", str(described.width))
            child(field, "access", access_of(described))
            if described.get_property("onwrite"):
                child(field, "modifiedWriteValues", "oneToClear")
            if codes := codes_of(described):
                values = child(field, "enumeratedValues")
                for code in codes:
                    value = child(values, "enumeratedValue")
                    child(value, "name", code.name)
                    child(value, "description", code.rdl_desc or code.name)
                    child(value, "value", str(int(code.value)))


def header_text(top: AddrmapNode) -> str:
    """Return the C header of a map; guard, types and macros begin with the map's name.

    Raises ``ImportError`` if the writer is not installed.
    """
    from peakrdl_cheader.exporter import CHeaderExporter

    with tempfile.TemporaryDirectory() as folder:
        header = Path(folder) / f"{top.inst_name}.h"
        CHeaderExporter().export(top, str(header), reuse_typedefs=False)
        return header.read_text()


def registers_of(component: Any, configuration: Mapping[str, Any], name: str) -> Registers | None:
    """Return the registers behind the bus of ``component``, or None if there are none.

    ``configuration`` is that of the component's description. ``name`` is the map's name, and the
    prefix of the names of everything that it needs.
    """
    if isinstance(component, Kernel):
        return _named(
            kernel_text(component.config.rules, component.config.narrow), "axdimm_kernel", name
        )
    if isinstance(component, Channel | Axdimm):
        windows = ""
        for channel in range(configuration["channels"] if isinstance(component, Axdimm) else 1):
            index = f"_{channel}" if isinstance(component, Axdimm) else ""
            end = (channel + 1) * configuration["capacity_bytes"]
            windows += f"    axdimm_kernel kernel{index} @ {end - 2 * WINDOW_BYTES:#x};\n"
            windows += f"    axdimm_arbiter arbiter{index} @ {end - WINDOW_BYTES:#x};\n"
        text = registers_text(tuple(configuration["rules"]), configuration["narrow"])
        text += f'\naddrmap registers {{\n    name = "Registers";\n{windows}}};\n'
        return _named(text, "registers", name)
    if isinstance(component, PimPool):
        return _named(pool_text(component.config), "registers", name)
    if isinstance(component, MemoryNode):
        return _named(node_text(component.config), "registers", name)
    return None


def _named(text: str, top: str, name: str) -> Registers:
    text = renamed(text, {top: name}, prefix=f"{name}__")
    return Registers(text=text, top=elaborated(name, text))


def _blocks(node: AddrmapNode) -> Iterator[AddrmapNode]:
    if any(node.registers()):
        yield node
    for inner in node.children(unroll=True):
        if isinstance(inner, AddrmapNode):
            yield from _blocks(inner)


def access_of(node: RegNode | FieldNode) -> str:
    """Return the access that software has: ``read-only``, ``write-only`` or ``read-write``."""
    if isinstance(node, FieldNode):
        reads, writes = node.is_sw_readable, node.is_sw_writable
    else:
        reads, writes = node.has_sw_readable, node.has_sw_writable
    return "read-write" if reads and writes else "read-only" if reads else "write-only"


def reset_of(node: RegNode) -> tuple[int, int]:
    """Return a register's value after reset, and the mask of the bits with a fixed reset value.

    The hardware sets the other bits.
    """
    value = mask = 0
    for field in node.fields():
        if field.is_sw_readable and not field.is_hw_writable:
            value |= field_reset(field) << field.low
            mask |= ((1 << field.width) - 1) << field.low
    return value, mask


def block_name(node: AddrmapNode) -> str:
    """Return the name of a block with its indices."""
    index = "".join(f"_{number}" for number in node.current_idx or ())
    return f"{node.inst_name}{index}"


def field_reset(node: FieldNode) -> int:
    """Return a field's value after reset."""
    value: Any = node.get_property("reset")
    return int(value or 0)


def codes_of(node: FieldNode) -> list[Any]:
    """Return the named values of a field."""
    return list(node.get_property("encode") or ())


def words_of(node: AddrmapNode | RegNode | FieldNode) -> str:
    """Return the title and description of a node in one text."""
    title, text = node.get_property("name"), node.get_property("desc")
    return ": ".join(filter(None, (title if title != node.inst_name else "", text))) or title
