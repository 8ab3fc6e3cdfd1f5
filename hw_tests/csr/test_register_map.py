"""The register map and what is made from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hw import rules
from hw.kernel.registers import kernel_map
from hw.rules.update_rule import UpdateRule
from sw_driver.cli import main
from sw_driver.fpga.register_pages import MAPS, load_map

STRIDE = 64


@pytest.mark.parametrize("name", [name for name in MAPS if name.startswith("axdimm")])
def test_each_register_has_a_line_of_its_own(name: str) -> None:
    offsets = [register.offset_bytes for register in load_map(name).registers]
    assert offsets == [STRIDE * index for index in range(len(offsets))]
    assert offsets[-1] + STRIDE <= 4096


@pytest.mark.parametrize("name", MAPS)
def test_fields_do_not_overlap(name: str) -> None:
    for register in load_map(name).registers:
        used = 0
        for field in register.fields:
            assert not used & field.mask, f"{register.name}.{field.name}"
            used |= field.mask
        assert used < 1 << 64


def with_constant(name: str) -> tuple[str, ...]:
    """A kernel with one rule, whose constant has that name."""
    rule = UpdateRule(
        name=f"with_{name}",
        title="for a test",
        tensors={"p": "parameters"},
        inputs=("p",),
        constants={name: "lr"},
        outputs=("p",),
        formula=lambda **values: {"p": values["p"] * values[name]},
    )
    return (rules.register(rule).name,)


@pytest.mark.parametrize("name", ["w", "mem", "lr"])
def test_a_constant_may_be_called_as_a_word_of_the_language(name: str) -> None:
    assert kernel_map(with_constant(name))[name].fields[0].name == "value"


@pytest.mark.parametrize("name", ["count", "rule", "p_in", "p_out"])
def test_a_constant_may_not_be_called_as_a_register(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' of a rule is a register already"):
        kernel_map(with_constant(name))


def test_unknown_names_are_told() -> None:
    registers = kernel_map()
    with pytest.raises(KeyError, match="nonsense"):
        registers["nonsense"]
    with pytest.raises(KeyError, match="nonsense"):
        registers["status"]["nonsense"]


@pytest.mark.parametrize("narrow", [False, True])
def test_headers_compile_and_agree(tmp_path: Path, narrow: bool) -> None:
    more = ["--narrow"] if narrow else []
    assert main(["registers", *more, "--out", str(tmp_path)]) == 0
    document = (tmp_path / "registers.md").read_text()
    lines = ["#include <cstddef>"]
    for name in MAPS:
        own = f"nearmem_narrow__{name}" if narrow else f"nearmem__{name}"
        lines.append(f'#include "{own}.h"')
        kernel = name == "axdimm_kernel"
        for register in (kernel_map(narrow=narrow) if kernel else load_map(name)).registers:
            assert register.name in document
            for field in register.fields:
                prefix = f"{own}__{register.name}__{field.name}".upper()
                lines.append(
                    f"static_assert({prefix}_bp == {field.lsb} && {prefix}_bw == {field.width});"
                )
            lines.append(
                f"static_assert(offsetof({own}_t, {register.name}) == {register.offset_bytes});"
            )
    source = tmp_path / "check.cpp"
    source.write_text("\n".join(lines))
    subprocess.run(["g++", "-std=c++17", "-fsyntax-only", str(source)], check=True)
