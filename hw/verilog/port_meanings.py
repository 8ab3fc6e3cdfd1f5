"""Meanings of a component's ports, from the docstrings of classes."""

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
    """Return the summary of a class's docstring, without markup."""
    return _plain((inspect.getdoc(type(component)) or "").partition("\n\n")[0])


def port_meanings(component: wiring.Component) -> dict[str, str]:
    """Return the meaning of each documented port, by the port's name.

    A meaning comes from the section *Members* of the component's class, or of a class that the
    section refers to. For a port of an interface, the meaning from the interface's class follows.
    """
    meanings: dict[str, str] = {}
    for path, _, value in component.signature.flatten(component):
        names = [str(part) for part in path]
        of_component, of_signature = type(component), type(component.signature)
        texts = [_of_member(of_component, names[0]) or _of_member(of_signature, names[0])]
        member = component.signature.members[names[0]]
        if len(names) > 1 and member.is_signature:
            interface: Any = member.signature
            if isinstance(interface, wiring.FlippedSignature):
                interface = interface.flip()
            if not isinstance(interface, stream.Signature):
                texts.append(_of_member(type(interface), names[1]) or summary(interface))
        if isinstance(value, data.View) and isinstance(value.shape(), data.StructLayout):
            fields = ", ".join(
                f"{name} {Shape.cast(field.shape).width}" for name, field in value.shape()
            )
            texts.append(f"Fields from bit 0, with their widths: {fields}.")
        if text := " ".join(part for part in texts if part):
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
    """Yield regular expressions for the names of an entry such as ``i_valid, i_NAME of each x``.

    A remark in parentheses after the names is not one of them.
    """
    names = re.sub(r" \(.*\)$", "", names)
    if names.startswith("all others"):
        yield r"\w+"
    for name in names.split(", "):
        name = re.sub(r" of each \w+$", "", name)
        yield re.sub(r"\d+", r"\\d+", name).replace("NAME", r"\w+").replace(" ", "")


def _entries(kind: type) -> Iterator[tuple[str, str]]:
    """Yield names with shapes, and their descriptions, in docstrings of a class and its bases."""
    for cls in kind.__mro__:
        lines = (inspect.cleandoc(cls.__doc__ or "")).splitlines()
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
                elif not re.match(r"[\w., ]+( \(.*?\))?( : .*)?$", line):
                    break
                waiting.append(line)
        # An entry without a description is described by its shape.
        yield from ((entry, "") for entry in waiting if entry != "end")


def _imported(name: str, near: type) -> type:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module or near.__module__), attribute)


def _plain(text: str) -> str:
    """Return text without the markup of the documentation."""
    text = re.sub(r":\w+:`(?:[^`<]*<)?~?([\w.]+)>?`", lambda match: match[1].split(".")[-1], text)
    text = re.sub(r"\s+", " ", text.replace("``", "").replace("`", ""))
    return text.strip()
