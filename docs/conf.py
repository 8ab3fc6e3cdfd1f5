"""How ``make docs`` builds the site: the pages of this folder, and one for each Python module.

Warnings are errors there, references that lead nowhere among them, so a broken docstring or link
does not go unnoticed. Nothing is fetched, neither by the build nor by a reader's browser.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import sys
from collections import defaultdict
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from amaranth import Elaboratable
from docutils import nodes
from rich.console import Console
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring, NumpyDocstring
from sphinx.util import inspect as sphinx_inspect

from sw_driver import cli, commands
from sw_driver.device import errors
from sw_driver.experiments.settings import settings_page
from sw_driver.fpga.register_pages import register_document

gc.set_threshold(100_000, 20, 20)  # looking for garbage took a fifth of the time
ROOT = Path(__file__).resolve().parents[1]

no_torch = mock(["torch"])  # not among the dependencies
if find_spec("torch") is None:
    no_torch.__enter__()  # for the whole build

API_PACKAGES = ("sw_driver", "golden", "hw")
"""Packages of the API reference."""
COMMANDS = ("sw_driver", "commands")
"""What is not in it: ``nearmem --help`` and its pages describe these."""

project = "Nearmem"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_static_path = ["pages.css"]
html_css_files = ["pages.css"]
html_title = "Nearmem"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
highlight_language = "none"  # blocks that name no language are commands and what they print
myst_heading_anchors = 3

autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "show-inheritance": True,
    "ignore-module-all": True,  # which would sort by it; see skip_members
}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

nitpicky = True
nitpick_ignore_regex = [
    # Other projects' objects: their documentation is not fetched.
    (r"py:.*", rf"(?!({'|'.join(API_PACKAGES)})\.)\w+\..*"),
    # Type variables, and types that are private to their module.
    (r"py:(class|obj)", r"(.*\.)?([A-Z]|_\w+)"),
    # Decorators that a function returns.
    (r"py:obj", r".*<locals>.*"),
    # Signatures whose defaults are no expressions are split at their commas.
    (r"py:class", r"((list\[)?tuple|dict|Mapping)\[(str|int|Any|([\w.~]*\.)?Span)"),
]


class _Docstring(NumpyDocstring):
    """Sections are underlined; their entries are ``name: meaning`` and go on on further lines."""

    _consume_field = GoogleDocstring._consume_field

    def _parse_raises_section(self, section: str) -> list[str]:
        names = r"[A-Z][\w.]*(?:,\s[\w.]+)*"
        text = "\n".join(self._consume_to_next_section()).strip()
        fields = []
        for entry in re.split(rf"(?<!,)\n(?={names}(?::|\n ))", text):
            raised = re.match(names, entry)
            end = raised.end() if raised else 0
            fields.append(f":raises {entry[:end]}: {entry[end:].removeprefix(':')}")
        return [*(" ".join(field.split()) for field in fields), ""]


DOCSTRINGS: Any = Config(
    napoleon_use_ivar=True,
    napoleon_custom_sections=[("Members", "params_style"), ("Fields", "params_style")],
)


def write_module_pages(app: Sphinx) -> None:
    """Keep a page for each module in ``api/modules``, and other generated pages beside it.

    These are the register maps, settings and commands. Version control ignores them all.
    """
    pages = {".gitignore": "*\n"}
    for package in API_PACKAGES:
        for source in (ROOT / package).rglob("*.py"):
            parts = source.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__main__" or parts[:2] == COMMANDS:
                continue
            if parts[-1] != "__init__":
                pages[f"{'.'.join(parts)}.rst"] = _module_page(".".join(parts), [])
                continue
            inside = [path.stem for path in source.parent.glob("[!_]*.py")]
            inside += [path.parent.name for path in source.parent.glob("*/__init__.py")]
            inside = [each for each in inside if (*parts[:-1], each) != COMMANDS]
            name = ".".join(parts[:-1])
            pages[f"{name}.rst"] = _module_page(name, sorted(inside))
    _write(Path(app.srcdir) / "api" / "registers.md", register_document())
    _write(Path(app.srcdir) / "api" / "settings.md", settings_page())
    _write(Path(app.srcdir) / "api" / "commands.md", commands_page())
    folder = Path(app.srcdir) / "api" / "modules"
    folder.mkdir(parents=True, exist_ok=True)
    for page in folder.glob("*.rst"):
        if page.name not in pages:
            page.unlink(missing_ok=True)
    for name, text in pages.items():
        _write(folder / name, text)


def commands_page() -> str:
    """Return the page with each command's help for 80 columns, without boxes and their output."""
    application = cli.application()
    parts = [
        "# Every command\n\nFor users of `nearmem`: every command's `--help`, without the options"
        " `--quiet` and `--json` of [all commands](../commands.md#common-options).\n"
    ]
    for name in commands.COMMANDS:
        shown = StringIO()
        application.help_print(name.split(), console=Console(file=shown, width=80))
        text = re.sub(r"╭─ Output ─.*?╯", "", shown.getvalue(), flags=re.DOTALL)
        text = re.sub(r"╭─ (.*?) ─+╮", r"\1:", re.sub(r"╰─+╯\n", "\n", text))
        text = "\n".join(line.strip("│").rstrip() for line in text.splitlines())
        parts.append(f"## nearmem {name}\n\n```none\n{text.strip()}\n```\n")
    return "\n".join(parts)


