"""Block diagrams as SVG: boxes with a name and lines below it, and arrows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["Drawing"]

_STYLE = """<style>
text { font-family: "DejaVu Sans", "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; \
fill: #1b2733; }
.name { font-weight: bold; font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.small { font-size: 11.5px; fill: #44525f; }
.title { font-size: 15px; font-weight: bold; }
rect { rx: 5px; stroke: #5b6b7a; stroke-width: 1.2; fill: #ffffff; }
.ground { fill: #ffffff; stroke: none; }
.area { fill: #f3f6f9; stroke: #b8c4cf; }
.product { fill: #e3eefb; } .model { fill: #e6f4e6; } .sim { fill: #fdf0dc; }
.file { fill: #ffffff; }
.warm { fill: #fbe3d6; } .mild { fill: #fdf3e4; }
path { stroke: #33414e; stroke-width: 1.4; fill: none; marker-end: url(#arrow); }
.both { marker-start: url(#back); }
</style>
<defs>
<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><polygon points="0,0 8,4 0,8" fill="#33414e"/></marker>
<marker id="back" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><polygon points="8,0 0,4 8,8" fill="#33414e"/></marker>
</defs>"""

_INDENT = 10


class Drawing:
    """A drawing of ``width`` by ``height`` pixels, with a title and a description for those who do
    not see it."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            _STYLE,
            f'<rect class="ground" width="{width}" height="{height}"/>',
        ]

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        name: str = "",
        lines: Sequence[str] = (),
        *,
        heading: str = "name",
    ) -> None:
        """A box of a ``kind`` (a class of the style), with its name in bold and lines below."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'
        )
        at = y + 19
        if name:
            self.text(x + _INDENT, at, name, kind=heading)
            at += 17
        for line in lines:
            self.text(x + _INDENT, at, line)
            at += 15

    def text(
        self, x: float, y: float, text: str, *, kind: str = "small", anchor: str = "start"
    ) -> None:
        """One line of text; ``anchor`` is ``start``, ``middle`` or ``end``."""
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def arrow(self, path: str, *, both: bool = False) -> None:
        """An arrow along an SVG path, with two heads if it goes both ways."""
        heads = ' class="both"' if both else ""
        self._parts.append(f'<path{heads} d="{path}"/>')

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])
