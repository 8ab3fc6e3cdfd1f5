"""Works for the benches of banks and pools: small ones of any kind, and larger ones that matter."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from golden.pim import Descriptor, Opcode, StridedTensor
from hw.pim.config import PimConfig
from hw_tests.pim.front.front_works import Works
from hw_tests.pim.plans import any_plan, planned

__all__ = ["bank_works", "dense_work"]


def dense_work(opcode: Opcode, first_byte: int = 0, **sizes: int) -> Descriptor:
    """A work whose tensors are dense and lie one after the other, from multiples of 32 bytes."""
    changes: dict[str, Any] = sizes
    work = Descriptor(opcode=opcode, units=1, **changes)
    for name in work.form.tensors:
        extents = work.extents(name)
        strides = tuple(prod(extents[place + 1 :]) for place in range(len(extents)))
        tensor: dict[str, Any] = {name: StridedTensor(address_bytes=first_byte, strides=strides)}
        work = replace(work, **tensor)
        first_byte += -(-4 * prod(extents) // 32) * 32
    return work


def _read_by_columns(work: Descriptor, name: str) -> Descriptor:
    """The same with the operand's last two indices exchanged in memory."""
    *outer, rows, _ = work.extents(name)
    tensor: StridedTensor = getattr(work, name)
    strides = (*tensor.strides[: len(outer)], 1, rows)
    changes: dict[str, Any] = {name: replace(tensor, strides=strides)}
    return replace(work, **changes)


def bank_works(config: PimConfig, rng: random.Random, small: int = 40) -> list[Descriptor]:
    """Random works, and such that fill buffers and state: long sums, many channels, tiles at the
    edge."""
    works = Works(config, rng.getrandbits(32))
    chosen = [works.small() for _ in range(small)]
    for length in (1, 15, 16, 17, 33, 100):
        matmul = dense_work(
            Opcode.MATMUL, rows=rng.randint(3, 9), columns=rng.randint(3, 20), length=length
        )
        chosen += [matmul, _read_by_columns(matmul, "b"), _read_by_columns(matmul, "a")]
    for rows, columns, length in (
        *((1, 1, 200), (5, 1, 33), (1, 40, 9), (7, 1, 64)),
        *((3, 20, 8), (30, 2, 5), (2, 5, 33)),
    ):
        sizes = {"rows": rows, "columns": columns, "length": length}
        images = rng.randint(1, 2)
        sums = dense_work(Opcode.SUM, images=images, **sizes)
        dot = dense_work(Opcode.DOT, images=images, **sizes)
        chosen += [sums, dot, dense_work(Opcode.MATVEC, **sizes)]
        chosen += [_read_by_columns(each, "a") for each in (sums, dot)]
        chosen.append(_read_by_columns(dot, "b"))
    for opcode in (Opcode.ADD, Opcode.MUL, Opcode.SCALEADD):
        work = dense_work(opcode, rows=rng.randint(1, 3), columns=rng.choice((1, 63, 65, 300)))
        alpha = 0xBF8CCCCD if opcode == Opcode.SCALEADD else 0
        chosen.append(replace(work, alpha_bits=alpha))
    # Operands that have the same element for all of a row.
    for opcode, (columns, repeated) in product(
        (Opcode.ADD, Opcode.MUL, Opcode.SCALEADD),
        ((8, "a"), (9, "b"), (65, "b"), (300, "ab")),
    ):
        work = dense_work(opcode, rows=2, columns=columns)
        alpha = 0xBF8CCCCD if opcode == Opcode.SCALEADD else 0
        for name in set(repeated) & set(work.operands):
            tensor: StridedTensor = getattr(work, name)
            changed: dict[str, Any] = {name: replace(tensor, strides=(1, 0))}
            work = replace(work, **changed)
        chosen.append(replace(work, alpha_bits=alpha))
    common = {"images": 1, "stride": 1, "dilation": 1, "pad_top": 0, "pad_left": 0}
    for changes in (
        {"filter_height": 3, "filter_width": 3, "channels": 5, "pad_top": 1, "pad_left": 1},
        {"filter_height": 2, "filter_width": 2, "channels": 9},
        {"filter_height": 1, "filter_width": 1, "channels": 20},
        {"filter_height": 5, "filter_width": 5, "channels": 2, "stride": 2, "pad_top": 2},
        {"filter_height": 7, "filter_width": 6, "channels": 1, "dilation": 2, "images": 2},
    ):
        sizes = {**common, **changes}
        # The last with too few results for them to be the first vectors.
        for filters, columns in ((4, 9), (9, 2), (19, 3)):
            rows = 3
            reach = {
                name: (outputs - 1) * sizes["stride"] + (sizes[taps] - 1) * sizes["dilation"] + 1
                for name, outputs, taps in (
                    ("height", rows, "filter_height"),
                    ("width", columns, "filter_width"),
                )
            }
            chosen.append(
                dense_work(
                    Opcode.CONV2D,
                    rows=rows,
                    columns=columns,
                    filters=filters,
                    height=max(1, reach["height"] - 2 * sizes["pad_top"]),
                    width=max(1, reach["width"] - 2 * sizes["pad_left"]),
                    **sizes,
                )
            )
    # Lines that are longer than any walk.
    chosen.append(
        dense_work(
            Opcode.CONV2D,
            **{**common, "rows": 2, "columns": 260, "filters": 1, "height": 2, "width": 261},
            channels=1,
            filter_height=1,
            filter_width=2,
        )
    )
    fitting = [
        rng.choice((planned(work, config), any_plan(work, config, rng)))
        for work in chosen
        if _last_byte(work) <= config.local_bytes
    ]
    rng.shuffle(fitting)
    return fitting


def _last_byte(work: Descriptor) -> int:
    return max(work.span(name).stop for name in work.form.tensors)
