"""Machines to compare systems on: a GPU at a host, with the parts that each system adds.

Each system uses only its own parts: cores of the host, a module and drives as in Kim et al.,
memory-nodes at links of the GPU as in Kwon and Rhu, a CXL expander, or a memory stack as in Liu et
al. No built machine has them all. A machine with several GPUs is one GPU's share of it, since all
GPUs do the same at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine import Device, Figure, Machine, Memory, assumed, calibrated, given
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.machine.files import read_machine_file
from sw_driver.machine.gpus import GPUS
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.machine.hosts import HOSTS, PCIE
from sw_driver.machine.mc_dla import CATALOGUES
from sw_driver.machine.measured import V100_PCIE
from sw_driver.machine.memferry import MEMFERRY_V100
from sw_driver.machine.parts import link
from sw_driver.machine.processors import V100
from sw_driver.machine.sentinel import TIERS
from sw_driver.numbers import check_name
from sw_driver.workload.precision import PRECISIONS

from ..axdimm.platform import PAPER_RATES

__all__ = [
    "BASES",
    "CPU_WATTS",
    "IDLE_KEYS",
    "check_formats",
    "checked",
    "gpu_watts",
    "machine_of",
    "named",
    "usual_precision",
]

_LINKS = 6
"""Links from a GPU to memory-nodes (Kwon and Rhu)."""
_ENOUGH = assumed(1000, "the GPU's own link is the bound")
_NODES = {
    "v100": "mc_dla",
    "a100-40": "a100",
    "a100": "a100",
    "h100": "h100",
    "h100-96": "h100",
    "h200": "h100",
}
"""Entries of ``CATALOGUES`` by GPU; GPUs without NVLink have no memory-nodes."""
_HOP = assumed(5_000, "a collective's begin: some microseconds in NCCL")
_BUS_SHARE = 0.75
"""Share of the links between GPUs that large collectives reach."""
_FITTED = AXDIMM_PLATFORM.override(
    PAPER_RATES.changes(),
    lambda value, source: calibrated(value, f"fitted to Kim et al., Table 6, {source}"),
)


def _base(name: str, gpu: Device, capacity_bytes: Figure, pcie: Figure, parts: str) -> Machine:
    """Return a machine; ``parts`` names the entry of ``CATALOGUES`` for links to memory-nodes."""
    cxl = TIERS["cxl"]
    memories = [
        Memory(name="gpu", capacity_bytes=capacity_bytes),
        Memory(name="host", capacity_bytes=assumed(256 << 30, "as servers of these years have")),
        *(_FITTED.memory(name) for name in ("module0", "module1", "nvme")),
        Memory(
            name="cxl",
            capacity_bytes=given(256 << 30, "Micron CZ120: the larger of 128 and 256 GB"),
            total_gb_per_s=cxl.memory("slow").total_gb_per_s,
        ),
        HETERO_PIM.memory("stack"),
    ]
    links = [
        link("root_port", "root", "port", _ENOUGH, assumed(0, "in the GPU's")),
        link("pcie", "port", "gpu", pcie, V100_PCIE["latency_ns"]),
        *(
            _FITTED.link(name)
            for name in ("module", "channel0", "channel1", "drives", "nvme", "direct")
        ),
        replace(cxl.link("cxl"), a="gpu", b="cxl"),
    ]
    if parts:
        catalogue = CATALOGUES[parts]
        dimms = catalogue.link("dimms").read_gb_per_s
        rate = catalogue.link("link").read_gb_per_s
        memories.append(replace(catalogue.memory("memory_node"), total_gb_per_s=dimms))
        rate = replace(rate, value=_LINKS * rate.value, source=f"{_LINKS} links: {rate.source}")
        links.append(link("node", "gpu", "memory_node", rate, catalogue.link("link").latency_ns))
    return Machine(
        name=name,
        memories=tuple(memories),
        devices=(gpu, MEMFERRY_V100.device("cpu")),
        links=tuple(links),
        junctions=("root", "port", "storage", "phy"),
    )


def _at_host(machine: Machine, gpu: str, gpus: int, network: Figure | None = None) -> Machine:
    """Return a machine with one GPU's share of its own host, and a link to the other GPUs."""
    host, peers = HOSTS[gpu], GPUS[gpu].nvlink_gb_per_s or PCIE[GPUS[gpu].pcie]
    if gpus > host.gpus and (network := network or host.network_gb_per_s):
        # Rings through all adapters of a host: a byte enters and leaves it once.
        peers = min(peers, network, key=lambda figure: figure.value)
    peers = assumed(_BUS_SHARE * peers.value, f"{_BUS_SHARE:g} of {peers.source}, as NCCL reaches")
    own = min(gpus, host.gpus)
    memories = tuple(
        replace(memory, capacity_bytes=host.memory_bytes(own)) if memory.name == "host" else memory
        for memory in machine.memories
    )
    links = (link("peers", "gpu", "fabric", peers, _HOP),) if gpus > 1 else ()
    memory, drive, inside = host.drive(own)
    return replace(
        machine,
        memories=(*(one for one in memories if one.name != "drive"), memory),
        devices=(machine.device("gpu"), host.cpu(own), inside),
        links=(*(one for one in machine.links if one.name != "drive"), drive, *links),
        junctions=(*machine.junctions, *("fabric" for _ in links)),
    )


