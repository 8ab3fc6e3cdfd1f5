"""Register maps, read from SystemRDL.

The RDL text is the only description of the registers: the RTL (:mod:`hw.csr.bank`), the driver's
constants, the C header and the documentation are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from systemrdl.compiler import RDLCompiler
from systemrdl.node import AddrmapNode, FieldNode, MemNode, RegNode
from systemrdl.rdltypes.builtin_enums import OnWriteType

__all__ = [
    "Field",
    "Register",
    "RegisterMap",
    "elaborated",
    "load_registers",
    "parse_registers",
    "renamed",
    "unrolled_registers",
]


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a register; ``lsb`` and ``width`` in bits."""

    name: str
    lsb: int
    width: int
    reset: int
    sw_readable: bool
    sw_writable: bool
    hw_readable: bool
    hw_writable: bool
    pulse: bool
    """Written ones last for one fabric cycle."""
    clears: bool
    """Written ones clear what hardware has set."""
    encoding: tuple[tuple[str, int], ...]

    @property
    def mask(self) -> int:
        """Mask of the field's bits in its register."""
        return ((1 << self.width) - 1) << self.lsb

    def code(self, name: str) -> int:
        """Return the encoded value called ``name``; raise ``KeyError`` if there is none."""
        return dict(self.encoding)[name]

    def extract(self, value: int) -> int:
        """Return the field's value in a register that reads ``value``."""
        return (value & self.mask) >> self.lsb


@dataclass(frozen=True, kw_only=True)
class Register:
    """A register."""

    name: str
    places: tuple[int, ...]
    """Offsets in bytes from the start of the map. A register has several if hardware shows a
    different one of an array at each of them, under one name."""
    fields: tuple[Field, ...]
    block: str = ""
    """Name of the inner address map that holds the register, or an empty string."""

    @property
    def offset_bytes(self) -> int:
        """First of the register's offsets, in bytes."""
        return self.places[0]

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"register {self.name!r} has no field {name!r}")


@dataclass(frozen=True, kw_only=True)
class RegisterMap:
    """The registers of one address map, in order of their offsets."""

    name: str
    registers: tuple[Register, ...]

    def __getitem__(self, name: str) -> Register:
        for register in self.registers:
            if register.name == name:
                return register
        raise KeyError(f"register map {self.name!r} has no register {name!r}")


def _field(node: FieldNode) -> Field:
    encode = node.get_property("encode")
    return Field(
        name=node.inst_name,
        lsb=node.low,
        width=node.width,
        reset=int(node.get_property("reset") or 0),
        sw_readable=node.is_sw_readable,
        sw_writable=node.is_sw_writable,
        hw_readable=node.is_hw_readable,
        hw_writable=node.is_hw_writable,
        pulse=bool(node.get_property("singlepulse")),
        clears=node.get_property("onwrite") is OnWriteType.woclr,
        encoding=tuple((member.name, int(member.value)) for member in encode or ()),
    )


def _fields(node: RegNode) -> tuple[Field, ...]:
    return tuple(_field(field) for field in node.fields())


_MEMORY_WORD = Field(
    name="data", lsb=0, width=64, reset=0, sw_readable=True, sw_writable=False, hw_readable=False,
    hw_writable=True, pulse=False, clears=False, encoding=(),
)  # fmt: skip
"""Field of a word in a memory that software reads."""


@lru_cache
def load_registers(top: str, path: Path) -> RegisterMap:
    """Return the address map ``top`` of the RDL file at ``path``."""
    return _register_map(elaborated(top, path.read_text()))


def parse_registers(top: str, text: str) -> RegisterMap:
    """Return the address map ``top`` of an RDL text."""
    return _register_map(elaborated(top, text))


def unrolled_registers(top: str, text: str, *, selected: str = "") -> RegisterMap:
    """Return all registers of the address map ``top`` of an RDL text, inner maps included.

    They have names such as ``kept_state`` or, in an array of maps, ``ring_0_base``. Registers in
    the array ``selected`` appear once, with several places. The words of a memory appear as one
    register with the field ``data``.
    """
    root = elaborated(top, text)
    registers: dict[str, Register] = {}
    for node in root.descendants(unroll=True):
        if isinstance(node, RegNode | MemNode) and node.parent is not None:
            index = "" if node.parent.inst_name == selected else "_{index}"
            block, name = (
                item.get_rel_path(root, hier_separator="_", array_suffix=index)
                for item in (node.parent, node)
            )
            fields = _fields(node) if isinstance(node, RegNode) else (_MEMORY_WORD,)
            more = range(node.absolute_address, node.absolute_address + node.size, 8)
            places = (*(registers[name].places if name in registers else ()), *more)
            registers[name] = Register(name=name, places=places, fields=fields, block=block)
    return RegisterMap(name=top, registers=tuple(registers.values()))


def renamed(text: str, names: Mapping[str, str], *, prefix: str) -> str:
    """Return an RDL text with definitions renamed by ``names``, or else given a ``prefix``."""
    defined = re.findall(r"^(?:addrmap|enum) (\w+)", text, re.MULTILINE)
    new = {**{name: f"{prefix}{name}" for name in defined}, **names}
    return re.sub(rf"\b({'|'.join(new)})\b", lambda match: new[match[0]], text)


def elaborated(top: str, text: str) -> AddrmapNode:
    """Return the address map ``top`` of an RDL text, in the form that RDL exporters take."""
    compiler = RDLCompiler()
    with NamedTemporaryFile("w", suffix=".rdl") as file:
        file.write(text)
        file.flush()
        compiler.compile_file(file.name)
    root = compiler.elaborate(top_def_name=top).top
    assert isinstance(root, AddrmapNode)
    return root


def _register_map(root: AddrmapNode) -> RegisterMap:
    registers = tuple(
        Register(name=node.inst_name, places=(node.address_offset,), fields=_fields(node))
        for node in root.registers()
    )
    return RegisterMap(name=root.inst_name, registers=registers)
