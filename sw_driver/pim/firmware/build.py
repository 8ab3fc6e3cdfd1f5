"""Compiles the firmware of the programmable PIM: the cores' image, with ``ziglang`` (the extra
``firmware``), and the same kernels for the host, with ``gcc``.

    .venv/bin/python -m sw_driver.pim.firmware.build

writes the image that is in this folder again.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

__all__ = ["IMAGE", "compile_image", "compile_library"]

_FOLDER = Path(__file__).parent
IMAGE = _FOLDER / "firmware.bin"
"""The image that :func:`compile_image` makes of the package's sources."""
_KERNELS = ["kernels.c", "math.c", "recursive.c"]
_CHECKS = [
    *(
        "-fsanitize=kernel-address,integer-divide-by-zero",
        "-fno-sanitize-recover=integer-divide-by-zero",
    ),
    *("--param", "asan-instrumentation-with-call-threshold=0"),
    *("--param", "asan-stack=0", "--param", "asan-globals=0"),
    *("-fno-builtin", "-fno-tree-vectorize", "-fno-tree-loop-distribute-patterns"),
    *("-finstrument-functions", "-finstrument-functions-exclude-file-list=pim.h"),
    *("-fstack-clash-protection", "-fstack-protector-strong"),
    *("-nodefaultlibs", "-lc", "-Wl,-Bsymbolic,-z,relro,-z,now"),
]
"""Options that have each access, call and division of a kernel on the host ask ``host.c`` first,
with no library of the compiler's. Nothing is made of several accesses that would not ask."""
_LAST = "compute.c"
"""Behind the others, so that these share as little of a core's instruction cache as they can."""
_COMMON = [
    *("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra", "-Werror", f"-I{_FOLDER}"),
]
_CORE = [
    *("-target", "riscv32-freestanding-none", "-mcmodel=medlow", "-ffreestanding", "-fno-pic"),
    *("-g0", "-fno-sanitize=all", "-ffunction-sections", "-fomit-frame-pointer"),
    "-Wno-unused-command-line-argument",
]
_INSTRUCTION = ".insn r CUSTOM_0, {1}, {0}, {{0}}, {{1}}, {2}"
_UNIT = {
    "fadd.s": _INSTRUCTION.format(0, 0, "{2}"),
    "fsub.s": _INSTRUCTION.format(0, 1, "{2}"),
    "fmul.s": _INSTRUCTION.format(1, 0, "{2}"),
    "fdiv.s": _INSTRUCTION.format(2, 0, "{2}"),
    "fsqrt.s": _INSTRUCTION.format(2, 1, "zero"),
    "fle.s": _INSTRUCTION.format(3, 0, "{2}"),
    "flt.s": _INSTRUCTION.format(3, 1, "{2}"),
    "feq.s": _INSTRUCTION.format(3, 2, "{2}"),
    "fcvt.w.s": _INSTRUCTION.format(5, 1, "zero"),
    "fcvt.s.w": _INSTRUCTION.format(6, 0, "zero"),
    "fneg.s": "xor {0}, {1}, tp",  # which holds the sign's bit
    "fabs.s": "slli {0}, {1}, 1\n\tsrli {0}, {0}, 1",
}
"""Instructions of Zfinx, and those of a core that do the same."""


def compile_image(more: Iterable[Path] = ()) -> bytes:
    """The image for a core, with ``more`` C files, which may define kernels of their own.

    The compiler makes code for Zfinx, floats in integer registers, of which the assembler gets the
    float unit's instructions. Raises ``ValueError`` for one that the unit has not.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sources = [*(_FOLDER / each for each in [*_KERNELS, "runtime.c", _LAST]), *more]
        files = [_for_the_unit(file, folder) for file in sources]
        linked, image = folder / "image.elf", folder / "image.bin"
        script = f"-Wl,-T,{_FOLDER / 'link.ld'},--gc-sections"
        _zig("cc", *_CORE, "-mcpu=generic_rv32+m", *_COMMON, script, *files, "-o", linked)
        _zig("objcopy", "-O", "binary", linked, image)
        return image.read_bytes()


def _for_the_unit(file: Path, folder: Path) -> Path:
    """The assembly of a C file, for the float unit."""
    made = folder / f"{file.stem}.s"
    cpu = ["-mcpu=generic_rv32+m+zfinx", "-mabi=ilp32"]
    _zig("cc", *_CORE, *cpu, *_COMMON, "-S", file, "-o", made)

    def replaced(match: re.Match[str]) -> str:
        operation, operands = match[1], match[2].split(", ")
        if operation not in _UNIT:
            raise ValueError(
                f"{file}: the float unit has no {operation} {match[2]}: use {', '.join(_UNIT)}"
            )
        return "\t" + _UNIT[operation].format(*operands)

    text = re.sub(r"^\t(f\w+\.[sw.]+u?)\t(.+)$", replaced, made.read_text(), flags=re.MULTILINE)
    made.write_text(text)
    return made


def compile_library(path: Path, more: Iterable[Path] = ()) -> ctypes.CDLL:
    """The kernels for the host, as a library at ``path``, with ``more`` C files, which may define
    kernels of their own."""
    sources = [*(_FOLDER / each for each in [*_KERNELS, "host.c", _LAST]), *more]
    # Under a name of its own: one that was loaded before would be loaded again as it was.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        made = Path(folder) / path.name
        subprocess.run(
            ["gcc", *_COMMON, *_CHECKS, "-fPIC", "-shared", *sources, "-o", made], check=True
        )
        library = ctypes.CDLL(str(made))
        made.replace(path)
    library.library_name.restype = ctypes.c_char_p
    return library


def _zig(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], check=True)


if __name__ == "__main__":
    IMAGE.write_bytes(compile_image())
