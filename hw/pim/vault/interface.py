"""Interfaces of a vault: requests and responses on one side, DRAM commands on the other."""

from __future__ import annotations

from functools import cache

from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from hw.dram.interface import SLOTS
from hw.pim.config import BEAT_BYTES
from hw.pim.vault.geometry import VaultGeometry

__all__ = [
    "VaultCommand",
    "VaultCommandsSignature",
    "VaultSignature",
    "vault_request_layout",
    "vault_response_layout",
]


@cache
def vault_request_layout(geometry: VaultGeometry, tag_bits: int) -> data.StructLayout:
    """Return the layout of a read or write of 32 bytes.

    ``address`` is in bytes; its low five bits are ignored. A set bit of ``strobe`` writes the byte
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


@cache
def vault_response_layout(tag_bits: int) -> data.StructLayout:
    """Return the layout of a response; ``data`` is undefined after a write."""
    return data.StructLayout({"data": 8 * BEAT_BYTES, "tag": tag_bits, "write": 1})


class VaultCommand(enum.Enum, shape=3):
    """Commands to the banks of a vault; RDA and WRA precharge the bank afterwards.

    There is no other precharge: under the closed-page policy, the last column of an access
    precharges its bank.
    """

    NOP = 0
    ACT = 1
    RD = 2
    RDA = 3
    WR = 4
    WRA = 5
    REF = 6


class VaultCommandsSignature(wiring.Signature):
    """Commands of a cycle, as the controller sees them.

    Slot i has the members ``command_pi`` (a :class:`VaultCommand`), ``layer_pi``, ``bank_pi``
    and ``address_pi`` (a row with ACT, else a column).
    """

    def __init__(self, geometry: VaultGeometry) -> None:
        members: dict[str, wiring.Member] = {}
        for slot in range(SLOTS):
            members |= {
                f"command_p{slot}": Out(VaultCommand),
                f"layer_p{slot}": Out(geometry.layer_bits),
                f"bank_p{slot}": Out(geometry.bank_bits),
                f"address_p{slot}": Out(geometry.command_address_bits),
            }
        super().__init__(members)


class VaultSignature(wiring.Signature):
    """Commands and data as the controller sees them; the DRAM has them as ``In``.

    Commands are those of :class:`VaultCommandsSignature`. There is no handshake: ``write_data`` is
    taken :func:`~hw.dram.fabric_timing.write_latency` fabric cycles after its command.
    ``read_data`` is valid for one cycle, :func:`~hw.dram.fabric_timing.read_latency` fabric cycles
    after its command. A set bit of ``write_mask`` masks the byte: it is not written.
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
