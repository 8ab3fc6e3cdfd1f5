"""The bridges from host requests to the DRAM and to the kernel's registers."""

from __future__ import annotations

import pytest

from hw.axdimm.host_bridge import DramBridge, RegisterBridge
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide

ADDRESS_WIDTH = 14
OUTSTANDING = 4


def test_host_bridges() -> None:
    """Order of reads against writes, reads in flight, error responses, at each amount of stalls."""
    run_bench(
        SideBySide(
            {
                "dram": DramBridge(
                    address_width=ADDRESS_WIDTH, id_width=2, outstanding=OUTSTANDING
                ),
                "registers": RegisterBridge(address_width=ADDRESS_WIDTH),
            }
        ),
        top="host_bridges",
        module="hw_tests.axdimm.host_bridge_bench",
        parameters={"address_width": ADDRESS_WIDTH, "outstanding": OUTSTANDING},
    )


@pytest.mark.parametrize("outstanding", [0, 1, 3, 48])
def test_refuses_outstanding(outstanding: int) -> None:
    with pytest.raises(ValueError, match=f"power of two from 2 to 256, got {outstanding}"):
        DramBridge(address_width=ADDRESS_WIDTH, id_width=2, outstanding=outstanding)
