"""The functional units of all rules against the reference models, and what they take on an FPGA."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import golden.rules
import hw.rules
from golden.rules import reference
from hw.float.format import FloatFormat
from hw.kernel.config import SUBNORMALS
from hw.kernel.unit import RuleUnit
from hw.rules import RULES, rule
from hw.verilog.writer import ports_of, to_verilog
from hw_tests.bench import run_bench
from hw_tests.float.player import PLAYER_BUILD_ARGS, PLAYER_TOP, player_text
from sw_driver.fpga.synthesis import dsp_cells

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
VECTORS = {"adam": 240_000}
OTHER_VECTORS = 60_000
SHIPPED = list(RULES)
# The player wants operands, and results that are stored; the others are in the kernel's bench.
PLAYED = [name for name in SHIPPED if rule(name).latency and rule(name).outputs]
# Between them these have every operator; all rules are flushed in test_exact.py.
UNITS = {"kept": PLAYED, "flushed": ["adam", "amsgrad", "lion", "sgd"]}


@cache
def simulator(subnormals: str) -> str:
    """One for all rules, since they have their operators in common."""
    return player_text(
        [RuleUnit(rule(name), format=SUBNORMALS[subnormals]) for name in UNITS[subnormals]]
    )


@pytest.mark.parametrize(
    ("name", "subnormals"),
    [(name, subnormals) for subnormals, names in UNITS.items() for name in names],
)
def test_matches_golden_bit_for_bit(name: str, subnormals: str) -> None:
    vectors = VECTORS if subnormals == "kept" else {}
    run_bench(
        simulator(subnormals),
        top=PLAYER_TOP,
        module="hw_tests.rules.rule_bench",
        build_args=PLAYER_BUILD_ARGS,
        parameters={
            "name": name,
            "module": RuleUnit(rule(name), format=SUBNORMALS[subnormals]).module_name,
            "subnormals": subnormals,
            "seed": SEED,
            "count": vectors.get(name, OTHER_VECTORS),
        },
        optimization="-O1",
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_names_are_those_of_the_reference(name: str) -> None:
    model = reference(name)
    described = rule(name)
    assert (model.inputs, model.outputs, model.sums) == (
        described.inputs,
        described.outputs,
        described.sums,
    )


def test_each_rule_is_a_file_for_hardware_and_one_for_its_arithmetic() -> None:
    for package in (hw.rules, golden.rules):
        files = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
        assert files >= set(SHIPPED), package.__name__
        assert files - set(SHIPPED) <= {"__init__", "update_rule"}, package.__name__


ROOT = Path(__file__).parents[2]
ALSO_NAMED = {
    "hw/rules/__init__.py": {"adam"},  # PAPER_RULES
    # The preset with narrow formats; fields that are called so.
    "hw/axdimm/config.py": {"adam", "adamw"},
    "hw/narrow/formats.py": {"copy"},
    "hw/narrow/run_formats.py": {"copy"},
    "sw_driver/axdimm/device.py": {"adam"},  # RunAdamOnAxdimmAsync, the paper's call
    "sw_driver/experiments/measure/adam.py": {"adam"},  # on the CPU
    # Rules of PyTorch's classes, and of clip_grad_norm; amsgrad and the like are options there.
    "sw_driver/torch/rules.py": {
        *("adagrad", "adam", "adamw", "amsgrad", "lion", "momentum", "nesterov", "rmsprop", "sgd")
    },
    "sw_driver/torch/optimizer.py": {"amsgrad", "momentum", "nesterov", "sum_squares"},
    # A function of the compiled guard.
    "sw_driver/torch/guard.py": {"fill"},
    # Kernels of the programmable PIM.
    "sw_driver/experiments/pim/training.py": {"sgd"},
    "sw_driver/pim/bounds.py": {"adam", "copy", "fill", "sgd"},
    "sw_driver/pim/opencl.py": {"fill"},
    "sw_driver/experiments/pim/scheduled.py": {"copy"},
    "sw_driver/predict/pim/core.py": {"adam", "copy", "fill", "sgd"},
    # Operations by TensorFlow's names and the kernels that do them, and rules of PyTorch's
    # optimizers whose time is measured.
    "sw_driver/system/hetero_pim/operations.py": {"adam", "copy", "fill", "momentum", "sgd"},
    "sw_driver/system/hetero_pim/costs.py": {"fill"},
    "sw_driver/workload/measuring.py": {"adam", "momentum", "sgd"},
    # By which each network is trained.
    "sw_driver/workload/networks.py": {"adam", "momentum", "sgd"},
    # The GPT's optimizers beside those of PyTorch; copies take time in its report.
    "sw_driver/experiments/training/gpt.py": {
        *("adagrad", "adam", "adamw", "amsgrad", "lion", "momentum", "nesterov", "rmsprop", "sgd"),
        "copy",
    },
    "sw_driver/experiments/training/report.py": {"copy"},
    # Trained with each format.
    "sw_driver/experiments/training/precision.py": {"adam", "adamw"},
    # Its constants.
    "hw/rules/adamw.py": {"adam"},
    "hw/rules/amsgrad.py": {"adam"},
    # The hyper-parameter.
    "hw/rules/nesterov.py": {"momentum"},
    "hw/rules/lion.py": {"momentum"},
    "sw_driver/axdimm/hyperparameters.py": {"momentum"},
    "sw_driver/axdimm/rulejob.py": {"momentum"},
    # What the driver does, too, and a package's templates.
    "sw_driver/fpga/templating.py": {"fill"},
    "sw_driver/axdimm/copies.py": {"copy"},
    # Micro-batches of a step.
    "sw_driver/system/compare/system.py": {"accumulate"},
    "sw_driver/workload/accumulation.py": {"accumulate"},
    "sw_driver/workload/summary.py": {"accumulate"},
    "sw_driver/experiments/measurements/predictions.py": {"accumulate"},
    # An optimizer with states of 8 bits, and those that measurements name.
    "sw_driver/system/compare/today.py": {"adam", "adamw"},
    "sw_driver/experiments/measurements/steps.py": {"adam", "adamw", "lion", "momentum", "sgd"},
    # A part of a plot's name.
    "sw_driver/system/compare/plots.py": {"fill"},
}
"""Where a rule's name is a string besides its own files, and why."""


