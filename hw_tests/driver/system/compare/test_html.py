"""A comparison's page for a browser: whole, the same bytes each time, loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hw_tests.driver.system.compare.test_comparison import GB
from hw_tests.driver.system.compare.test_figures import CASES, HERE, NAMES
from sw_driver.report import Table
from sw_driver.system.compare import html
from sw_driver.system.outcome import Span

TITLE = "net </script> & <b> on v100"
SPANS = (
    Span(lane="host to gpu", name="transfer", begin_ns=0, end_ns=5 * 10**8),
    Span(lane="gpu", name="forward", begin_ns=2 * 10**8, end_ns=9 * 10**8),
)
ROWS = [*HERE[:2], replace(HERE[2], outcome=replace(HERE[2].outcome, spans=SPANS)), HERE[3]]
TABLE = Table(headings=["", "step"], rows=[[name, "1 ms"] for name in NAMES])


def written(folder: Path) -> str:
    sentences = ["Fastest: two"], TABLE
    path = html.write(
        folder / "compare.html", TITLE, *sentences, ROWS, CASES, 9 * GB, ["All is assumed."]
    )
    return path.read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("page"))


def test_page_loads_nothing_and_shows_text_as_text(page: str) -> None:
    assert len(page) < 6 * 10**6
    tags = re.sub(r"(?s)(<script\b[^>]*>).*?</script>", r"\1", page)
    assert "<script" in tags
    assert not re.findall(r"\b(?:src|href)=|@import|url\(|https?:", tags)
    assert "<h1>net &lt;/script&gt; &amp; &lt;b&gt; on v100</h1>" in page
    for text in ("Fastest: two", "All is assumed.", "one: needs at least 20.0 GB", "1 ms</td>"):
        assert text in page


def test_all_that_ran_have_lanes_or_the_sum_of_their_parts(page: str) -> None:
    dot = r"\\u00b7"
    labels = re.findall(rf'"(\w+ {re.escape(dot)} (?:gpu|sum of parts)|host to gpu)"', page)
    both = "two {} sum of parts", "three {} gpu", "host to gpu", "four {} sum of parts"
    assert labels == [label.format(dot) for label in both]
    for kind in ("pareto", "forward", "transfer", "computing", "waiting"):
        assert f'"name":"{kind}"' in page


def test_bytes_are_the_same_each_time(page: str, tmp_path: Path) -> None:
    assert written(tmp_path) == page
