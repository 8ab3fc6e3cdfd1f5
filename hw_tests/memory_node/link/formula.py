"""How many fabric cycles packets take over a link, by a closed formula."""

from __future__ import annotations

from sw_driver.predict.memory_node.wire import ENTRY_TO_BEGIN, LinkCycles

__all__ = ["fabric_cycles"]


def fabric_cycles(
    link: LinkCycles, *, packets: int, lines: int, channels: int = 1, lost: int = 0, stops: int = 0
) -> int:
    """From taking the first flit of so many packets, each of a head and so many lines, at one end
    to the last one's being there at the other, with ``channels`` alike, and with ``lost`` of the
    flits lost, far from each other; less where a sender waits for acknowledgements or credits
    anyway, if it then has more to do than to wait.

    After each of ``stops`` of a ring there is one more such link. A stop passes a packet on in the
    cycle in which it comes, if it has nothing else to send there."""
    before = packets * (1 + lines) - 1
    interval = link.interval_fabric_cycles
    begins = unhindered = before * interval
    for window, cycles in (
        (link.config.replay_flits, link.acknowledged_fabric_cycles),
        (link.config.buffer_flits * channels, link.credited_fabric_cycles),
    ):
        rounds, rest = divmod(before, window)
        begins = max(begins, rounds * cycles + rest * interval)
    # What a flit costs that is lost, if the port at the other end sees it come and that it is
    # wrong: from its beginning to its beginning again. A sender that is never idle has to end a
    # flit before it goes back.
    retry = link.acknowledged_fabric_cycles - ENTRY_TO_BEGIN
    grid = interval if begins == unhindered else 1
    again = -(-retry // grid) * grid
    return begins + (stops + 1) * link.latency_fabric_cycles + lost * again
