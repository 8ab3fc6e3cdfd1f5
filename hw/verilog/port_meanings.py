"""What the ports of a component mean, from the docstrings that say so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data, stream, wiring

__all__ = ["port_meanings", "summary"]


def summary(component: Any) -> str:
    """The first sentence of a class's docstring, without markup."""
    return _plain((inspect.getdoc(type(component)) or "").partition("\n\n")[0])


def port_meanings(component: wiring.Component) -> dict[str, str]:
    """The meaning of each port, by its name; of those that have one.

    It is what the section *Members* of the component's class says of the member, or that of a class
    to which it refers; that of an interface is followed by what the interface's says of its member.
    """
    meanings: dict[str, str] = {}
    for path, _, value in component.signature.flatten(component):
        names = [str(part) for part in path]
        of_component, of_signature = type(component), type(component.signature)
        found = [_of_member(of_component, names[0]) or _of_member(of_signature, names[0])]
        member = component.signature.members[names[0]]
        if len(names) > 1 and member.is_signature:
            interface: Any = member.signature
            if isinstance(interface, wiring.FlippedSignature):
                interface = interface.flip()
            if not isinstance(interface, stream.Signature):
                found.append(_of_member(type(interface), names[1]) or summary(interface))
        if isinstance(value, data.View) and isinstance(value.shape(), data.StructLayout):
            fields = ", ".join(
                f"{name} {Shape.cast(field.shape).width}" for name, field in value.shape()
            )
            found.append(f"Fields from bit 0, with their widths: {fields}.")
        if text := " ".join(each for each in found if each):
            meanings["_".join(names)] = text
    return meanings


def _of_member(kind: type, name: str) -> str:
    for entry, text in _entries(kind):
        names, _, shape = entry.partition(" : ")
        if not any(re.fullmatch(pattern, name) for pattern in _patterns(names)):
            continue
        if referred := re.match(r"(?:Of|those of|See) :class:`~?([\w.]+)`", text or shape):
            return _of_member(_imported(referred[1], kind), name) or _plain(text)
        return _plain(text) or _plain(shape)
    return ""


def _patterns(names: str) -> Iterator[str]:
    """Regular expressions for the names of an entry, such as ``i_valid, i_NAME of each input``."""
    if names.startswith("all others"):
        yield r"\w+"
    for name in names.split(", "):
        name = re.sub(r" of each \w+$", "", name)
        yield re.sub(r"\d+", r"\\d+", name).replace("NAME", r"\w+").replace(" ", "")


def _entries(kind: type) -> Iterator[tuple[str, str]]:
    """Names and shapes, and what is said of them, in the class's docstring and those above it."""
    for each in kind.__mro__:
        lines = (inspect.cleandoc(each.__doc__ or "")).splitlines()
        if "Members" not in lines:
            continue
        waiting: list[str] = []
        text: list[str] = []
        for line in [*lines[lines.index("Members") + 2 :], "end"]:
            if line.startswith(" "):
                text.append(line.strip())
            elif line:
                if text:
                    yield from ((entry, " ".join(text)) for entry in waiting)
                    waiting, text = [], []
                name, colon, rest = line.partition(": ")
                if name == "all others" and colon:
                    yield name, rest
                elif not re.match(r"[\w., ]+( : .*)?$", line):
                    break
                waiting.append(line)
        # What has no text of its own is described by its shape.
        yield from ((entry, "") for entry in waiting if entry != "end")


def _imported(name: str, near: type) -> type:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module or near.__module__), attribute)


def _plain(text: str) -> str:
    """Text without the markup of the documentation."""
    text = re.sub(r":\w+:`(?:[^`<]*<)?~?([\w.]+)>?`", lambda found: found[1].split(".")[-1], text)
    text = re.sub(r"\s+", " ", text.replace("``", "").replace("`", ""))
    return text.strip()
