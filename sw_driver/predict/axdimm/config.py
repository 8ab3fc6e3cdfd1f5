"""What the cycle model predicts for: the machine, and where a run's tensors are."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BURST_LINES", "LINE_BYTES", "PARAMETERS_PER_LINE", "CycleConfig", "Placement"]

LINE_BYTES = 64
"""Bytes of a line: a DRAM burst of eight transfers of 64 bits, and a beat of the AXI bus."""

PARAMETERS_PER_LINE = LINE_BYTES // 4

BURST_LINES = 4096 // LINE_BYTES
"""Most lines of an AXI burst, none of which crosses 4 KB (ARM IHI 0022, A3.4.1)."""


@dataclass(frozen=True, kw_only=True)
class CycleConfig:
    """A channel of the machine; the defaults are the paper's.

    DRAM timing has the names of JESD79-4 and is in tCK. The capacity does not matter to the time
    and is left out: a run may be larger than any memory. What the machine cannot be built for is
    refused by its own configuration, and not again here. Raises ``ValueError`` for read buffers
    that are too small for the model.
    """

    bank_groups: int = 4
    banks_per_group: int = 4
    columns: int = 1024
    """Of a row, each 8 bytes wide over the channel."""

    cl: int = 11
    cwl: int = 9
    t_rcd: int = 11
    t_rp: int = 11
    t_ras: int = 28
    t_rc: int = 39
    t_ccd_s: int = 4
    t_ccd_l: int = 5
    t_rrd_s: int = 4
    t_rrd_l: int = 5
    t_faw: int = 20
    t_wr: int = 12
    t_wtr_s: int = 2
    t_wtr_l: int = 6
    t_rtp: int = 6
    t_rfc: int = 440
    t_refi: int = 6240

    lanes: int = 16
    """Functional units: each takes a parameter a fabric cycle."""
    block_bytes: int = 16384
    """Bytes of one tensor that a round loads or stores."""
    buffer_blocks: int = 2
    """Blocks in each FIFO of the kernel."""

    queue_depth: int = 16
    """Bursts in the controller's queue, which is how far ahead rows are prepared."""
    write_buffer_lines: int = 256
    read_buffer_lines: int = 64
    run_length: int = 16
    """Bursts of one direction in a row while the other direction waits."""
    refresh: bool = True
    refresh_postpone: int = 8
    """Refreshes that are collected under load."""
    refresh_pull_in: int = 8
    """Refreshes given in advance when idle."""
    refresh_idle_cycles: int = 32
    """Fabric cycles without a request after which the controller takes itself for idle."""

    def __post_init__(self) -> None:
        # The loop from a read to the place of its line in the buffer, which the model leaves out.
        needed = -(-(self.cl + 4) // 4) + 3
        if self.read_buffer_lines < needed:
            raise ValueError(
                f"read_buffer_lines must be at least {needed} with cl = {self.cl}, so that reads "
                f"follow each other without a gap, got {self.read_buffer_lines}"
            )

    @property
    def block_lines(self) -> int:
        """Lines of a block."""
        return self.block_bytes // LINE_BYTES

    @property
    def lines_per_row(self) -> int:
        return self.columns // 8

    @property
    def banks(self) -> int:
        return self.bank_groups * self.banks_per_group


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Byte addresses of a run's tensors within their channel, multiples of 64.

    ``inputs`` are loaded and ``outputs`` stored, in the order of a round; a result may go where an
    operand was. Raises ``ValueError`` if there are neither.
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ValueError("a run needs a tensor, got neither inputs nor outputs")

    @property
    def tensors(self) -> int:
        """How many are loaded and stored, one that is updated in place counted twice."""
        return len(self.inputs) + len(self.outputs)

    @property
    def check_fabric_cycles(self) -> int:
        """From START until the kernel asks for anything: it checks the settings, in each fabric
        cycle a tensor or a pair that must not overlap (output and input, two outputs)."""
        outputs = len(self.outputs)
        return self.tensors + outputs * len(self.inputs) + outputs * (outputs - 1) // 2
