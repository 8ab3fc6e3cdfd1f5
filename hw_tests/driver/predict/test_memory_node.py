"""The cycle model of a memory-node's group beside the RTL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw_tests.driver.memory_node.validate import all_traffic, compared
from sw_driver.machine.mc_dla import MC_DLA, MC_DLA_RTL, parts_of
from sw_driver.predict.memory_node import Request, answered_fabric_cycles
from sw_driver.predict.memory_node.rates import link_gb_per_s, memory_gb_per_s

TINY = MEMORY_NODE_PRESETS["tiny"]
PAPER = MEMORY_NODE_PRESETS["paper"]


def test_model_takes_what_the_rtl_takes() -> None:
    for traffic, rtl, model in compared(TINY, all_traffic(TINY), lines=2048):
        assert model == pytest.approx(rtl, rel=0.01), traffic


def _steady(links: list[list[Request]], config: MemoryNodeConfig = PAPER) -> float:
    """Fabric cycles of the middle half of each link's requests."""
    answered = answered_fabric_cycles(config, links)
    return max(each[len(each) * 3 // 4] - each[len(each) // 4] for each in answered if each)


@pytest.mark.parametrize("phit_bytes", [72, 36, 9])
def test_a_link_gives_its_flits_and_no_more(phit_bytes: int) -> None:
    reads = [[Request(False, 64 * page, 64) for page in range(40)], [], []]
    config = replace(PAPER, link=replace(PAPER.link, phit_bytes=phit_bytes))
    assert _steady(reads, config) == 20 * 65 * 72 // phit_bytes


def test_a_channel_gives_a_line_a_cycle_and_no_more() -> None:
    # Each fifth stripe is in the same channel.
    stripe = PAPER.stripe_lines
    links = [
        [Request(False, stripe * 5 * (64 * link + n), stripe) for n in range(64)]
        for link in range(3)
    ]
    assert _steady(links) >= 32 * 3 * stripe


def test_a_window_bounds_what_is_under_way() -> None:
    """With two requests a link waits for memory between them."""
    reads = [[Request(False, 64 * page, 1) for page in range(40)], [], []]
    assert _steady(reads, replace(PAPER, requests=2)) > 1.5 * _steady(reads)


def test_a_write_is_stored_before_it_is_read() -> None:
    page = [Request(True, 0, 64), Request(False, 0, 64)]
    other = [Request(True, 0, 64), Request(False, 64, 64)]
    (one, *_), (two, *_) = (answered_fabric_cycles(PAPER, [each, [], []]) for each in (page, other))
    assert one[0] == two[0]
    assert one[1] > two[1]


def test_the_papers_node_has_the_rates_that_the_systems_ask() -> None:
    """A link's 400 MHz less a flit of 65; memory's less refreshes and turns, within a batch of
    refreshes of the validation's 294.2 bytes a cycle."""
    assert link_gb_per_s(PAPER) == pytest.approx(25.6 * 64 / 65, rel=1e-6)
    assert memory_gb_per_s(PAPER) == pytest.approx(294.2 * 2 * 0.4, rel=0.01)
    parts = parts_of(MC_DLA_RTL)
    assert parts.link("link").read_gb_per_s.value == link_gb_per_s(PAPER)
    assert parts.link("dimms").write_gb_per_s.value == memory_gb_per_s(PAPER)
    assert parts.link("pcie") == MC_DLA.link("pcie")


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([[]], "expected requests for 3 links, got 1"),
        ([[Request(False, 0, 65)], [], []], "lines of a request is 65: expected"),
        ([[], [Request(True, -1, 1)], []], "line of a request is -1: expected"),
    ],
)
def test_refuses_what_is_no_request(links: list[list[Request]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        answered_fabric_cycles(PAPER, links)
