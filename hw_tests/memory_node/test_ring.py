"""The memory-node's stops of rings: pass through, date line, dead links."""

from __future__ import annotations

from hw.memory_node.ring.detour import Detour
from hw.memory_node.ring.stop import RingStop
from hw_tests.bench import run_bench
from hw_tests.memory_node.ring_of_stops import RingOfStops
from hw_tests.side_by_side import SideBySide

_STOPS = 4
_LINKS = 3


def test_ring() -> None:
    run_bench(
        SideBySide({"stop": RingStop(), "ring": RingOfStops(_STOPS), "detour": Detour(_LINKS)}),
        top="rings",
        module="hw_tests.memory_node.ring_bench",
        parameters={"stops": _STOPS, "links": _LINKS},
    )
