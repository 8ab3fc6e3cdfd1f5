"""cocotb side of the tests of units that take numbers one by one: plays operands and compares."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import gather

from golden import narrow
from golden.philox import philox
from hw_tests.bench import bench_parameters
from hw_tests.float.player import play
from hw_tests.float.vectors import SPECIAL, uniform_bits

PARAMETERS = bench_parameters()
RNG = np.random.default_rng(PARAMETERS["seed"])
DENSITIES = (256, 100)
"""Cycles of 256 that carry operands, of the first four fifths of all and of the rest."""


async def check(dut: Any, name: str, vectors: Any, expected: Any) -> None:
    """Plays operands through the unit ``name``: without gaps, then with many."""
    expected = np.atleast_2d(expected.T).T
    most = 4 * len(vectors) // 5
    for density, part in zip(DENSITIES, (slice(most), slice(most, None)), strict=True):
        got = await play(dut, name, vectors[part], results=expected.shape[1], density=density)
        bad = np.flatnonzero((got != expected[part]).any(axis=1))
        lines = [
            f"{' '.join(f'{word:08x}' for word in vectors[part][i])}: got {got[i]}, "
            f"expected {expected[part][i]}"
            for i in bad[:10]
        ]
        assert not len(bad), f"{name}: {len(bad)} of {len(got)} differ\n" + "\n".join(lines)


def rows(*columns: Any) -> Any:
    """Operands, a column for each port."""
    return np.stack([np.asarray(each).astype(np.uint32) for each in columns], axis=1)


def near(bits: Any, count: int) -> Any:
    """Numbers next to those of ``bits``, and these, ``count`` in all."""
    offsets = RNG.integers(-2, 3, count)
    return (RNG.choice(bits, count).astype(np.int64) + offsets).astype(np.uint32)


def numbers(count: int) -> Any:
    """FP32 numbers of all kinds, as bits."""
    signed = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31)])
    return RNG.permutation(np.concatenate([uniform_bits(RNG, count), near(signed, count // 4)]))


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def bf16(dut: Any) -> None:
    """Every BF16 number and others in FP32, with every random number."""
    every = RNG.permutation(np.arange(1 << 16, dtype=np.uint16))
    halves = RNG.integers(0, 1 << 16, 300_000, dtype=np.uint16)
    # Ties and their neighbours on either side.
    ties = (halves.astype(np.uint32) << 16) + RNG.integers(0x7FFE, 0x8002, len(halves))
    given = np.concatenate([every.astype(np.uint32) << 16, ties, numbers(400_000)])
    given = given.astype(np.uint32)
    random = RNG.integers(0, 1 << 16, len(given), dtype=np.uint16)
    random[: 1 << 16] = every
    values = given.view(np.float32)
    dut.fp32_to_bf16_stochastic.value = 0
    to_nearest = narrow.to_bf16(values)
    await check(dut, "fp32_to_bf16", rows(given, random), to_nearest)
    dut.fp32_to_bf16_stochastic.value = 1
    stochastic = narrow.to_bf16_stochastic(values, random)
    await check(dut, "fp32_to_bf16", rows(given, random), stochastic)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def generator(dut: Any) -> None:
    """Philox's published vectors and any others; a number for each parameter."""
    ones, name = 0xFFFFFFFF, "philox4x32_10"
    # Random123, kat_vectors, philox4x32 with 10 rounds.
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    known = {
        (0,) * 6: [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        (ones,) * 6: [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        tuple(pi): [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    }
    for words, expected in known.items():
        dut.philox4x32_10_key.value = words[5] << 32 | words[4]
        vectors = np.array([words[:4]] * 10, dtype=np.uint32)
        await check(dut, name, vectors, np.array([expected] * 10, dtype=np.uint32))
    vectors = RNG.integers(0, 1 << 32, (50_000, 4), dtype=np.uint32)
    words = philox(tuple(vectors.astype(np.uint64).T), (pi[4], pi[5]))
    await check(dut, name, vectors, np.stack(words, axis=1).astype(np.uint32))

    seed, step = 0x0123456789ABCDEF, 0xFEDCBA98
    for lanes in PARAMETERS["lanes"]:
        name = f"random_words_{lanes}_lanes"
        getattr(dut, f"{name}_seed").value = seed
        getattr(dut, f"{name}_step").value = step
        groups = np.arange(4000)
        expected = narrow.random_words(lanes * len(groups), seed, step).reshape(-1, lanes)
        await check(dut, name, rows(groups), expected)
        # Counters of more than 32 bits.
        groups = RNG.integers((1 << 32) - 4000, 1 << 32, 1000)
        blocks = (groups[:, None] * lanes + np.arange(lanes)).astype(np.uint64) // 8
        words = philox((blocks & ones, blocks >> 32, step, 0), (seed & ones, seed >> 32))
        halves = np.stack(words, axis=-1).astype("<u4").view("<u2")
        place = (groups[:, None] * lanes + np.arange(lanes)) % 8
        expected = np.take_along_axis(halves, place[..., None], axis=-1)[..., 0]
        await check(dut, name, rows(groups), expected)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def codes(dut: Any) -> None:
    """Every code with 1,000 scales, subnormal numbers kept and flushed; codes of many numbers and
    of those next to thresholds."""
    for kind, tables in PARAMETERS["tables"].items():
        search, *dequantizers = PARAMETERS["units"][kind]
        for which, table in enumerate(tables):
            for unit in (search, *dequantizers):
                getattr(dut, f"{unit}_select").value = which
            scales = numbers(1000)[:1000] & np.uint32(0x7FFFFFFF)
            each = np.tile(np.arange(256, dtype=np.uint8), len(scales))
            state = narrow.Quantized(codes=each, scales=scales.view(np.float32))
            limits = narrow.thresholds(table)
            n = np.concatenate([numbers(280_000), near(limits.view(np.uint32), 50_000)])
            found = np.searchsorted(limits, n.view(np.float32))
            found = np.where(np.isnan(n.view(np.float32)), narrow.code_of_zero(table), found)
            playing = [check(dut, search, rows(n), found)]
            for unit, subnormals in zip(dequantizers, ("kept", "flushed"), strict=True):
                values = narrow.dequantize(state, table, subnormals).view(np.uint32)
                playing.append(check(dut, unit, rows(each, np.repeat(scales, 256)), values))
            await gather(*playing)
