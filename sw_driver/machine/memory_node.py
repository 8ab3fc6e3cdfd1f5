"""What the RTL's memory-node reaches, by the cycle model."""

from __future__ import annotations

from dataclasses import fields

from golden.cycles import CycleConfig
from golden.cycles.memory_node import GroupCycles
from hw.memory_node.config import MemoryNodeConfig

__all__ = ["group_cycles"]


def group_cycles(config: MemoryNodeConfig, *, wire_cycles: int = 0) -> GroupCycles:
    """What the cycle model needs to know of a group of the node."""

    def of(kind: type, *sources: object) -> dict[str, object]:
        return {
            each.name: next(
                getattr(source, each.name) for source in sources if hasattr(source, each.name)
            )
            for each in fields(kind)
            if any(hasattr(source, each.name) for source in sources)
        }

    part = config.part
    channel = CycleConfig(**of(CycleConfig, config.controller, part.timing, part.geometry))  # type: ignore[arg-type]
    own = of(GroupCycles, config, config.link)
    own.update(links=config.group_links, channels=config.group_channels, channel=channel)
    return GroupCycles(**own, wire_cycles=wire_cycles)  # type: ignore[arg-type]