def _papers(name: str) -> Machine:
    """Return a machine on the terms of the papers: FP32, at the rates of data sheets."""
    gpu = GPUS[name]
    device = V100 if name == "v100" else gpu.device.plain()
    machine = _base(name, device, gpu.capacity_bytes, PCIE[gpu.pcie], _NODES.get(name, ""))
    own = _at_host(machine, name, 1)
    if name != "v100":
        return own
    return replace(
        machine,
        memories=(*machine.memories, own.memory("drive")),
        devices=(*machine.devices, own.device("drive")),
        links=(*machine.links, own.link("drive")),
    )


BASES: Mapping[str, Machine] = {name: _papers(name) for name in GPUS}
"""Machines with one GPU on the terms of the papers, by the name of the GPU.

``v100`` is the PCIe card, at the host of Yao et al. GPUs of workstations and desktops have no links
to memory-nodes.
"""


def machine_of(
    name: str, precision: str = "fp32", *, network_gb_per_s: Figure | None = None
) -> Machine:
    """Return a machine by the name of its GPU, such as ``h100`` or, with eight of them, ``h100x8``.

    More GPUs than a host has are several hosts: ``h100x64`` is eight. A collective then has the
    rate of a host's network, by default that of the host as sold, or of the links between its GPUs.

    With ``precision`` ``fp32`` its GPU has the rates of :data:`BASES`; with another, those that it
    keeps in training, by format and shape. A name that ends in ``.toml`` is that of a
    :mod:`machine file <sw_driver.machine.files>`. Its GPU has the latter rates in FP32, too, and
    its figures are of one GPU's share. As for a base, training keeps ``sustained_share`` of its
    ``product_share``. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown
    name, and for more GPUs than the machine has.
    """
    title, base, file = "--machine", name, None
    if name.endswith(".toml"):
        file = read_machine_file(name)
        title, base = f"{name}: base", file.base
        if not base:
            raise InvalidArgumentError(
                f'{name} has no base for figures that it lacks: begin it with base = "GPU", or '
                f"measure with --gpu, one of {', '.join(GPUS)}"
            )
    gpu, gpus = checked(base, title)
    is_papers = precision == "fp32" and file is None
    if is_papers and gpus == 1:
        return BASES[gpu]
    device = BASES[gpu].device("gpu") if is_papers else GPUS[gpu].device
    machine = _at_host(replace(BASES[gpu], name=base), gpu, gpus, network_gb_per_s)
    machine = replace(machine, devices=(device, *machine.devices[1:]))
    if file is not None:
        machine = file.applied(machine)
    kept = machine.device("gpu").sustained()
    return replace(machine, devices=(kept, *machine.devices[1:]))


def checked(name: str, title: str) -> tuple[str, int]:
    """Return the GPU and the number of GPUs in the name of a machine.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` with the ``title`` of an unknown
    name, and for more GPUs than the machine has.
    """
    gpu, gpus = _split(name)
    check_name(title, gpu, GPUS)
    most = HOSTS[gpu].gpus
    hosts = HOSTS[gpu].network_gb_per_s is not None and gpus % most == 0
    if not (1 <= gpus <= most or (hosts and gpus)):
        advice = f"give {gpu}"
        if most > 1:
            advice = f"such as {gpu}x{most}, or several hosts as {gpu}x{2 * most}"
        raise InvalidArgumentError(
            f"{title} is {name!r}: that host has GPUs up to a number of {most}; {advice}"
        )
    return gpu, gpus


def named(name: str) -> tuple[str, int]:
    """Return the GPU and the number of GPUs in the name of a machine or in its file."""
    return _split(read_machine_file(name).base if name.endswith(".toml") else name)


def _split(name: str) -> tuple[str, int]:
    name = name.partition(" (")[0]  # the name of a file follows
    gpu, _, count = name.rpartition("x")
    several = name not in GPUS and gpu in GPUS and count.isdecimal()
    return (gpu, int(count)) if several else (name, 1)


def usual_precision(gpu: str) -> str:
    """Return the precision that most training on a GPU has: BF16 where the GPU has it."""
    return "bf16-mixed" if "bf16" in GPUS[gpu].device.formats else "fp16-mixed"


def check_formats(gpu: str, formats: Iterable[str], title: str, advice: str = "") -> None:
    """Raise ``InvalidArgumentError`` for formats that a GPU lacks.

    ``title`` names their user. The ``advice`` is by default to give another precision.
    """
    known = ("fp32", *GPUS[gpu].device.formats)
    if lacking := sorted({*formats} - {*known}):
        possible = [name for name, own in PRECISIONS.items() if {*own} <= {*known}]
        advice = advice or f"give --precision as one of {', '.join(possible)}"
        raise InvalidArgumentError(
            f"{title}, but {gpu} has no rate for {', '.join(lacking).upper()}, only for "
            f"{', '.join(known).upper()}: {advice}, or give another --machine"
        )


IDLE_KEYS = ("cpu.accesses", "gpu.cache_bytes", "memory_node.transfers", "stack.transfers")
"""Settings of these machines that no system depends on."""

CPU_WATTS = assumed(105, "a socket of 12 cores: Intel's E5-2650 v4")
"""Power in W of the host's cores while they work."""
_CARD_WATTS = given(250, "NVIDIA V100 data sheet: PCIe, the whole card")


def gpu_watts(machine: Machine) -> Figure | None:
    """Return the power in W of one of a machine's GPUs while it works; None if unknown."""
    gpu, _ = named(machine.name)
    if gpu == "v100" and machine.device("gpu").multiprocessors is None:
        return _CARD_WATTS
    return GPUS[gpu].watts if gpu in GPUS else None
