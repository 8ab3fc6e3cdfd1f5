"""cocotb side of the Adam unit's test: plays operands and compares p, m and v bit for bit."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np

from golden.rules.adam import adam_step
from hw_tests.bench import bench_parameters
from hw_tests.float.player import play
from hw_tests.rules.adam_vectors import hyper_parameters, operands


def _hex(words: Any) -> str:
    return " ".join(f"{word:08x}" for word in words)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def matches_golden(dut: Any) -> None:
    """All results of all hyper-parameters equal the reference model's."""
    parameters = bench_parameters()
    name = parameters["name"]
    sets = hyper_parameters()
    for index, (label, constants) in enumerate(sets.items()):
        for constant, value in constants._asdict().items():
            getattr(dut, f"{name}_{constant}").value = int(value.view(np.uint32))
        given = operands(parameters["seed"] + index, parameters["count"] // len(sets))
        vectors = np.stack([column.view(np.uint32) for column in given], axis=1)
        expected = np.stack(
            [column.view(np.uint32) for column in adam_step(*given, constants)], axis=1
        )
        # Streams without and with few and many gaps, in turn.
        got = await play(dut, name, vectors, results=3, density=(256, 200, 60)[index % 3])
        bad = np.flatnonzero((got != expected).any(axis=1))
        lines = [
            f"p g m v {_hex(vectors[i])}: got p m v {_hex(got[i])}, expected {_hex(expected[i])}"
            for i in bad[:10]
        ]
        assert not len(bad), f"{label}: {len(bad)} of {len(got)} differ\n" + "\n".join(lines)
