"""The arbiter between a host, a kernel and a memory that are not ours."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from hw.axdimm.arbiter import Arbiter
from hw.axdimm.host_port import MIN_READ_LATENCY, HostPort
from hw.axdimm.memory_join import ExclusiveJoin
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.soak import for_soak

PARAMETERS: dict[str, Any] = {
    "address_width": 20,
    "read_latency": 40,
    "lanes": 4,
    "block_bytes": 1024,
    "rules": [0xDEADBEEF, 7],
}


def arbiter(*, address_width: int, read_latency: int, **settings: Any) -> Arbiter:
    port = HostPort(address_width=address_width, read_latency=read_latency)
    return Arbiter(join=ExclusiveJoin(addr_width=address_width), port=port, **settings)


@cache
def verilog() -> str:
    return to_verilog(arbiter(**PARAMETERS), "arbiter")


@pytest.mark.parametrize("stalls", ["none", *for_soak("random"), "heavy"])
def test_arbiter(stalls: str) -> None:
    """Modes, draining, fixed latency, refusals and every counter, at each amount of stalls."""
    run_bench(
        verilog(),
        top="arbiter",
        module="hw_tests.axdimm.arbiter_bench",
        parameters={**PARAMETERS, "stalls": stalls},
    )


def test_registers_answer_in_time_with_the_shortest_latency() -> None:
    parameters = {**PARAMETERS, "read_latency": MIN_READ_LATENCY}
    run_bench(
        arbiter(**parameters),
        top="arbiter",
        module="hw_tests.axdimm.arbiter_bench",
        parameters={**parameters, "stalls": "none"},
        testcase="constants_and_inputs_are_readable",
    )


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("address_width", 13, "at least 14"),
        ("read_latency", 4, "from 5 to 512"),
    ],
)
def test_refuses(parameter: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        arbiter(**{**PARAMETERS, parameter: value})
    assert str(value) in str(error.value)
