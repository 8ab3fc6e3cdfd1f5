"""The AXI memory and the sides of streams that benches use fail a test that breaks a rule."""

from __future__ import annotations

from hw_tests.bench import run_bench

INPUTS = {
    "clk": 1, "i_valid": 1, "i_ready": 1, "i_payload": 8, "o_valid": 1, "o_ready": 1,
    "o_payload": 8,
}  # fmt: skip
CHANNELS = {
    "ar": {"id": 2, "addr": 16, "len": 8, "size": 3, "burst": 2},
    "aw": {"id": 2, "addr": 16, "len": 8, "size": 3, "burst": 2},
    "w": {"data": 64, "strb": 8, "last": 1},
    "r": {"id": 2, "data": 64, "resp": 2, "last": 1},
    "b": {"id": 2, "resp": 2},
}


def test_agents() -> None:
    """A design that has wires only."""
    widths = INPUTS | {
        f"m_axi_{channel}{name}": width
        for channel, parts in CHANNELS.items()
        for name, width in {**parts, "valid": 1, "ready": 1}.items()
    }
    ports = ", ".join(f"input [{width - 1}:0] {name}" for name, width in widths.items())
    run_bench(f"module agents({ports}); endmodule", top="agents", module="hw_tests.agents_bench")
