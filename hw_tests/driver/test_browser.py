"""Pages in Debian's Chromium, started once: they open, zoom and change, and load nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hw_tests.driver.system.compare.test_html import written

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        shutil.which("chromium") is None,
        reason="Chromium is not installed (Debian package chromium)",
    ),
]

ROOT = Path(__file__).parents[2]
READY = "() => window.Bokeh?.documents.length && Bokeh.documents[0].is_idle"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """Opens a file offline; fails at the end if it loaded others or wrote complaints."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    complaints: list[str] = []
    wanted: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: wanted.append(request.url))
    page.on(
        "console",
        lambda message: message.type in ("error", "warning") and complaints.append(message.text),
    )

    def go(file: Path) -> Any:
        page.goto(file.as_uri())
        return page

    yield go
    context.close()
    assert not complaints
    assert not [url for url in wanted if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture
def comparison(opened: Callable[[Path], Any], tmp_path: Path) -> Any:
    written(tmp_path)
    page = opened(tmp_path / "compare.html")
    page.wait_for_function(READY)
    return page


def model(page: Any, name: str, code: str) -> Any:
    """Return the value of an expression of the model ``m`` with a name."""
    return page.evaluate(f"(() => {{ const m = {_named(name)}; return {code} }})()")


def _named(name: str) -> str:
    return f"Bokeh.documents[0].get_model_by_name({name!r})"


def test_a_drag_zooms_into_a_step_and_reset_shows_it_all(comparison: Any) -> None:
    page, ends = comparison, "[m.x_range.start, m.x_range.end]"
    plot = page.locator(".bk-Figure").nth(1)
    plot.scroll_into_view_if_needed()
    whole, before = model(page, "timeline", ends), plot.screenshot()
    box = plot.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.5 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=5)
    page.mouse.up()
    page.wait_for_function(f"{_named('timeline')}.x_range.end < {whole[1]}")
    start, end = model(page, "timeline", ends)
    assert whole[0] < start < end < whole[1]
    assert end - start == pytest.approx(0.1 * 1160 / 900 * (whole[1] - whole[0]), rel=0.2)
    assert plot.screenshot() != before
    page.locator(".bk-tool-icon-reset").nth(1).click()
    page.wait_for_function(f"{_named('timeline')}.x_range.end == {whole[1]}")


def test_a_click_on_a_name_shows_a_system(comparison: Any) -> None:
    page = comparison
    plot = page.locator(".bk-Figure").first
    before = plot.screenshot()
    hidden = "m.renderers.filter(one => !one.visible).map(one => one.name)"
    assert {*model(page, "pareto", hidden)} == {"one"}  # it runs with more memory alone
    box = plot.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 40, box["y"] + 52)
    page.wait_for_function(f"{_named('pareto')}.renderers.every(one => one.visible)")
    assert plot.screenshot() != before


def test_a_slider_chooses_what_bars_show(comparison: Any) -> None:
    page = comparison
    shown = "m.renderers.map(one => [...one.data_source.data.text ?? []])[0]"
    page.get_by_text("batch", exact=True).click()
    assert model(page, "batch bars", shown) == ["cannot", "1.0 s", "1.1 s", "20.0 s →"]
    slider = page.locator(".bk-CategoricalSlider:visible")
    bars = page.locator(".bk-Figure:visible").last
    before = bars.screenshot()
    value = slider.locator(".bk-slider-value")
    assert value.inner_text() == "1 times"
    slider.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowLeft")
    value.get_by_text("0.5 times").wait_for()
    assert model(page, "batch bars", shown)[:2] == ["500.0 ms", "800.0 ms"]
    assert bars.screenshot() != before
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    value.get_by_text("4 times").wait_for()
    assert model(page, "batch bars", shown) == ["cannot"] * 4


@pytest.fixture
def site() -> Path:
    folder = ROOT / "build" / "docs"
    if not (folder / "index.html").exists():
        pytest.skip("the documentation is not built (make docs)")
    return folder


@pytest.mark.parametrize("width", [1400, 390])
def test_no_page_of_the_documentation_scrolls_sideways(
    site: Path, browser: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    for folder in (site, site / "papers", site / "api"):
        for file in folder.glob("*.html"):
            if "http-equiv" in file.read_text()[:100]:
                continue  # it leads to another page at once
            page.goto(file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, file
            lost = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
            assert not page.evaluate(lost), file
    page.close()


def test_the_search_of_the_documentation_names_pages(site: Path, browser: Any) -> None:
    page = browser.new_page()  # from a file, it cannot fetch what it shows of each page
    page.goto((site / "index.html").as_uri())
    page.locator("input[name=q]:visible").first.fill("refresh_postpone")
    page.keyboard.press("Enter")
    page.locator("#search-results li a").first.wait_for()
    assert page.locator("#search-results li a", has_text="Sweeping").count()
    page.close()


def test_the_documentation_opens_and_leads_on(site: Path, opened: Callable[[Path], Any]) -> None:
    page = opened(site / "index.html")
    page.locator(".sidebar-tree a:visible", has_text="Errors").first.click()
    page.wait_for_url("**/errors.html")
    assert page.locator("h1").first.is_visible()
