"""``python -m hw_tests.formal.model FILE PROOF FOLDER``: write a proof's models for yosys-abc.

``claims.aig`` has all claims; each claim and each cover has a model of its own beside it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pyosys import libyosys

from hw.verilog.writer import to_verilog
from hw_tests.formal import Proof, load_proofs


def probe_of(name: str) -> str:
    """Return the name of the port through which a signal inside is seen."""
    return re.sub(r"\W+", "_", f"inside_{name}").strip("_")


def write_models(proof: Proof, folder: Path) -> None:
    """Write the models of ``proof`` into ``folder``."""
    design = libyosys.Design()

    def run(*commands: str) -> None:
        for command in commands:
            libyosys.run_pass(command, design)

    (folder / "dut.v").write_text(to_verilog(proof.component(), "dut"))
    run(f"read_verilog {folder}/dut.v", "hierarchy -top dut; proc; flatten")
    # What the text names inside the component leaves it as ports.
    names = sorted({*re.findall(r"\bdut\.([a-z]\w*(?:\.[a-z]\w*)*(?:\[\d+\])?)", proof.text)})
    if any("[" in name for name in names):
        run("memory_map")
    module = design.top_module()
    for name in names:
        inside = module.wire(libyosys.IdString(f"\\{name}"))
        probe = module.addWire(libyosys.IdString(f"\\{probe_of(name)}"), inside.width)
        module.connect(libyosys.SigSpec(probe), libyosys.SigSpec(inside))
        probe.port_output = True
    module.fixup_ports()
    run("memory_map", "opt_clean")
    # A free signal drives what it is cut from, as an input.
    run(*(f"cutpoint dut/w:{name}" for name in proof.cut))
    # A cover is reached if the claim that it never holds fails.
    text = re.sub(r": cover property (.*);", r": assert property (!\1);", proof.text)
    inputs, wires, pins = [], [], [".rst(1'b0)"]
    for wire in module.wires_.values():
        name = str(wire.name)[1:]
        if (wire.port_input or wire.port_output) and name != "rst":
            place = f"[{wire.width - 1}:0] {name}" if name != "clk" else name
            (inputs if wire.port_input else wires).append(place)
            pins.append(f".{name}({name})")
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f"dut.{name}", probe_of(name))
    (folder / "check.sv").write_text(
        f"module check({', '.join(f'input {port}' for port in inputs)});\n"
        + "".join(f"  wire {wire};\n" for wire in wires)
        + f"  dut dut({', '.join(pins)});\n{text}\nendmodule\n"
    )
    run(
        f"read_verilog -formal -sv {folder}/check.sv",
        "hierarchy -check -top check; proc; flatten; setundef -undriven -anyseq",
        "memory_map; opt -full; chformal -lower",
        "async2sync; setundef -anyseq; techmap; opt -fast; dffunmap; simplemap; aigmap; opt_clean",
    )
    claims, covers = proof.names("assert"), proof.names("cover")
    models = {"claims": [*claims, "lemma*"]} | {name: [name] for name in claims + covers}
    for model, kept in models.items():
        run(
            "design -save all",
            f"delete t:$assert {' '.join(f'c:{name} %d' for name in kept)}",
            "opt_clean",
            f"write_aiger -zinit -map {folder}/{model}.map {folder}/{model}.aig",
            "design -load all",
        )


if __name__ == "__main__":
    write_models(load_proofs(Path(sys.argv[1]))[sys.argv[2]], Path(sys.argv[3]))
