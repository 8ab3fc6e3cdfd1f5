"""Build of the programmable PIM's firmware.

``ziglang`` (the extra ``firmware``) compiles the cores' image, and ``gcc`` the same kernels for the
host. This command rebuilds the image in this folder, or compiles one with further kernels::

    .venv/bin/python -m sw_driver.pim.firmware.build [FILE.c ... IMAGE.bin]
"""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sw_driver.device.errors import InvalidArgumentError

from ..programs import FUNCTIONS

__all__ = ["IMAGE", "compile_image", "compile_library"]

_FOLDER = Path(__file__).parent
IMAGE = _FOLDER / "firmware.bin"
"""Path of the image that :func:`compile_image` builds from the package's sources."""
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
"""Options that make ``host.c`` check every access, call and division of a kernel on the host.

They link no library of the compiler, and keep it from merging accesses into unchecked ones.
"""
_LAST = "compute.c"
"""Source at the end of the image, so that the others compete least for the instruction cache."""
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
    "fneg.s": "xor {0}, {1}, tp",  # tp holds the sign bit
    "fabs.s": "slli {0}, {1}, 1\n\tsrli {0}, {0}, 1",
}
"""Zfinx instructions, and a core's equivalent instructions."""


def compile_image(more: Iterable[Path] = ()) -> bytes:
    """Compile the image for a core; ``more`` are C files that may define further kernels.

    The compiler emits Zfinx code, with floats in integer registers. Its float instructions are
    replaced by the float unit's. The names of functions follow the image. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` with the compiler's message, and for an
    instruction that the unit lacks.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sources = [*(_FOLDER / name for name in [*_KERNELS, "runtime.c", _LAST]), *more]
        files = [_for_the_unit(file, folder) for file in sources]
        linked, image = folder / "image.elf", folder / "image.bin"
        script = f"-Wl,-T,{_FOLDER / 'link.ld'},--gc-sections"
        _zig("cc", *_CORE, "-mcpu=generic_rv32+m", *_COMMON, script, *files, "-o", linked)
        _zig("objcopy", "-O", "binary", linked, image)
        return image.read_bytes() + _functions(linked.read_bytes())


def _functions(elf: bytes) -> bytes:
    """Return the address and the name of each function in an ELF file of 32 bits, by address."""
    (begin,), (count,) = struct.unpack_from("<I", elf, 32), struct.unpack_from("<H", elf, 48)
    sections = [struct.unpack_from("<10I", elf, begin + 40 * n) for n in range(count)]
    named = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != 2:  # no table of symbols
            continue
        for name, address, _, info, *_ in struct.iter_unpack(
            "<IIIBBH", elf[offset : offset + size]
        ):
            if info & 15 == 2:  # a function
                start = sections[link][4] + name
                named.append((address, elf[start : elf.index(0, start)]))
    entries = (struct.pack("<I", address) + name + b"\0" for address, name in sorted(named))
    return FUNCTIONS + b"".join(entries)


def _for_the_unit(file: Path, folder: Path) -> Path:
    """Compile a C file to assembly for the float unit."""
    made = folder / f"{file.stem}.s"
    cpu = ["-mcpu=generic_rv32+m+zfinx", "-mabi=ilp32"]
    _zig("cc", *_CORE, *cpu, *_COMMON, "-S", file, "-o", made)

    def replaced(match: re.Match[str]) -> str:
        operation, operands = match[1], match[2].split(", ")
        if operation not in _UNIT:
            raise InvalidArgumentError(
                f"{file}: the float unit has no {operation} {match[2]}: use {', '.join(_UNIT)}"
            )
        return "\t" + _UNIT[operation].format(*operands)

    text = re.sub(r"^\t(f\w+\.[sw.]+u?)\t(.+)$", replaced, made.read_text(), flags=re.MULTILINE)
    made.write_text(text)
    return made


def compile_library(path: Path, more: Iterable[Path] = ()) -> ctypes.CDLL:
    """Compile the kernels for the host into a library at ``path``, and load it.

    ``more`` are C files that may define further kernels. Raises as :func:`compile_image`.
    """
    sources = [*(_FOLDER / name for name in [*_KERNELS, "host.c", _LAST]), *more]
    # Load it under a new name: a name that was loaded before would return the old library.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        made = Path(folder) / path.name
        _compile("gcc", *_COMMON, *_CHECKS, "-fPIC", "-shared", *sources, "-o", made)
        library = ctypes.CDLL(str(made))
        made.replace(path)
    library.library_name.restype = ctypes.c_char_p
    return library


def _zig(*arguments: str | Path) -> None:
    _compile(sys.executable, "-m", "ziglang", *arguments)


def _compile(*command: str | Path) -> None:
    """Run a compiler; raise its message if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidArgumentError(done.stderr.strip())


if __name__ == "__main__":
    *files, target = sys.argv[1:] or [IMAGE]
    try:
        Path(target).write_bytes(compile_image(map(Path, files)))
    except (InvalidArgumentError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
