"""cocotb side of the units' test: plays operands and compares all results bit for bit."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np

from golden.rules import reference
from hw_tests.bench import bench_parameters
from hw_tests.float.player import play
from hw_tests.rules.vectors import SETS, constants_of, operands


def _hex(words: Any) -> str:
    return " ".join(f"{word:08x}" for word in words)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def matches_golden(dut: Any) -> None:
    """All results of a rule with all hyper-parameters equal the reference model's."""
    await _check(dut, **bench_parameters())


async def _check(
    dut: Any, name: str, *, module: str, subnormals: str, seed: int, count: int
) -> None:
    model = reference(name, subnormals)
    for index, label in enumerate(SETS):
        constants = constants_of(name, label)
        for constant, value in constants.items():
            getattr(dut, f"{module}_{constant}").value = int(value.view(np.uint32))
        given = operands(seed + index, model.inputs, count // len(SETS))
        vectors = np.stack([column.view(np.uint32) for column in given], axis=1)
        tensors = dict(zip(model.inputs, given, strict=True))
        results = model.step(tensors, constants)
        expected = np.stack([results[each].view(np.uint32) for each in model.outputs], axis=1)
        # Streams without and with few and many gaps, in turn.
        got = await play(
            dut,
            module,
            vectors,
            results=len(model.outputs),
            density=(256, 200, 60)[index % 3],
        )
        bad = np.flatnonzero((got != expected).any(axis=1))
        lines = [
            f"{' '.join(model.inputs)} {_hex(vectors[i])}: got {' '.join(model.outputs)} "
            f"{_hex(got[i])}, expected {_hex(expected[i])}"
            for i in bad[:10]
        ]
        differ = f"{name}, {label}: {len(bad)} of {len(got)} differ"
        assert not len(bad), "\n".join([differ, *lines])
