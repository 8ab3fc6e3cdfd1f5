"""Links of the memory-node: what goes in comes out at the other end, whatever the wire does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hw.memory_node.link.config import LINK_PRESETS, LinkConfig
from hw.memory_node.link.port import LinkPort
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide


@pytest.mark.parametrize(
    ("preset", "options", "delay", "latency", "full_rate"),
    [
        pytest.param("full", {}, 53, 11, True, id="full", marks=pytest.mark.soak),
        pytest.param("tiny", {}, 3, 19, False, id="tiny"),
        pytest.param(
            "tiny",
            {"phit_bytes": 36, "buffer_flits": 24, "replay_flits": 32},
            4,
            13,
            True,
            id="two_phits",
        ),
    ],
)
def test_link(
    preset: str, options: dict[str, Any], delay: int, latency: int, full_rate: bool
) -> None:
    config = replace(LINK_PRESETS[preset], **options)
    run_bench(
        SideBySide({name: LinkPort(config) for name in "ab"}),
        top="link_pair",
        module="hw_tests.memory_node.link.link_bench",
        parameters={
            "preset": preset,
            "options": options,
            "delay": delay,
            "latency": latency,
            "full_rate": full_rate,
            "flits": {72: 120, 36: 70, 9: 25}[config.phit_bytes],
        },
    )


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("phit_bytes", 64, "phit_bytes must be one of 72, 36, 24, 18, 12, 9, got 64"),
        ("buffer_flits", 256, "buffer_flits must be an integer from 2 to 255, got 256"),
        ("replay_flits", 3, "a power of two from 4 to 128, got 3"),
        ("replay_flits", 100, "a power of two from 4 to 128, got 100"),
        ("retry_cycles", 10, "retry_cycles must be an integer from 20"),
        ("keepalive_cycles", 0, "keepalive_cycles must be an integer from 1"),
        ("dead_cycles", 100, "dead_cycles must be an integer from 256"),
        ("dead_retries", True, "got True"),
    ],
)
def test_refuses_what_does_not_fit(option: str, value: int, said: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        LinkConfig(**{option: value})
    assert said in str(refusal.value)
