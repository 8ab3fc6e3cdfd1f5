"""Several managers of AXI4-Lite on one subordinate."""

from __future__ import annotations

import pytest

from hw.csr.axi4_lite_arbiter import AXI4LiteArbiter
from hw_tests.bench import run_bench


@pytest.mark.parametrize("managers", [2, 3])
def test_arbiter(managers: int) -> None:
    run_bench(
        AXI4LiteArbiter(managers, addr_width=12, data_width=64),
        top="axi4_lite_arbiter",
        module="hw_tests.csr.axi4_lite_arbiter_bench",
        parameters={"managers": managers},
    )


def test_refuses_a_single_manager() -> None:
    with pytest.raises(ValueError, match="managers must be 2 or more, got 1"):
        AXI4LiteArbiter(1, addr_width=12, data_width=64)
