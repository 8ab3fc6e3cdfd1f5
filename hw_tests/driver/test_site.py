"""The site that Sphinx makes of the documentation: it builds without a warning, and is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sw_driver.device import errors

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, "--doctree-dir", str(folder / "doctrees"), "docs", str(folder / "html")],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_module_has_a_page(site: Path) -> None:
    for source in [*(ROOT / "sw_driver").rglob("*.py"), *(ROOT / "hw").rglob("*.py")]:
        name = ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name.startswith("sw_driver.commands"):
            continue  # `nearmem --help` describes these
        assert (site / "api" / "modules" / f"{name}.html").exists()


def test_members_are_in_the_order_of_the_source(site: Path) -> None:
    members = re.findall(r"^(?:class|def) (\w+)", Path(errors.__file__).read_text(), re.MULTILINE)
    page = (site / "api" / "modules" / "sw_driver.device.errors.html").read_text()
    assert re.findall(r'<dt [^>]*id="sw_driver\.device\.errors\.(\w+)"', page) == members


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    styles = list(site.rglob("*.css"))
    assert pages
    assert styles
    for page in pages:
        # Links that a reader may follow are another matter.
        loads = re.findall(r'<(?!a\b)[^>]*\b(?:src|href)="(?:https?:)?//[^>]*>', page.read_text())
        assert not loads, page
    for style in styles:
        assert not re.findall(r"url\(\W?(?:https?:)?//|@import", style.read_text()), style
