"""The block diagrams: drawn from what is written here, the PIM's units from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from svg import Drawing

from hw.pim.config import configure

__all__ = ["DIAGRAMS"]

Entry = tuple[str, Sequence[str]]


def rooms() -> Drawing:
    """The source tree. The rooms of the driver stand as ``hw_tests/test_rooms.py`` has them."""
    drawing = Drawing(
        940,
        708,
        "The rooms of the source tree",
        "What each folder holds; arrows point from what uses to what is used.",
    )
    drawing.box(
        15, 15, 560, 678, "area", "sw_driver: the driver and what is done with it", heading="title"
    )

    def row(y: int, height: int, entries: Sequence[Entry]) -> None:
        width = (530 - 12 * (len(entries) - 1)) / len(entries)
        for number, (name, lines) in enumerate(entries):
            drawing.box(30 + number * (width + 12), y, width, height, "file", name, lines)

    row(
        48,
        58,
        [
            ("nearmem/, cli.py", ["what programs import,", "the command nearmem"]),
            ("commands/", ["a file a subcommand"]),
            ("experiments/", ["training, sweeps, studies,", "speed, validation"]),
        ],
    )
    row(
        128,
        74,
        [
            (
                "torch/",
                ["PyTorch: optimizers, models larger", "than the device, activations", "elsewhere"],
            ),
            (
                "system/",
                [
                    "models of whole systems: a base,",
                    "a folder a system, and what",
                    "compares them",
                ],
            ),
        ],
    )
    row(
        224,
        74,
        [
            (
                "axdimm/",
                [
                    "the libaxdimm calls:",
                    "copies, runs; backends/",
                    "golden, cycles, rtl",
                ],
            ),
            (
                "pim/",
                ["the PIM: works, layers;", "backends/", "golden, cycles, rtl"],
            ),
            (
                "memory_node/",
                ["memory in the devices'", "network; backends/", "golden, rtl"],
            ),
        ],
    )
    row(
        320,
        90,
        [
            ("fpga/", ["packages,", "synthesis,", "placement"]),
            ("simulator/", ["Verilating, build", "cache, waveforms"]),
        ],
    )
    row(
        432,
        46,
        [
            ("machine/", ["memories, devices, links"]),
            ("predict/", ["cycles, from the policies"]),
            ("workload/", ["training steps as data"]),
        ],
    )
    row(
        500,
        74,
        [
            (
                "device/",
                [
                    "one time and one of each thing for all devices: clock, streams, link,",
                    "registers, memory, storage, tensors, timeline, transport, errors",
                ],
            )
        ],
    )
    row(
        596,
        62,
        [
            ("numbers.py", ["as people write them"]),
            ("files.py", ["whole or not at all"]),
        ],
    )
    for above, below in ((106, 126), (202, 222), (298, 318), (410, 430), (478, 498), (574, 594)):
        drawing.arrow(f"M295 {above} V{below}")

    drawing.box(600, 15, 325, 390, "area", "hw: the machine, in Amaranth", heading="title")
    folders = [
        ("axdimm/", "channel, arbiter"),
        ("pim/", "bank, front, vault …"),
        ("memory_node/", "links, packets, node"),
        ("kernel/  rules/", "rule, unit, kernel"),
        ("dram/", "DDR4 controller"),
        ("stream/", "FIFO, loader, writer"),
        ("csr/  axi/", "registers, AXI4"),
        ("dataflow/  float/", "formula to pipeline"),
        ("narrow/  logic/", "formats; small parts"),
        ("verilog/", "the writer"),
    ]
    for number, (name, holds) in enumerate(folders):
        x, y = 614 + 153 * (number % 2), 48 + 60 * (number // 2)
        drawing.box(x, y, 145, 52, "product", name, [holds])
    drawing.box(614, 348, 298, 46, "sim", "sim/", ["simulation only: checked DRAM, assemblies"])

    drawing.box(600, 426, 325, 108, "area", "golden: independent models", heading="title")
    drawing.box(
        614, 459, 145, 64, "model", "rules/ …", ["arithmetic, DRAM", "rules and map, numpy"]
    )
    drawing.box(767, 459, 145, 64, "model", "pim/ …", ["the PIM; packets of", "memory-nodes"])
    drawing.box(600, 555, 325, 138, "area", "hw_tests", heading="title")
    drawing.box(
        614,
        588,
        298,
        46,
        "file",
        "folders as in hw, golden, sw_driver",
        ["cocotb benches; driver/ on every backend"],
    )
    drawing.text(614, 656, "Backends, predictors and experiments use these.")
    drawing.text(614, 672, "hw and golden use nobody, not even each other.")
    drawing.arrow("M575 180 H598")
    drawing.arrow("M575 479 H598")
    return drawing


def hardware() -> Drawing:
    """A module, its files and its clocks."""
    drawing = Drawing(
        940,
        560,
        "The hardware of a module",
        "The blocks of a channel of the AXDIMM module, their files, and the three clocks.",
    )
    drawing.box(
        15, 12, 220, 70, "area", "clocks",
        ["host link 400 MHz (DDR4-800)", "fabric 200 MHz, DRAM 800 MHz"],
    )  # fmt: skip
    drawing.box(
        250, 12, 440, 44, "file", "host", ["Python driver, or any manager of 64-byte lines"]
    )
    drawing.arrow("M470 56 V92", both=True)
    drawing.text(480, 78, "DDR4-800, 6.4 GB/s for both channels: a line in two fabric cycles")
    drawing.box(
        15, 94, 620, 386, "area", "channel 0, 200 MHz fabric   (hw/axdimm/channel.py)",
        heading="title",
    )  # fmt: skip
    drawing.box(
        655, 94, 270, 386, "area", "channel 1",
        ["the same again, independent in mode", "and work (hw/axdimm/module.py)"],
        heading="title",
    )  # fmt: skip
    drawing.box(
        230, 128, 390, 46, "product", "host_port.py",
        ["queue of requests, fixed latency of reads (240 ns)"],
    )  # fmt: skip
    drawing.arrow("M425 174 V192", both=True)
    drawing.box(
        230, 194, 390, 62, "product", "arbiter.py, memory_join.py",
        [
            "normal mode: the host has the DRAM; acceleration",
            "mode: the kernel, and the host its registers",
        ],
    )  # fmt: skip
    drawing.box(30, 194, 170, 232, "product", "kernel/kernel.py", ["settings.py: check"])
    drawing.box(42, 236, 146, 44, "file", "stream/", ["loader ▸ 4 FIFOs"])
    drawing.box(
        42, 288, 146, 74, "file", "lanes, unit", ["16 FP32 units,", "110 stages,", "gated clock"]
    )
    drawing.box(42, 370, 146, 44, "file", "stream/", ["3 FIFOs ▸ writer"])
    drawing.arrow("M228 212 H202", both=True)
    drawing.text(215, 188, "AXI4-Lite", anchor="middle")
    drawing.arrow("M202 244 H228", both=True)
    drawing.text(215, 272, "AXI4", anchor="middle")
    drawing.arrow("M425 256 V290", both=True)
    drawing.text(434, 278, "memory.py: AXI4, 12.8 GB/s")
    drawing.box(
        230, 292, 390, 134, "product", "dram/controller.py",
        ["DDR4-1600, in order, with rows opened ahead"],
    )  # fmt: skip
    drawing.box(242, 336, 116, 78, "file", "frontend.py", ["AXI bursts to", "DRAM bursts"])
    drawing.box(366, 336, 116, 78, "file", "rows.py", ["rows opened", "and closed"])
    drawing.box(490, 336, 118, 78, "file", "columns.py", ["and refresh.py:", "commands"])
    drawing.arrow("M425 426 V494", both=True)
    drawing.text(434, 450, "four command slots a fabric cycle,")
    drawing.text(434, 467, "one each tCK of 1.25 ns")
    drawing.box(
        30, 494, 590, 52, "sim", "DRAM of the channel: 16 GB, DDR4-1600, 800 MHz",
        ["in simulation hw/sim/dram_device.v: carries the bytes, checks every JEDEC rule"],
    )  # fmt: skip
    drawing.box(670, 494, 240, 52, "sim", "DRAM", ["of channel 1"])
    drawing.arrow("M790 480 V492", both=True)
    return drawing


def pim() -> Drawing:
    """The stack's banks with their units, and the way of a work through the pool."""
    config = configure()
    units = config.placement.units
    drawing = Drawing(
        940,
        560,
        "The heterogeneous PIM's fixed-function half",
        f"{sum(units)} multipliers and adders in {config.banks} banks, and the pool around them.",
    )
    drawing.box(
        15, 15, 910, 216, "area",
        f"{sum(units)} units in {config.banks} banks, {config.clock_mhz:g} MHz", heading="title",
    )  # fmt: skip
    kinds = {max(units): "warm", min(units): "file"}
    for bank, count in enumerate(units):
        row, column = divmod(bank, config.columns)
        x, y = 30 + 80 * column, 46 + 43 * row
        drawing.box(x, y, 76, 39, kinds.get(count, "mild"))
        drawing.text(x + 38, y + 17, f"{count} units", kind="name", anchor="middle")
        drawing.text(x + 38, y + 32, f"bank {bank}", anchor="middle")
    legend = [
        "Each number: multipliers and adders",
        "of a bank, about half each. Banks at the",
        "rim have more, since heat leaves",
        "there (the paper's rule; the weights",
        "16 : 14 : 13 are this project's).",
        "",
        "A bank's memory moves 32 bytes a",
        f"cycle: {config.vault_gb_per_s:g} GB/s, {config.banks * config.vault_gb_per_s:g} for all.",
    ]
    for number, line in enumerate(legend):
        drawing.text(688, 62 + 17 * number, line)

    drawing.box(
        15, 252, 400, 44, "file", "host", ["registers on AXI4-Lite, memory on a port of its own"]
    )
    drawing.arrow("M110 296 V318", both=True)
    drawing.arrow("M320 296 V318", both=True)
    drawing.box(15, 320, 190, 48, "product", "registers/", ["descriptor, status, counters"])
    drawing.box(225, 320, 190, 48, "product", "memory/", ["what the host may see"])
    drawing.arrow("M110 368 V388")
    drawing.box(15, 390, 190, 62, "product", "front/", ["checks a work and how", "it is to be cut"])
    drawing.arrow("M110 452 V472")
    drawing.box(
        15,
        474,
        190,
        72,
        "product",
        "scheduler/",
        ["slots, dependences, choice", "of banks, tiles to whoever", "asks"],
    )
    drawing.arrow("M205 510 H228")
    drawing.arrow("M205 490 H215 V344 H223")
    drawing.text(222, 383, "spans of running works")
    drawing.box(230, 390, 425, 156, "area", "bank 0 … bank 31   (bank/)", heading="title")
    drawing.box(
        242, 424, 122, 110, "file", "move/", ["loader, storer:", "any strides,", "32-byte beats"]
    )
    drawing.box(
        372,
        424,
        122,
        110,
        "file",
        "buffer/",
        ["operands, one", "half loads while", "one computes;", "results"],
    )
    drawing.box(
        502,
        424,
        141,
        110,
        "file",
        "units/",
        [
            "lanes: a multiplier",
            "and an adder each;",
            "sums as trees, in",
            "an order that is",
            "specified",
        ],
    )
    drawing.arrow("M657 468 H688", both=True)
    drawing.box(690, 390, 110, 156, "product", "memory/", ["switch: 33", "sources to", "32 vaults"])
    drawing.arrow("M802 468 H823", both=True)
    drawing.box(
        825,
        390,
        100,
        156,
        "sim",
        "vault/",
        ["a controller", "and the DRAM", "of each bank,", "closed page"],
    )
    drawing.arrow("M415 344 H745 V388", both=True)
    return drawing


DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    "rooms": rooms,
    "hardware": hardware,
    "pim": pim,
}
"""What draws each picture, by its name."""
