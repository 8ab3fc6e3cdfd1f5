"""What the kernel's configuration derives and refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Any

import pytest

from hw.axdimm.config import MODULE_PRESETS
from hw.kernel.config import NARROW_RULES, KernelConfig
from hw.kernel.narrow_lanes import NarrowLanes
from hw.kernel.registers import kernel_map
from hw.narrow.formats import CHOICES, Formats


def test_defaults_are_the_papers_machine() -> None:
    config = KernelConfig()
    assert config == MODULE_PRESETS["axdimm"].kernel
    assert (config.lanes, config.block_bytes) == (16, 16384)
    assert (config.block_beats, config.fifo_beats, config.cycles_per_beat) == (256, 512, 1)
    assert config.memory_bytes == 16 * 2**30 - 2 * 4096


def test_four_lanes_take_four_cycles() -> None:
    assert KernelConfig(lanes=4).cycles_per_beat == 4


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        *(({"lanes": lanes}, "lanes") for lanes in (0, 3, 32, -1)),
        *(({"block_bytes": size}, "block_bytes") for size in (0, 64, 1000, 131072, 1024.0)),
        *(({"buffer_blocks": blocks}, "buffer_blocks") for blocks in (0, 17, 1.5)),
        *(({"address_width": width}, "address_width") for width in (15, 41, "34")),
        *(({"clocking": way}, "clocking") for way in ("latched", "", None)),
        *(({"subnormals": way}, "subnormals") for way in ("dropped", True)),
        *(({"memory_bytes": size}, "memory_bytes") for size in (0, 100, (1 << 34) + 64)),
        *(({"narrow": way}, "narrow") for way in (1, "yes")),
        ({"narrow": True, "block_bytes": 4096}, "block_bytes"),
        (
            {"narrow": True, "lanes": 2, "address_width": 36, "memory_bytes": (2 << 34) + 64},
            "memory_bytes",
        ),
    ],
    ids=str,
)
def test_refuses(changes: dict[str, Any], name: str) -> None:
    value = changes[name]
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value!r}"):
        KernelConfig(**changes)


def test_narrow_kernels_have_rules_with_states() -> None:
    assert NARROW_RULES == ("adam", "adamw")
    with pytest.raises(ValueError, match=r"rules must be of adam, adamw .*, got 'sgd'"):
        KernelConfig(narrow=True, rules=("adam", "sgd"))


def test_registers_name_the_formats_as_runs_do() -> None:
    fields = kernel_map(narrow=True)["formats"].fields
    assert [each.name for each in fields] == [*CHOICES, "skip_not_finite"]
    for each, choice in zip(fields, CHOICES, strict=False):
        codes = {Formats(**{choice: name}).code(): name for name in CHOICES[choice]}
        assert codes == {code << each.lsb: name for name, code in each.encoding}
    assert Formats(skip_not_finite=True).code() == fields[-1].mask


def test_narrow_kernels_wait_for_random_words() -> None:
    config = KernelConfig(narrow=True)
    quick = SimpleNamespace(latency=20)
    with pytest.raises(ValueError, match=r"units must take more than \d+ cycles .*, got \[20\]"):
        NarrowLanes(config, units=[quick])


def test_refuses_unknown_names() -> None:
    settings: dict[str, Any] = {"lane": 4}
    with pytest.raises(TypeError, match="lane"):
        KernelConfig(**settings)


def test_is_frozen() -> None:
    config: Any = KernelConfig()
    with pytest.raises(FrozenInstanceError):
        config.lanes = 4


@pytest.mark.parametrize("preset", MODULE_PRESETS)
def test_rounds_cover_the_memory(preset: str) -> None:
    config = MODULE_PRESETS[preset].kernel
    beats = config.memory_bytes // 64
    last_round = (beats - 1) // config.block_beats
    assert last_round < 1 << config.rounds["last_round"].width
    assert config.block_beats < 1 << config.rounds["tail_beats"].width