def _write(page: Path, text: str) -> None:
    if not page.exists() or page.read_text() != text:
        written = page.with_suffix(f".{os.getpid()}")  # another build may be reading
        written.write_text(text)
        written.replace(page)


def _module_page(name: str, inside: list[str]) -> str:
    lines = [name, "=" * len(name), "", f".. automodule:: {name}"]
    if inside:
        lines += ["", ".. toctree::", "   :maxdepth: 1", ""]
        lines += [f"   {module} <{name}.{module}>" for module in inside]
    return "\n".join([*lines, ""])


def _full_name(thing: Any) -> str | None:
    """Where a module, class or function is defined; None for other objects, which do not know."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    name = getattr(thing, "__qualname__", None)
    return name and f"{thing.__module__}.{name}"


def skip_members(
    app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leaves out what a module does not list as public."""
    if name == "elaborate":  # each component of Amaranth has it
        return True
    module = sys.modules.get(app.env.current_document.autodoc_module)
    if what == "module" and name not in getattr(module, "__all__", [name]):
        return True
    return None


def component_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Shows a component's own parameters, not those with which Amaranth wraps it."""
    if not (isinstance(thing, type) and issubclass(thing, Elaboratable)):
        return None
    own = sphinx_inspect.signature(thing.__init__, bound_method=True)
    shown = sphinx_inspect.stringify_signature(
        own, show_return_annotation=False, unqualified_typehints=True
    )
    return shown, ""


def _import_types(module: ModuleType) -> None:
    """Imports what ``module`` imports for the type checker only, so that it can be linked to."""
    for statement in ast.parse(Path(module.__file__ or "").read_text()).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(statement.body, []), "types", "exec"), vars(module))


def read_docstring(
    app: Sphinx, what: Any, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Turns the sections into markup, and lists what a package passes on."""
    if what not in ("attribute", "data", "property"):  # a colon in these is a colon
        lines[:] = _Docstring(lines, DOCSTRINGS, app, what, name, thing, options).lines()
    if isinstance(thing, ModuleType):
        _import_types(thing)
        members = {each: getattr(thing, each) for each in getattr(thing, "__all__", ())}
        links = [
            f":py:obj:`{each} <{_full_name(member)}>`"
            for each, member in members.items()
            if hasattr(member, "__qualname__") and member.__module__ != thing.__name__
        ]
        if links:
            lines += ["", f"Also here: {', '.join(links)}.", ""]


def _meaning(name: str, scopes: list[Any]) -> str | None:
    """Where that is defined which ``name`` stands for in the first of the scopes that know it."""
    *path, last = name.split(".")
    for scope in scopes:
        owner = reduce(lambda thing, part: getattr(thing, part, None), path, scope)
        for definer in getattr(owner, "__mro__", [owner]):
            if last in getattr(definer, "__dict__", {}):
                return _full_name(vars(definer)[last]) or f"{_full_name(definer)}.{last}"
    return None


def resolve_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Finds inherited members, what the docstring's module has imported, and exceptions."""
    if not node.get("py:module"):
        return None
    scopes: list[Any] = [import_module(node["py:module"]), errors]
    if node.get("py:class"):
        scopes.insert(0, attrgetter(node["py:class"])(scopes[0]))
    target = _meaning(node["reftarget"], scopes)
    if target is None:
        return None
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], target, node, content
    )


class IndexedPythonDomain(PythonDomain):
    """Looks a name up among those that end as it does, where Sphinx goes through all objects."""

    _few: dict[str, Any] | None = None
    _indexed = 0

    @property
    def objects(self) -> dict[str, Any]:
        return super().objects if self._few is None else self._few

    def find_obj(
        self, env: Any, modname: str, classname: str, name: str, *how: Any
    ) -> list[tuple[str, Any]]:
        known = self.objects
        if self._indexed != len(known):  # names are looked up when all are known
            self._indexed = len(known)
            self._names: defaultdict[str, list[str]] = defaultdict(list)
            for each in known:
                self._names[each.rpartition(".")[2]].append(each)
        last = name.removesuffix("()").rpartition(".")[2]
        self._few = {each: known[each] for each in self._names.get(last, ())}
        try:
            return super().find_obj(env, modname, classname, name, *how)
        finally:
            self._few = None


def collapse_navigation(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Lists what is beside and below a page; of all modules in each page half the build went."""
    toctree = context["toctree"]
    context["toctree"] = lambda **how: toctree(**{**how, "collapse": True})


MOVED = {
    "decisions": "architecture.html#decisions",
    "offloading": "less-memory.html#offloading",
    "results": "methods.html",
    "what-precision-buys": "formats.html#what-precision-buys",
}
"""Pages that are part of others now, by the addresses that they had."""


def redirect_moved(app: Sphinx, error: Exception | None) -> None:
    """Write a page at each old address that leads to the new one."""
    if error is None and app.builder.format == "html":
        for old, new in MOVED.items():
            text = f'<!doctype html><meta http-equiv="refresh" content="0; url={new}">\n'
            _write(Path(app.outdir) / f"{old}.html", text)


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.add_domain(IndexedPythonDomain, override=True)
    app.connect("builder-inited", write_module_pages)
    app.connect("autodoc-skip-member", skip_members)
    app.connect("autodoc-process-signature", component_signature)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("missing-reference", resolve_name)
    app.connect("html-page-context", collapse_navigation, priority=400)  # before the theme's
    app.connect("build-finished", redirect_moved)