@cache
def products_trees() -> list[tuple[str, ast.Module]]:
    """The product's Python files, parsed."""
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for package in ("hw", "golden", "sw_driver")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def strings_and_imports(tree: ast.Module) -> Iterator[str]:
    """The strings of a module, and the last part of what it imports of the rules."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.ImportFrom(module=str(module)) if "rules" in module.split("."):
                yield from (module.split(".")[-1], *(alias.name for alias in node.names))
            case ast.Import():
                names = (alias.name.split(".") for alias in node.names)
                yield from (name[-1] for name in names if "rules" in name)


def test_nothing_but_its_two_files_names_a_rule() -> None:
    found: dict[str, set[str]] = {}
    for file, tree in products_trees():
        own = Path(file).stem if file.startswith(("hw/rules/", "golden/rules/")) else None
        if named := (set(strings_and_imports(tree)) & set(SHIPPED)) - {own}:
            found[file] = named
    assert found == ALSO_NAMED


def test_only_python_knows_of_rules() -> None:
    for package in ("hw", "golden", "sw_driver"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                text = path.read_bytes().decode(errors="replace")
                assert not [name for name in SHIPPED if f'"{name}"' in text], path


def test_no_number_is_adams_traffic_or_latency() -> None:
    adams = {rule("adam").bytes_per_parameter, rule("adam").latency}
    # Timing of the DRAM, units of the small PIM, a size, a place in the descriptor, layers of a
    # network, a side of MNIST's images, and how many times as fast as a CPU a paper has the PIM.
    others = {"hw/dram/standard.py", "golden/dram_timing.py"}
    others |= {"hw/pim/config.py", "golden/pim/descriptor.py"}
    others |= {"sw_driver/workload/networks.py", "sw_driver/workload/models/gan.py"}
    others |= {"sw_driver/system/hetero_pim/figures.py"}
    # A machine is data: its tests compare it with the rule.
    others |= {"sw_driver/machine/measured.py"}
    found = {
        file
        for file, tree in products_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and node.value in adams
    }
    assert found == others


def test_latency_is_below_the_papers() -> None:
    # 110 is the design's limit, 128 the paper's figure.
    assert rule("adam").latency <= 110


def test_ports() -> None:
    constants = "lam beta1 one_minus_beta1 beta2 one_minus_beta2 inv_bc1 inv_bc2 eps lr"
    names = "clk rst i_valid i_p i_g i_m i_v o_valid o_p o_m o_v " + constants
    ports = ports_of(RuleUnit(rule("adam")))
    assert sorted(port.name for port in ports) == sorted(names.split())
    one_bit = {"clk", "rst", "i_valid", "o_valid"}
    assert all(port.width == (1 if port.name in one_bit else 32) for port in ports)


def test_module_name() -> None:
    assert RuleUnit(rule("adam")).module_name == "adam_unit"
    small = FloatFormat(exponent_bits=5, fraction_bits=2)
    assert RuleUnit(rule("adam"), format=small).module_name == "adam_unit_float_e5m2"


@pytest.mark.soak
def test_adam_takes_at_most_18_dsp_blocks() -> None:
    unit = RuleUnit(rule("adam"))
    cells = dsp_cells(to_verilog(unit, unit.module_name), top=unit.module_name)
    assert set(cells) == {"DSP48E2"}
    assert cells["DSP48E2"] <= 18
