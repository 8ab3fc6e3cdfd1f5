"""``nearmem registers``: documentation and C headers from the register map."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from . import Failure, Refusal

__all__ = ["add_parser", "register_document", "run"]

MAPS = ("axdimm_arbiter", "axdimm_kernel")


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "registers",
        help="write the register map as documentation and as C headers",
        description="Makes docs/registers.md and C headers from the SystemRDL description.",
    )
    parser.add_argument(
        "--docs", type=Path, default=Path("docs"), metavar="DIR", help="folder (default: docs)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="headers (default: build/registers)"
    )
    parser.set_defaults(run=run)


def _elaborate(name: str) -> Any:
    from systemrdl.compiler import RDLCompiler

    from hw.registers import CHANNEL_RDL

    compiler = RDLCompiler()
    compiler.compile_file(str(CHANNEL_RDL))
    return compiler.elaborate(top_def_name=name).top


def _encodings(name: str) -> str:
    from hw.registers import load_registers

    rows = [
        f"| {register.name}.{field.name} | {code} | {meaning} |"
        for register in load_registers(name).registers
        for field in register.fields
        for meaning, code in field.encoding
    ]
    if not rows:
        return ""
    return "\n".join(["### Encoded values", "", "|Field|Code|Meaning|", "|---|---|---|", *rows, ""])


def register_document() -> str:
    """The text of ``docs/registers.md``."""
    try:
        from peakrdl_markdown import MarkdownExporter
    except ImportError as error:
        raise Failure("peakrdl-markdown is needed: pip install -e '.[dev]'") from error

    parts = [
        "# Registers of a channel\n\nMade from `hw/axdimm/channel.rdl` by `make registers`.\n\n"
        "Each register is the first eight bytes (little endian) of a 64-byte line of its own. The "
        "arbiter's window is the last 4 KB of the channel's address range and answers in both "
        "modes; the kernel's window is the 4 KB below it and answers in acceleration mode.\n"
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in MAPS:
            path = Path(folder) / f"{name}.md"
            MarkdownExporter().export(_elaborate(name), str(path))
            text = path.read_text().partition("-->\n")[2]
            parts += [text.rstrip() + "\n", _encodings(name)]
    return "\n".join(parts).rstrip() + "\n"


def run(arguments: argparse.Namespace) -> int:
    """Writes the files."""
    from sw_driver.buildcache import build_root

    try:
        from peakrdl_cheader.exporter import CHeaderExporter
    except ImportError as error:
        raise Failure("peakrdl-cheader is needed: pip install -e '.[dev]'") from error

    if not arguments.docs.is_dir():
        raise Refusal(f"no folder {str(arguments.docs)!r} for registers.md: give one with --docs")
    headers = arguments.out or build_root() / "registers"
    headers.mkdir(parents=True, exist_ok=True)
    (arguments.docs / "registers.md").write_text(register_document())
    for name in MAPS:
        CHeaderExporter().export(_elaborate(name), str(headers / f"{name}.h"), reuse_typedefs=False)
    print(f"{arguments.docs / 'registers.md'} and the headers in {headers}")
    return 0
