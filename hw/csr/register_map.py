"""Register maps, read from SystemRDL.

The RDL text is the only description of the registers: the RTL (:mod:`hw.csr.bank`), the driver's
constants, the C header and the documentation are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from systemrdl.compiler import RDLCompiler
from systemrdl.node import AddrmapNode, FieldNode, RegNode
from systemrdl.rdltypes.builtin_enums import OnWriteType

__all__ = ["Field", "Register", "RegisterMap", "elaborated", "load_registers", "parse_registers"]


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
        """The field's bits in its register."""
        return ((1 << self.width) - 1) << self.lsb

    def code(self, name: str) -> int:
        """The encoded value called ``name``; ``KeyError`` if there is none."""
        return dict(self.encoding)[name]

    def extract(self, value: int) -> int:
        """The field's value in a register that reads ``value``."""
        return (value & self.mask) >> self.lsb


@dataclass(frozen=True, kw_only=True)
class Register:
    """A register; ``offset_bytes`` counts from the start of its map."""

    name: str
    offset_bytes: int
    fields: tuple[Field, ...]

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


def _register(node: RegNode) -> Register:
    return Register(
        name=node.inst_name,
        offset_bytes=node.address_offset,
        fields=tuple(_field(field) for field in node.fields()),
    )


@lru_cache
def load_registers(top: str, path: Path) -> RegisterMap:
    """The address map ``top`` of the RDL file at ``path``."""
    return _register_map(elaborated(top, path.read_text()))


def parse_registers(top: str, text: str) -> RegisterMap:
    """The address map ``top`` of an RDL text."""
    return _register_map(elaborated(top, text))


def elaborated(top: str, text: str) -> AddrmapNode:
    """The address map ``top`` of an RDL text, as the compiler's exporters take it."""
    compiler = RDLCompiler()
    with NamedTemporaryFile("w", suffix=".rdl") as file:
        file.write(text)
        file.flush()
        compiler.compile_file(file.name)
    root = compiler.elaborate(top_def_name=top).top
    assert isinstance(root, AddrmapNode)
    return root


def _register_map(root: AddrmapNode) -> RegisterMap:
    registers = tuple(_register(register) for register in root.registers())
    return RegisterMap(name=root.inst_name, registers=registers)
