"""Switch between the banks of the stack, the host, and the vaults."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.pim.config import BEAT_BYTES, STRIPE_BYTES, PimConfig
from hw.pim.memory.crossbar import Crossbar
from hw.pim.memory.memory_port import MEMORY_TAG_BITS, memory_request_layout, memory_response_layout
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.vault.interface import vault_request_layout, vault_response_layout

__all__ = ["MemorySwitch"]

_RUN_BEATS = STRIPE_BYTES // BEAT_BYTES


class MemorySwitch(wiring.Component):
    """Switch that carries requests of all banks and the host to all vaults, and responses back.

    The lower half of vault i is bank i's local memory, the upper half its stripes, see
    :class:`~hw.pim.config.PimConfig`. A vault serves its sources in turn. It takes up to 16
    requests of one source in a row if they come without a pause, for the same 512 bytes and in one
    direction. The vault then activates its banks once for all of them. A source gets its responses
    from the vaults in turn.

    The requests of a source to one vault stay in order, and so do their responses. Those of
    different vaults overtake each other. A request waits until the source's previous one has left.
    Without contention, requests and responses take three cycles each.

    A source that does not take its responses stops the vaults that answer it, and so other sources.
    It should have no more requests in flight than it can take responses.

    Parameters
    ----------
    config
        The banks.
    geometry
        Organisation of a vault; ``ValueError`` unless it holds ``vault_bytes``.

    Members
    -------
    bank_0_request, bank_1_request, ..., host_request : \
In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    bank_0_response, bank_1_response, ..., host_response : \
Out(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
    vault_0_request, vault_1_request, ... : \
Out(stream of :func:`~hw.pim.vault.interface.vault_request_layout`, with :attr:`tag_bits`)
    vault_0_response, vault_1_response, ... : \
In(stream of :func:`~hw.pim.vault.interface.vault_response_layout`)
    idle : Out(1)
        No request and no response is inside.
    """

    def __init__(self, *, config: PimConfig, geometry: VaultGeometry) -> None:
        if geometry.capacity_bytes != config.vault_bytes:
            raise ValueError(
                f"a vault must hold the vault_bytes of a bank, {config.vault_bytes}, got "
                f"{geometry.capacity_bytes}; see VaultGeometry.with_capacity"
            )
        self._config = config
        self._geometry = geometry
        self.sources = [*(f"bank_{bank}" for bank in range(config.banks)), "host"]
        request, response = memory_request_layout(config), memory_response_layout()
        members: dict[str, Any] = {"idle": Out(1)}
        for source in self.sources:
            members[f"{source}_request"] = In(stream.Signature(request))
            members[f"{source}_response"] = Out(stream.Signature(response))
        request = vault_request_layout(geometry, self.tag_bits)
        response = vault_response_layout(self.tag_bits)
        for bank in range(config.banks):
            members[f"vault_{bank}_request"] = Out(stream.Signature(request))
            members[f"vault_{bank}_response"] = In(stream.Signature(response))
        super().__init__(members)

    @property
    def tag_bits(self) -> int:
        """Width of a vault's tag: the source's tag and the source's number."""
        return MEMORY_TAG_BITS + (len(self.sources) - 1).bit_length()

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        banks, sources = self._config.banks, self.sources
        m.submodules.requests = requests = Crossbar(
            shape=vault_request_layout(self._geometry, self.tag_bits),
            inputs=len(sources),
            outputs=banks,
            name="pim_requests",
        )
        m.submodules.responses = responses = Crossbar(
            shape=memory_response_layout(),
            inputs=banks,
            outputs=len(sources),
            name="pim_responses",
        )
        for number, source in enumerate(sources):
            self._ask(m, number, getattr(self, f"{source}_request"), requests)
            answer = getattr(responses, f"o_{number}")
            wiring.connect(m, answer, wiring.flipped(getattr(self, f"{source}_response")))
        for bank in range(banks):
            request = getattr(requests, f"o_{bank}")
            wiring.connect(m, request, wiring.flipped(getattr(self, f"vault_{bank}_request")))
            self._answer(
                m, getattr(self, f"vault_{bank}_response"), getattr(responses, f"i_{bank}")
            )
        m.d.comb += self.idle.eq(requests.idle & responses.idle)
        return m

    def _ask(self, m: Any, number: int, source: Any, crossbar: Any) -> None:
        """Split an address, put the source's number into the tag, and detect runs."""
        request, into = source.payload, getattr(crossbar, f"i_{number}")
        carried = into.payload.payload
        vault, beat = self._place(m, request.address)
        m.d.comb += [
            into.valid.eq(source.valid),
            source.ready.eq(into.ready),
            into.payload.to.eq(vault),
            carried.address.eq(beat << exact_log2(BEAT_BYTES)),
            carried.tag.eq(Cat(request.tag, Const(number, self.tag_bits - MEMORY_TAG_BITS))),
            carried.data.eq(request.data),
            carried.strobe.eq(request.strobe),
            carried.write.eq(request.write),
        ]
        run = Signal(range(_RUN_BEATS))
        stretch = Cat(request.address[_RUN_BEATS.bit_length() - 1 :], request.write)
        last_stretch = Signal.like(stretch)
        m.d.comb += into.payload.follows.eq((stretch == last_stretch) & (run != _RUN_BEATS - 1))
        with m.If(source.valid & source.ready):
            m.d.sync += [
                last_stretch.eq(stretch),
                run.eq(Mux(into.payload.follows, run + 1, 0)),
            ]

    def _place(self, m: Any, address: Any) -> tuple[Any, Any]:
        """Return the vault of a beat, and the beat's number in the vault."""
        bank_beats = exact_log2(self._config.bank_bytes // BEAT_BYTES)
        stripe, banks = exact_log2(_RUN_BEATS), exact_log2(self._config.striped_banks)
        vault = Signal(range(max(self._config.banks, 2)))
        beat = Signal(bank_beats + 1)
        with m.If(address[-1]):
            m.d.comb += [
                vault.eq(address[stripe : stripe + banks]),
                beat.eq(Cat(address[:stripe], address[stripe + banks : bank_beats + banks], 1)),
            ]
        with m.Else():
            m.d.comb += [vault.eq(address[bank_beats:-1]), beat.eq(address[:bank_beats])]
        return vault, beat

    def _answer(self, m: Any, vault: Any, into: Any) -> None:
        """Route a response to its source, by the number in the tag."""
        answered, carried = vault.payload, into.payload.payload
        m.d.comb += [
            into.valid.eq(vault.valid),
            vault.ready.eq(into.ready),
            into.payload.to.eq(answered.tag[MEMORY_TAG_BITS:]),
            carried.tag.eq(answered.tag[:MEMORY_TAG_BITS]),
            carried.data.eq(answered.data),
            carried.write.eq(answered.write),
        ]
