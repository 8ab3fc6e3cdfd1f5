"""The checker and the peer of the memory-node's links, against each other and known values."""

from __future__ import annotations

import random

import pytest

from golden.memory_node.packet import Operation, Packet
from hw_tests.memory_node.link.checker import LinkRules, PortChecker
from hw_tests.memory_node.link.flit import Flit, crc32c
from hw_tests.memory_node.link.noise import NOISES, NoisyWire
from hw_tests.memory_node.link.peer import Habits, LinkPeer
from hw_tests.memory_node.link.phits import Phit, PhitReader, phits_of

RULES = LinkRules(
    phit_bytes=24, buffer_flits=5, replay_flits=16, retry_cycles=120, keepalive_cycles=40
)


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_crc_is_that_of_the_standard(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_fields_are_where_the_page_has_them() -> None:
    flit = Flit(
        filled=True, tail=True, channel=2, sequence=0xA5, acknowledge=0x3C, retry=True,
        credits=0x81, credit_channel=1, payload=bytes(range(64)),
    )  # fmt: skip
    word = int.from_bytes(flit.encode(), "little")
    fields = {0: (1, 1), 1: (1, 0), 2: (1, 1), 3: (2, 2), 5: (8, 0xA5), 13: (8, 0x3C), 21: (1, 1)}
    fields |= {22: (8, 0x81), 30: (2, 1), 32 + 8 * 63: (8, 63)}
    for at, (width, value) in fields.items():
        assert word >> at & (1 << width) - 1 == value
    assert Flit.decode(flit.encode()) == flit
    for bit in range(576):
        assert Flit.decode((word ^ 1 << bit).to_bytes(72, "little")) is None


def test_a_flit_that_has_begun_ends_the_one_before() -> None:
    reader = PhitReader()
    one, other = (phits_of(Flit(sequence=n).encode(), 18) for n in (1, 2))
    stray = Phit(False, bytes(18))
    found = [reader.read(phit) for phit in (stray, *one[:3], *other, stray, *one)]
    ends = [[] for _ in range(14)]
    ends[4] = [None]
    ends[7], ends[12] = [Flit(sequence=2)], [Flit(sequence=1)]
    assert found == ends[: len(found)]


def test_a_packet_is_what_its_flits_say() -> None:
    packet = Packet(
        destination=3, source=9, operation=Operation.WRITE, tag=0xBEEF, lines=2,
        address=0x123456789ABC, data=bytes(range(128)),
    )  # fmt: skip
    head = int.from_bytes(packet.payloads[0], "little")
    fields = {0: 3, 8: 9, 16: 2, 24: 0, 32: 0xBEEF, 48: 2, 64: 0x123456789ABC}
    assert head == sum(value << at for at, value in fields.items())
    assert Packet.of(packet.payloads) == packet


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    "habits",
    [
        Habits(),
        Habits(pause=0.3, hold=0.5, late_cycles=30),
        Habits(go_back=0.02, ask=0.02, idle_flit=0.2),
    ],
    ids=["eager", "slow", "nervous"],
)
def test_peers_understand_each_other(habits: Habits, noise: str) -> None:
    chance = random.Random(f"{habits} {noise}")
    peers = [LinkPeer(RULES, habits, f"{noise} {n}") for n in range(2)]
    checkers = [PortChecker(str(n), RULES, turn_cycles=None) for n in range(2)]
    wires = [NoisyWire(noise, RULES.phit_bytes, delay=4, seed=n) for n in range(2)]
    given = []
    for peer in peers:
        for queue in peer.queues:
            queue.extend((False, True, chance.randbytes(64)) for _ in range(40))
        given.append([list(queue) for queue in peer.queues])
    arrives: list[Phit | None] = [None, None]
    for _ in range(100_000):
        before = [[len(channel) for channel in peer.taken] for peer in peers]
        sends = [peer.step(phit) for peer, phit in zip(peers, arrives, strict=True)]
        for n, checker in enumerate(checkers):
            now = [len(channel) for channel in peers[n].taken]
            took = [c for c in range(4) for _ in range(now[c] - before[n][c])]
            checker.step(sent=sends[n], received=arrives[n], taken=took)
        arrives = [wires[1].carry(sends[1]), wires[0].carry(sends[0])]
        if [peer.taken for peer in peers] == given[::-1]:
            break
    assert [peer.taken for peer in peers] == given[::-1]
    assert (noise == "none") == (wires[0].harmed + wires[1].harmed == 0)
    for n, checker in enumerate(checkers):
        assert checker.taken == sum(map(len, given[1 - n]))
