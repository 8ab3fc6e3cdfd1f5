"""Hosts of GPUs: cores, memory, PCIe and drives of servers and workstations as sold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from .parts import Device, Figure, Link, Memory, assumed, calibrated, given
from .sentinel import TIERS

__all__ = ["HOSTS", "PCIE", "Host"]

PCIE: Mapping[int, Figure] = {
    generation: TIERS[f"pcie{generation}"].link("pcie").read_gb_per_s for generation in (3, 4, 5)
}
"""Rate of an x16 link each way, by generation, in 10^9 bytes/s."""

_ADAM_SHARE = calibrated(
    0.43,
    "one number: DeepSpeed's Adam does 10 billion parameters of 28 bytes in 2.57 s on a DGX-2 "
    "(ZeRO-Offload, ATC 2021, Table 4), which is 109 of its channels' 256 GB/s; beside an H100, "
    "136 of a socket's 307 GB/s were reported",
)
_CALL = assumed(0, "a call of a function")
_WRITE_SHARE = assumed(0.7, "NVMe drives of servers write at 0.6 to 0.8 of the rate of reads")
_DRIVE_BYTES = 4 * 10**12
_DRIVE_LATENCY = assumed(80_000, "a read of flash memory: 60 to 100 us")
_ENOUGH = assumed(1, "the flash memory is the bound, as in Smart-Infinity")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host, with the number of GPUs that share it."""

    sockets: int
    gpus: int
    """GPUs in the machine as it is sold."""
    cores: int
    """Cores of a socket."""
    tflop_per_s: Figure
    """Rate of a socket in FP32, in 10^12 operations/s."""
    gb_per_s: Figure
    """Peak rate of a socket's memory channels, in 10^9 bytes/s."""
    capacity_bytes: Figure
    """Memory of all sockets."""
    drive_gb_per_s: Figure
    """Rate at which a drive reads, in 10^9 bytes/s."""
    drives: int
    """Drives that hold tensors together, as RAID 0."""
    network_gb_per_s: Figure | None = None
    """Rate of all adapters to other hosts together, each way, in 10^9 bytes/s; None without one."""

    def cpu(self, gpus: int = 1) -> Device:
        """Return one GPU's share of the cores, in a job on ``gpus`` GPUs.

        A job on at most half of the GPUs has one socket. The device's ``memory_share`` is that of
        an update of parameters, which the memory bounds.
        """
        sockets = self._sockets(gpus)
        part = f"of {sockets} sockets for {gpus} GPUs" if sockets > 1 or gpus > 1 else "of a socket"
        return Device(
            name="cpu",
            memory="host",
            tflop_per_s=_part(self.tflop_per_s, sockets / gpus, part),
            gb_per_s=_part(self.gb_per_s, sockets / gpus, part),
            launch_ns=_CALL,
            memory_share=_ADAM_SHARE,
        )

    def drive(self, gpus: int = 1) -> tuple[Memory, Link, Device]:
        """Return one GPU's share of the drives: their memory, their link, and what computes there.

        A drive that computes reads its own memory at its own rate, as in a SmartSSD.
        """
        share, part = self.drives / gpus, f"of {self.drives} drives for {gpus} GPUs"
        reads = _part(self.drive_gb_per_s, share, part)
        writes = replace(
            _part(reads, _WRITE_SHARE.value, _WRITE_SHARE.source), mark=_WRITE_SHARE.mark
        )
        memory = Memory(
            name="drive",
            capacity_bytes=assumed(
                int(_DRIVE_BYTES * share), f"{_DRIVE_BYTES // 10**12} TB a drive, {part}"
            ),
        )
        own = Link(
            name="drive", a="host", b="drive", read_gb_per_s=reads, write_gb_per_s=writes,
            latency_ns=_DRIVE_LATENCY, sharing="half",
        )  # fmt: skip
        inside = Device(
            name="drive", memory="drive", tflop_per_s=_ENOUGH, gb_per_s=reads, launch_ns=_CALL
        )
        return memory, own, inside

    def memory_bytes(self, gpus: int = 1) -> Figure:
        """Return one GPU's share of the memory, in whole bytes, in a job on ``gpus`` GPUs."""
        whole, shares = self.capacity_bytes, self.sockets * gpus // self._sockets(gpus)
        source = whole.source + f"; one of {shares} shares" * (shares > 1)
        return Figure(value=int(whole.value) // shares, source=source, mark=whole.mark)

    def _sockets(self, gpus: int) -> int:
        return self.sockets if 2 * gpus > self.gpus else 1


def _part(figure: Figure, share: float, part: str) -> Figure:
    return Figure(value=figure.value * share, source=f"{figure.source}; {part}", mark=figure.mark)


def _host(
    title: str,
    *,
    sockets: int = 1,
    gpus: int = 1,
    cores: int,
    ghz: float,
    lanes: int,
    gb_per_s: float,
    channels: str,
    gib: int,
    drive_gb_per_s: float,
    network: tuple[int, int] | None = None,
    drives: int = 1,
) -> Host:
    """Return a host; ``lanes`` are the FP32 lanes of one of a core's two FMA units.

    ``network`` has the number of adapters to other hosts, and the rate of one in Gb/s.
    """
    return Host(
        sockets=sockets,
        gpus=gpus,
        cores=cores,
        tflop_per_s=assumed(
            cores * ghz * 2 * lanes / 1000,
            f"{title}: {cores} cores of {ghz} GHz, half of their FMA",
        ),
        gb_per_s=given(gb_per_s, f"{title}: a socket has {channels}"),
        capacity_bytes=(given if gpus > 1 else assumed)(gib << 30, f"{title}: {gib} GB"),
        drive_gb_per_s=assumed(drive_gb_per_s, f"{title}: reads of a drive of its generation"),
        network_gb_per_s=network
        and given(prod(network) / 8, f"{title}: {network[0]} adapters of {network[1]} Gb/s"),
        drives=drives,
    )


_HGX = {"sockets": 2, "gpus": 8, "drives": 8}
_DGX_A100 = _host(
    "DGX A100, two EPYC 7742", **_HGX, cores=64, ghz=2.25, lanes=8, gb_per_s=204.8,
    channels="eight channels of DDR4-3200", gib=2048, drive_gb_per_s=6.5,
    network=(8, 200),
)  # fmt: skip
_DGX_H100 = _host(
    "DGX H100, two Xeon Platinum 8480C", **_HGX, cores=56, ghz=2.0, lanes=16, gb_per_s=307.2,
    channels="eight channels of DDR5-4800", gib=2048, drive_gb_per_s=6.8,
    network=(8, 400),
)  # fmt: skip
_DDR4_DESKTOP = _host(
    "a desktop of 2021", cores=12, ghz=3.7, lanes=8, gb_per_s=51.2,
    channels="two channels of DDR4-3200", gib=64, drive_gb_per_s=6.5,
)  # fmt: skip
_DDR5_DESKTOP = _host(
    "a desktop of 2023", cores=16, ghz=4.5, lanes=8, gb_per_s=83.2,
    channels="two channels of DDR5-5200", gib=128, drive_gb_per_s=7.0,
)  # fmt: skip
_WORKSTATION = _host(
    "a workstation with a Threadripper Pro 5975WX", cores=32, ghz=3.6, lanes=8, gb_per_s=204.8,
    channels="eight channels of DDR4-3200", gib=256, drive_gb_per_s=7.0,
)  # fmt: skip

HOSTS: Mapping[str, Host] = {
    "v100": _host(
        "DGX-2, two Xeon Platinum 8168", sockets=2, gpus=16, cores=24, ghz=2.7, lanes=16,
        gb_per_s=128, channels="six channels of DDR4-2666", gib=1536, drive_gb_per_s=3.45, drives=8,
        network=(8, 100),
    ),
    "a100-40": _DGX_A100,
    "a100": _DGX_A100,
    "h100": _DGX_H100,
    "h100-96": _DGX_H100,
    "h200": _DGX_H100,
    "rtx3090": _DDR4_DESKTOP,
    "rtx4090": _DDR5_DESKTOP,
    "rtx4070tis": _DDR5_DESKTOP,
    "a5000": _WORKSTATION,
    "a6000": _WORKSTATION,
}  # fmt: skip
"""Hosts by the name of the GPU in :data:`~sw_driver.machine.gpus.GPUS`."""
