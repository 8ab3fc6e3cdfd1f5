"""``nearmem registers``: documentation and C headers from the register map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import (
    FLAT,
    Failure,
    OutputFolder,
    OutputOptions,
    Refusal,
    output_folder,
    print_files,
    turning,
)

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    out: OutputFolder = None
    """folder (default: build/registers)"""
    rules: Annotated[str | None, Parameter(metavar="NAME,NAME")] = None
    """update rules of the kernel (default: the paper's)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Write the register map as documentation and as C headers.

    Writes registers.md and C headers, made from the SystemRDL description.
    """
    from hw.kernel.config import KernelConfig
    from hw.rules import PAPER_RULES
    from sw_driver.files import write_whole
    from sw_driver.fpga.register_pages import register_document, register_headers

    with turning(ValueError, into=Refusal):
        rules = tuple(options.rules.split(",")) if options.rules else PAPER_RULES
        config = KernelConfig(rules=rules)
    folder = output_folder(options.out, "registers")
    try:
        files = {"registers.md": register_document(config.rules), **register_headers(config.rules)}
    except ImportError as error:
        raise Failure(f"{error.name} is needed: pip install -e '.[dev]'") from error
    for name, content in files.items():
        write_whole(folder / name, content)
    print_files(options, [folder / name for name in files])
    return 0
