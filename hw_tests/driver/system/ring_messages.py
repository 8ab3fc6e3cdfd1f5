"""A collective on a ring, message by message."""

from __future__ import annotations

from sw_driver.machine import Machine, Memory, assumed, link
from sw_driver.system.clock import ProcessSteps
from sw_driver.system.collectives import RingLane
from sw_driver.system.engine import Engine


def simulate(lane: RingLane, kind: str, nbytes: int, *, record: bool = False) -> Engine:
    """The engine's time is what it takes."""
    gaps, count, hops = lane.gaps, len(lane.gaps), sum(lane.gaps)
    engine = Engine(_ring(lane, hops), record=record)

    def send(node: int, size: int, hops_left: int) -> ProcessSteps:
        for here in range(node, node + hops_left):
            ends = f"n{here % hops}", f"n{(here + 1) % hops}"
            yield engine.queue(f"link {here % hops}").transfer(size, *ends, "message")
            yield engine.clock.timeout(lane.hop_ns)

    part, senders = nbytes, [(0, hops - gaps[-1])]
    if kind != "broadcast":
        part = -(-nbytes // count)
        steps = {"all-gather": 1, "all-reduce": 2}[kind] * (count - 1)
        senders = [
            (sum(gaps[:number]), sum(gaps[(number + step) % count] for step in range(steps)))
            for number in range(count)
        ]
    for start, onward in senders:
        for size in lane.messages(part):
            engine.process(send(start, size, onward), f"message of {start}")
    engine.run()
    return engine


def _ring(lane: RingLane, hops: int) -> Machine:
    why = "of the lane"
    rate, latency = assumed(lane.gb_per_s, why), assumed(0, "apart: a link is free before")
    names = [f"n{number}" for number in range(hops)]
    return Machine(
        name="ring",
        memories=tuple(Memory(name=name, capacity_bytes=assumed(1, why)) for name in names),
        devices=(),
        links=tuple(
            link(f"link{number}", name, names[(number + 1) % hops], rate, latency)
            for number, name in enumerate(names)
        ),
    )
