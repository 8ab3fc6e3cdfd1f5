"""Proofs of properties of the exported Verilog, a file in ``properties`` for each component.

Such a file has a constant ``PROOFS``. The ports of the component are signals of a module, its
inputs free and ``rst`` low; the text of a proof stands in that module and may name signals inside
the component as ``dut.NAME``. Each claim of a proof has a twin, a fault in one line of the source,
with which it fails. Each cover is reached, so the assumptions do not contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from amaranth.lib import wiring

from hw_tests.mutants import Mutant

__all__ = ["PROPERTIES", "Proof", "load_proofs", "twin"]

PROPERTIES = Path(__file__).parent / "properties"


def twin(file: str, line: str, becomes: str) -> Mutant:
    """Return a fault in one line of ``file``, with which a claim must fail."""
    return Mutant(name=file, file=file, line=line, becomes=becomes, test="")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Claims about one component that are proven together."""

    name: str
    component: Callable[[], wiring.Component]
    text: str
    """SystemVerilog with ``NAME: assert property (...);``, covers and assumptions. What is named
    ``lemma...`` is proven with the claims, for their proof's sake."""
    twins: Mapping[str, Mutant]
    """Fault for each claim, by its name."""
    bound: int | None = None
    """Cycles after reset for which the claims hold; None: they hold for ever."""
    reach: int = 60
    """Cycles in which each cover is reached and each twin fails."""
    engine: str = "pdr"
    """Command of yosys-abc for an unbounded proof: ``pdr``, or ``ind -F`` and up to 6 cycles."""
    limit_s: int = 30
    """Processor time of the proof, of each cover and of each twin."""
    cut: tuple[str, ...] = ()
    """Signals inside that become free inputs."""
    reductions: str = ""
    """What is smaller than in the product, cut or assumed."""

    def names(self, kind: str) -> list[str]:
        """Return the names of the statements of a kind, ``assert`` or ``cover``."""
        names = re.findall(rf"^\s*(\w+): {kind} property", self.text, re.MULTILINE)
        return [name for name in names if not name.startswith("lemma")]

    def __post_init__(self) -> None:
        claims, covers = self.names("assert"), self.names("cover")
        if not claims or not covers or {*claims} != {*self.twins}:
            raise ValueError(
                f"proof {self.name} has claims {claims}, twins for {[*self.twins]} and covers "
                f"{covers}: give one twin for each claim, and at least one cover"
            )


def load_proofs(file: Path) -> dict[str, Proof]:
    """Return the proofs of a file of properties by name."""
    spec = spec_from_file_location(f"{file.stem}_properties", file)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return {proof.name: proof for proof in module.PROOFS}
