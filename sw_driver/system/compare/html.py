"""Page of a comparison for a browser: one file that loads no other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bokeh import models
from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment

from sw_driver.files import write_whole
from sw_driver.report import Table

from .comparison import Row
from .plots import pareto, timeline, varied
from .variation import Variation

__all__ = ["write"]

_TITLES = {"memory": "GPU memory", "links": "links of the GPU", "batch": "batch"}
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.45 Helvetica, Arial, sans-serif; color: #222; width: 1160px; margin: 24px auto }
h1 { font-size: 22px } h2 { font-size: 18px; margin: 34px 0 6px }
p { max-width: 900px; margin: 6px 0 12px } summary { cursor: pointer; margin-top: 8px }
table { border-collapse: collapse; font-size: 13px } th { border-bottom: 1px solid #222 }
td, th { padding: 3px 14px 3px 0; text-align: right; vertical-align: top }
td { border-bottom: 1px solid #e3e3e3 } .words { text-align: left }
</style>
{{ scripts|safe }}</head>
<body><h1>{{ title }}</h1>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
<table>{% for line in lines if line %}{% set tag = "th" if loop.first else "td" %}
<tr>{% for cell in line %}<{{ tag }}{% if loop.index0 in words %} class="words"{% endif -%}
>{{ cell }}</{{ tag }}>{% endfor %}</tr>{% endfor %}
</table>
{% if reasons %}<details><summary>Systems that cannot run it, and why</summary>
<ul>{% for reason in reasons %}<li>{{ reason }}</li>{% endfor %}</ul></details>{% endif %}
<details><summary>Assumptions</summary>
<ol>{% for text in assumptions %}<li>{{ text }}</li>{% endfor %}</ol></details>
<h2>Step time and GPU memory</h2>
<p>Left and low is better. A large mark is a system on this GPU. Small ones are on GPUs with less or
more memory, hollow where they take more than this GPU has. A click on a name shows or hides it.</p>
{{ plots.pareto|safe }}
<h2>One step</h2>
<p>Drag over an interval to zoom in; <i>reset</i> is among the tools. A black line ends a step; some
may lie to the right of the plot, so zoom out or move it. Rows named <i>sum of parts</i> have no
schedule: the parts of their time stand one behind the other, as a sum and not in their order.</p>
{{ plots.timeline|safe }}
<h2>Other memory, links and batches</h2>
<p>A line has a gap where a system cannot run. The slider chooses the value that bars show; bars
with an arrow are cut off.</p>
{{ plots.sensitivity|safe }}
{{ script|safe }}</body></html>
"""


def write(
    path: Path,
    title: str,
    sentences: Iterable[str],
    table: Table,
    rows: Sequence[Row],
    cases: Mapping[str, Variation],
    capacity: int,
    assumptions: Iterable[str],
) -> Path:
    """Write the page of one network, and return its path.

    ``sentences`` and ``table`` come first. ``rows``, ``cases`` and ``capacity`` are those of
    :func:`~sw_driver.system.compare.figures.draw`. The same arguments give the same bytes.
    """
    tabs = [
        models.TabPanel(child=varied(rows, name, steps, capacity), title=_TITLES.get(name, name))
        for name, steps in cases.items()
    ]
    plots = {"pareto": pareto(rows, cases["memory"], capacity), "timeline": timeline(rows)}
    script, plots = components({**plots, "sensitivity": models.Tabs(tabs=tabs)})
    page = Environment(autoescape=True).from_string(_PAGE)
    scripts = Resources(mode="inline", components=["bokeh", "bokeh-widgets"]).render()
    reasons = [f"{one.system.name}: {one.reason}" for one in rows if one.outcome is None]
    given = {
        "title": title,
        "sentences": sentences,
        "words": table.words,
        "assumptions": assumptions,
    }
    text = page.render(
        given,
        lines=[table.headings, *table.rows],
        scripts=scripts,
        script=script,
        plots=plots,
        reasons=reasons,
    )
    # Bokeh's identifiers differ by run.
    numbers: dict[str, str] = {}
    identifier = r'(?<=")(p\d{4,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(?=")'
    text = re.sub(identifier, lambda one: numbers.setdefault(one[0], f"id{len(numbers)}"), text)
    write_whole(path, text)
    return path
