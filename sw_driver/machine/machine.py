"""A machine: checked parts, routes between its memories, and overrides by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from ..numbers import NUMBER_FORMS, check_name, parse_integer, parse_number
from .parts import Device, Figure, Link, MachineError, Memory, assumed, settings

__all__ = ["Hop", "Machine"]

_check_name = partial(check_name, error=MachineError)

Hop = tuple[Link, bool]
"""A link, and True if it is written to (from ``a`` to ``b``)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Memories, devices that compute on them, and links between memories and junctions.

    Raises :class:`MachineError` if names are not unique or refer to a missing part.

    Examples
    --------
    >>> from sw_driver.machine.parts import Memory, assumed, link
    >>> guess = assumed(4, "a round number")
    >>> ends = tuple(Memory(name=name, capacity_bytes=guess) for name in ("near", "far"))
    >>> bus = link("bus", "near", "far", guess, guess)
    >>> machine = Machine(name="two", memories=ends, devices=(), links=(bus,))
    >>> machine.override({"bus.read_gb_per_s": "8"}).link("bus").read_gb_per_s.value
    8.0
    """

    name: str
    memories: tuple[Memory, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    junctions: tuple[str, ...] = ()
    """Ends of links that are not memories, such as a PCIe root."""

    def __post_init__(self) -> None:
        names = [memory.name for memory in self.memories]
        nodes = [*names, *self.junctions]
        for kind, members in (
            ("memories and junctions", nodes),
            ("devices", [device.name for device in self.devices]),
            ("links", [link.name for link in self.links]),
        ):
            for name in members:
                if members.count(name) > 1:
                    raise MachineError(f"{self.name}: two {kind} are named {name!r}")
        for device in self.devices:
            _check_name(f"{self.name}: the memory of device {device.name}", device.memory, names)
        for link in self.links:
            for end in (link.a, link.b):
                _check_name(f"{self.name}: an end of link {link.name}", end, nodes)

    def memory(self, name: str) -> Memory:
        """Return the memory of this name; raise :class:`MachineError` if there is none."""
        return self._named("memory", self.memories, name)

    def device(self, name: str) -> Device:
        """Return the device of this name; raise :class:`MachineError` if there is none."""
        return self._named("device", self.devices, name)

    def link(self, name: str) -> Link:
        """Return the link of this name; raise :class:`MachineError` if there is none."""
        return self._named("link", self.links, name)

    def route(self, source: str, target: str) -> tuple[Hop, ...]:
        """Return the shortest route between two memories; of equal ones the first in the list.

        A route never passes through a third memory: that would be two transfers. An end may be a
        junction, for reads and writes of a processor there. Raises :class:`MachineError` if there
        is no route.
        """
        nodes = [*(memory.name for memory in self.memories), *self.junctions]
        for end in (source, target):
            _check_name(
                f"{self.name}: an end of the route from {source!r} to {target!r}", end, nodes
            )
        if source == target:
            raise MachineError(f"{self.name}: no transfer is needed from {source!r} to itself")
        routes: dict[str, tuple[Hop, ...]] = {source: ()}
        reached = [source]
        for node in reached:
            if node != source and node not in self.junctions:
                continue
            for link, other, writing in self._neighbours.get(node, ()):
                if other not in routes:
                    routes[other] = (*routes[node], (link, writing))
                    reached.append(other)
        if target not in routes:
            raise MachineError(
                f"{self.name}: no link or chain of links leads from {source!r} to {target!r}"
                " without another memory in between"
            )
        return routes[target]

    def override(
        self,
        changes: Mapping[str, str | Figure],
        mark: Callable[[int | float, str], Figure] = assumed,
    ) -> Machine:
        """Return a copy with other values: ``{"gpu.capacity_bytes": "16GiB", "ddr.sharing": ...}``.

        A key is a part's name, a dot, and the name of a setting; see :attr:`keys`. Numbers are
        written in the forms of :mod:`sw_driver.numbers`. ``mark`` makes the figure of a new value;
        a figure stays as it is.
        Raises :class:`MachineError` for an unknown key or an impossible value.
        """
        changed: dict[str, Figure | str] = {}
        for key, new in changes.items():
            _check_name(f"{self.name}: the key", key, self.keys)
            before = self.keys[key]
            if isinstance(new, Figure):
                changed[key] = str(new.value) if isinstance(before, str) else new
            else:
                changed[key] = new if isinstance(before, str) else _figure(key, new, before, mark)

        def others(parts: tuple) -> tuple:
            keys = [{f"{part.name}.{name}": name for name in settings(part)} for part in parts]
            return tuple(
                replace(part, **{names[key]: changed[key] for key in names if key in changed})
                for part, names in zip(parts, keys, strict=True)
            )

        return replace(
            self,
            memories=others(self.memories),
            devices=others(self.devices),
            links=others(self.links),
        )

    @cached_property
    def keys(self) -> dict[str, Figure | str]:
        """Settings that :meth:`override` can change, with their present values.

        A device may share its name with its memory: their keys differ in the part after the dot.
        """
        return {
            f"{part.name}.{name}": getattr(part, name)
            for part in (*self.memories, *self.devices, *self.links)
            for name in settings(part)
        }

    def describe(self) -> dict[str, Any]:
        """Return the name and all :attr:`keys` with their values, ready for JSON."""
        values = {
            key: figure if isinstance(figure, str) else figure.value
            for key, figure in self.keys.items()
        }
        return {"name": self.name, "settings": values}

    @cached_property
    def _neighbours(self) -> dict[str, list[tuple[Link, str, bool]]]:
        neighbours: dict[str, list[tuple[Link, str, bool]]] = {}
        for link in self.links:
            neighbours.setdefault(link.a, []).append((link, link.b, True))
            neighbours.setdefault(link.b, []).append((link, link.a, False))
        return neighbours

    def _named(self, kind: str, parts: tuple, name: str) -> Any:
        for part in parts:
            if part.name == name:
                return part
        return _check_name(f"{self.name}: {kind}", name, [part.name for part in parts])


def _figure(
    key: str, text: str, before: Figure, mark: Callable[[int | float, str], Figure]
) -> Figure:
    whole = key.endswith(("_bytes", "_ns"))
    value = None
    if isinstance(text, str):
        value = parse_integer(text) if whole else parse_number(text)
    if value is None:
        forms = NUMBER_FORMS if whole else "a number, such as 6.4"
        raise MachineError(f"{key} is {text!r}: expected {forms}")
    return mark(value, f"set in place of {before.value} ({before.mark}: {before.source})")
