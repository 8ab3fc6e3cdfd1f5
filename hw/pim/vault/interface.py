"""The interfaces of a vault: requests and responses on one side, DRAM commands on the other."""

from __future__ import annotations

from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import BEAT_BYTES
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.vault.timing import BURST_TCK, VaultTiming

__all__ = [
    "VAULT_SLOTS",
    "VaultCommand",
    "VaultCommandsSignature",
    "VaultSignature",
    "vault_read_latency",
    "vault_request_layout",
    "vault_response_layout",
    "vault_write_latency",
]

VAULT_SLOTS = 4
"""Command slots of a fabric cycle; slot i of fabric cycle c is tCK 4*c + i."""


def vault_request_layout(geometry: VaultGeometry, tag_bits: int) -> data.StructLayout:
    """A read or write of 32 bytes.

    ``address`` is in bytes, its low five bits are ignored. A set bit of ``strobe`` writes the byte
    of ``data``; a read ignores both. ``tag`` comes back with the response.
    """
    return data.StructLayout(
        {
            "data": 8 * BEAT_BYTES,
            "strobe": BEAT_BYTES,
            "address": geometry.address_bits,
            "tag": tag_bits,
            "write": 1,
        }
    )


def vault_response_layout(tag_bits: int) -> data.StructLayout:
    """The data of a read, or that a write is done, of which ``data`` is undefined."""
    return data.StructLayout({"data": 8 * BEAT_BYTES, "tag": tag_bits, "write": 1})


class VaultCommand(enum.Enum, shape=3):
    """Commands to the banks of a vault; RDA and WRA precharge the bank when they are done.

    There is no other precharge: under the closed-page policy the last column of an access does it.
    """

    NOP = 0
    ACT = 1
    RD = 2
    RDA = 3
    WR = 4
    WRA = 5
    REF = 6


def vault_read_latency(timing: VaultTiming, slot: int = 0) -> int:
    """Fabric cycles from the one that carries a RD or RDA in ``slot`` to that of ``read_data``.

    The first cycle that starts when the burst has been received in full.
    """
    return -(-(slot + timing.cl + BURST_TCK) // VAULT_SLOTS)


def vault_write_latency(timing: VaultTiming, slot: int = 0) -> int:
    """Fabric cycles from the one that carries a WR or WRA in ``slot`` to that of ``write_data``.

    The last cycle that starts no later than the first transfer of the burst.
    """
    return (slot + timing.cwl) // VAULT_SLOTS


class VaultCommandsSignature(wiring.Signature):
    """The commands of a cycle, as the controller sees them.

    Slot i has the members ``command_pi`` (a :class:`VaultCommand`), ``layer_pi``, ``bank_pi``
    and ``address_pi`` (a row with ACT, else a column).
    """

    def __init__(self, geometry: VaultGeometry) -> None:
        members: dict[str, wiring.Member] = {}
        for slot in range(VAULT_SLOTS):
            members |= {
                f"command_p{slot}": Out(VaultCommand),
                f"layer_p{slot}": Out(geometry.layer_bits),
                f"bank_p{slot}": Out(geometry.bank_bits),
                f"address_p{slot}": Out(geometry.command_address_bits),
            }
        super().__init__(members)


class VaultSignature(wiring.Signature):
    """Commands and data as the controller sees them; the DRAM has it as ``In``.

    Commands are those of :class:`VaultCommandsSignature`. There is no handshake: ``write_data`` is
    taken :func:`vault_write_latency` fabric cycles after its command, and ``read_data`` is valid
    for one cycle, :func:`vault_read_latency` fabric cycles after its command. A set bit of
    ``write_mask`` keeps the byte from being written.
    """

    def __init__(self, geometry: VaultGeometry) -> None:
        self.geometry = geometry
        super().__init__(
            {
                **VaultCommandsSignature(geometry).members,
                "write_data": Out(8 * BEAT_BYTES),
                "write_mask": Out(BEAT_BYTES),
                "read_data": In(8 * BEAT_BYTES),
            }
        )
