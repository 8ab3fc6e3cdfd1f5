"""Designs as files for other tools: Verilog with a description, or a package."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from amaranth.hdl import UnusedElaboratable

from hw.verilog.generate import Machines, generate
from sw_driver.files import write_whole
from sw_driver.report import Report, Table, Watch, count
from sw_driver.simulator.processes import kill_started

from .package import write_package
from .synthesis import RESOURCES, design_resources, find_yosys

__all__ = ["report"]


def report(
    names: Sequence[str],
    machines: Machines,
    folder: Path,
    *,
    own_name: str | None = None,
    src: bool = False,
    resources: bool = False,
    is_package: bool = False,
    watch: Watch = Watch(),
) -> Report:
    """Write designs, made for ``machines``, into ``folder``; with ``resources`` synthesize them.

    ``own_name`` and ``src`` are those of :func:`~hw.verilog.generate.generate`. With ``is_package``
    :func:`~sw_driver.fpga.package.write_package` writes the only design, and its errors are raised.
    """
    # Equal components become one module: all but the first are made only for their ports.
    warnings.simplefilter("ignore", UnusedElaboratable)
    files: list[Path] = []
    counts: dict[str, dict[str, int]] = {}
    if resources:
        find_yosys()
    for design in watch.track(names, "writing Verilog"):
        with kill_started():
            if is_package:
                files = write_package(folder, design, machines, name=own_name, src=src)
                continue
            text, description = generate(design, machines, name=own_name, src=src)
        name = description["name"]
        if resources:
            description["resources"] = counts[name] = design_resources(text, top=name)
        texts = {f"{name}.v": text, f"{name}.json": json.dumps(description, indent=2) + "\n"}
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in texts.items():
            files.append(folder / file)
            write_whole(files[-1], content)
    columns = {
        resource.replace("_", " "): lambda name, resource=resource: count(counts[name][resource])
        for resource in RESOURCES
    }
    title = "On an UltraScale+ FPGA (Yosys; mapped, not placed)"
    return Report(
        results={"resources": counts},
        parts=[Table.of(title, counts, {"design": str} | columns)] if counts else [],
        machine={
            "module": machines.module.describe(),
            "pim": asdict(machines.pim),
            "memory_node": asdict(machines.node),
            "clock_gate_cell": machines.clock_gate_cell,
            "depths": dict(machines.depths),
        },
        workload={"designs": list(names)},
        files=files,
    )
