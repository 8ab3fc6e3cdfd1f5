"""XML documents with reproducible text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

__all__ = ["child", "document"]


def child(parent: ET.Element, tag: str, text: str | None = None, **attributes: str) -> ET.Element:
    """Append a new element to ``parent`` and return it."""
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def document(root: ET.Element) -> str:
    """Return the text of a document."""
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
