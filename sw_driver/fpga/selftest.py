"""Self test of a design: Verilog for simulators and FPGAs, with inputs and expected outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hw.float.operator import FloatOperator
from hw.kernel.kernel import Kernel
from hw.kernel.unit import RuleUnit

from .templating import fill
from .vectors import VECTORS, Vector, kernel_run, operator_vectors, unit_vectors

__all__ = ["selftest_files"]

Ports = Sequence[Mapping[str, Any]]


def selftest_files(component: Any, description: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a design's self test by name, the Verilog first; empty if it has none.

    Raises ``ValueError`` if the expected outputs cannot be computed.
    """
    name, ports = description["name"], description["ports"]
    if isinstance(component, Kernel):
        return _kernel(component, name, ports)
    if isinstance(component, RuleUnit):
        constants, vectors = unit_vectors(component)
        rule = component.rule
        operands, results = rule.inputs, (*rule.outputs, *rule.sums)
        return _stream(name, ports, component.latency, constants, operands, results, vectors)
    if isinstance(component, FloatOperator):
        vectors = operator_vectors(component)
        return _stream(name, ports, component.latency, {}, component.operands, ("y",), vectors)
    return {}


def _stream(
    name: str,
    ports: Ports,
    latency: int,
    constants: Mapping[str, int],
    operands: Sequence[str],
    results: Sequence[str],
    vectors: Sequence[Vector],
) -> dict[str, str]:
    width = next(port["width"] for port in ports if port["name"] == f"o_{results[0]}")
    joined = {f"o_{result}": _part("found", place, width) for place, result in enumerate(results)}
    joined |= {f"i_{name}": _part("operand", place, width) for place, name in enumerate(operands)}
    joined |= {name: f"{width}'h{value:0{width // 4}x}" for name, value in constants.items()}
    text = fill(
        "stream_selftest.v",
        name=name,
        vectors=VECTORS,
        latency=latency,
        count_bits=VECTORS.bit_length(),
        # A rule without inputs gets one unused operand.
        operands_high=max(len(operands), 1) * width - 1,
        results_high=len(results) * width - 1,
        connections=connections(ports, joined, {"clk", "rst", "i_valid", "o_valid"}),
    )
    columns = {
        f"{name}_{file}.hex": "".join(f"{_joined(row[side], width)}\n" for row in vectors)
        for side, file in enumerate(("operands", "results"))
    }
    return {f"{name}_selftest.v": text, **columns}


def _kernel(kernel: Kernel, name: str, ports: Ports) -> dict[str, str]:
    run = kernel_run(kernel.config)
    widths = {port["name"]: port["width"] for port in ports}
    ready_made = {"m_axi_bresp": "2'b00", "m_axi_rresp": "2'b00"}
    # Signals that the template's Verilog declares.
    declared = {
        *(port for port in widths if port.startswith(("m_axi_", "s_axi_"))),
        *("clk", "rst"),
    }
    text = fill(
        "kernel_selftest.v",
        name=name,
        lines=len(run.before),
        line_bits=len(run.before).bit_length() - 1,
        steps=len(run.script),
        step_bits=(len(run.script)).bit_length(),
        address_bits=widths["m_axi_awaddr"],
        register_bits=widths["s_axi_awaddr"],
        connections=connections(ports, ready_made, declared),
    )
    script = "".join(f"{kind:02x}{place:04x}{data:016x}\n" for kind, place, data in run.script)
    # The first byte in memory is the lowest; in Verilog the last digits are the lowest.
    image = "".join(f"{line[::-1].hex()}\n" for line in (*run.before, *run.after))
    vectors = {f"{name}_script.hex": script, f"{name}_image.hex": image}
    return {f"{name}_selftest.v": text, **vectors}


def connections(ports: Ports, joined: Mapping[str, str], declared: set[str]) -> str:
    """Return the port connections of an instance.

    A port in ``joined`` connects to its value there, a port in ``declared`` to the signal of its
    name. Other inputs are 0, other outputs are open.
    """

    def target(port: Mapping[str, Any]) -> str:
        name = port["name"]
        if name in joined:
            return joined[name]
        if name in declared:
            return name
        return f"{port['width']}'b0" if port["direction"] == "input" else ""

    return ",\n".join(f"      .{port['name']}({target(port)})" for port in ports)


def _part(signal: str, place: int, width: int) -> str:
    return f"{signal}[{(place + 1) * width - 1}:{place * width}]"


def _joined(values: Sequence[int], width: int) -> str:
    digits = max(len(values), 1) * width // 4
    return f"{sum(value << place * width for place, value in enumerate(values)):0{digits}x}"
