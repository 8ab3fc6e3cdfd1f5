"""How many actions a second the engine does on this machine.

``python -m hw_tests.driver.system.engine_speed``
"""

from __future__ import annotations

from time import process_time

from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.system.engine import Engine

ACTIONS = 100_000


def executes(engine: Engine) -> int:
    """Two queues, each of which waits for the other at each fourth entry."""
    queues, before = [engine.queue("a"), engine.queue("b")], ()
    for number in range(ACTIONS):
        queue = queues[number % 8 < 4]
        action = queue.execute(100 + number % 7, "op", before if number % 4 == 0 else ())
        before = (action,)
    return ACTIONS


def transfers(engine: Engine, flows: int) -> int:
    """So many queues of transfers, over links that they share."""
    ways = [("host", "gpu"), ("gpu", "module0"), ("nvme", "module1"), ("module0", "host")]
    for number in range(ACTIONS // 4):
        source, target = ways[number % flows]
        engine.queue(source + target).transfer(
            100_000 + number * 7919 % 50_000, source, target, "t"
        )
    return ACTIONS // 4


def mixed(engine: Engine) -> int:
    """As in a training step: most is computed, each eighth entry is moved, and waited for."""
    ways = [("host", "gpu"), ("gpu", "module0"), ("nvme", "module1")]
    compute, after = engine.queue("compute"), ()
    for number in range(ACTIONS):
        if number % 8:
            compute.execute(5_000 + number % 7, "op", after)
            after = ()
        else:
            source, target = ways[number // 8 % 3]
            moves = engine.queue(source + target)
            after = (moves.transfer(100_000 + number * 7919 % 50_000, source, target, "t"),)
    return ACTIONS


def main() -> None:
    workloads = {
        "executes, with waits": executes,
        **{f"{n} transfers at once": lambda e, n=n: transfers(e, n) for n in (1, 2, 3, 4)},
        "a training step's mix": mixed,
    }
    for name, workload in workloads.items():
        best = 0.0
        for _ in range(3):
            engine = Engine(AXDIMM_PLATFORM)
            begin = process_time()
            actions = workload(engine)
            engine.run()
            best = max(best, actions / (process_time() - begin))
        print(f"{name:24} {best:10,.0f} actions/s")


if __name__ == "__main__":
    main()
