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
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    """what the headers and all that is in them begin with (default: nearmem, with the rules if they
    are not the paper's, and narrow)"""
    rules: Annotated[str | None, Parameter(metavar="NAME,NAME")] = None
    """update rules of the kernel (default: the paper's)"""
    narrow: bool = False
    """of a kernel with narrow formats"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Write the register map as documentation and as C headers.

    Writes registers.md and C headers, made from the SystemRDL description.
    """
    from hw.kernel.config import KernelConfig
    from hw.rules import PAPER_RULES
    from hw.verilog.generate import check_module_name, usual_name
    from sw_driver.files import write_whole
    from sw_driver.fpga.register_pages import register_document, register_headers

    with turning(ValueError, into=Refusal):
        rules = tuple(options.rules.split(",")) if options.rules else PAPER_RULES
        config = KernelConfig(rules=rules, narrow=options.narrow)
        if options.name is not None:
            check_module_name(options.name)
    said = [] if rules == PAPER_RULES else [f"rules={','.join(rules)}"]
    said += ["narrow"] if options.narrow else []
    name = options.name or usual_name("nearmem", said)
    folder = output_folder(options.out, "registers")
    try:
        headers = register_headers(config.rules, config.narrow, name)
        files = {"registers.md": register_document(config.rules, config.narrow), **headers}
    except ImportError as error:
        raise Failure(f"{error.name} is needed: pip install -e '.[dev]'") from error
    for file, content in files.items():
        write_whole(folder / file, content)
    print_files(options, [folder / file for file in files])
    return 0
