"""GPUs of today: products against public measurements; what formats, shares and hosts change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.machine import MachineError, assumed
from sw_driver.machine.gpus import GPUS
from sw_driver.machine.hosts import HOSTS
from sw_driver.machine.products import START_UP_DEPTH, tiled_shape
from sw_driver.workload.trace import Geometry, Op


def product(rows: int, depth: int, columns: int, dtype: str, kind: str = "mm") -> Op:
    """Return a product of matrices with elements of 2 bytes."""
    return Op(
        id=0,
        kind=kind,
        layer=0,
        phase="forward",
        stage=0,
        reads=(0, 1),
        writes=(2,),
        read_bytes=(2 * rows * depth, 2 * depth * columns),
        write_bytes=(2 * rows * columns,),
        flops=2 * rows * depth * columns,
        dtype=dtype,
        geometry=Geometry(operands=((rows, depth), (depth, columns)), result=(rows, columns)),
    )


def tflop_per_s(op: Op, gpu: str) -> float:
    return op.flops / GPUS[gpu].device.cost(op) / 1000


@pytest.mark.parametrize(
    ("gpu", "dtype", "measured"),
    [
        ("a100", "bf16", 271.2),  # stas00/ml-engineering, the best of many shapes
        ("h100", "bf16", 794.5),
        ("h100", "fp8", 1402.6),
        ("v100", "fp16", 95),  # mli/transformers-benchmarks and a fork
        ("rtx4090", "fp16", 161),
        ("a6000", "fp16", 95),
    ],
)
def test_a_large_product_takes_what_is_measured(gpu: str, dtype: str, measured: float) -> None:
    assert tflop_per_s(product(4096, 4096, 4096, dtype), gpu) == pytest.approx(measured, rel=0.1)
    assert tflop_per_s(product(16384, 16384, 16384, dtype), gpu) < measured


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one() -> None:
    """108 tiles of 128 by 128 are one wave of an A100; one more row of tiles begins another."""
    device = GPUS["a100"].device
    full = product(9 * 128, 8192, 12 * 128, "bf16")
    more = product(9 * 128 + 64, 8192, 12 * 128, "bf16")
    assert device.product_share is not None
    flops = 108 * 2 * 128 * 128 * (8192 + START_UP_DEPTH)
    assert device.cost(full) == pytest.approx(
        flops / (312 * device.product_share.value * 1000), 1e-3
    )
    assert device.cost(more) > 1.05 * device.cost(full)


def test_convolutions_are_products_of_places_and_weights() -> None:
    shapes = Geometry(operands=((8, 3, 6, 6), (16, 3, 3, 3)), result=(8, 16, 4, 4))
    op = replace(product(1, 1, 1, "fp16"), flops=2 * 8 * 16 * 27 * 16, geometry=shapes)
    assert tiled_shape(replace(op, kind="convolution")) == (1, 8 * 16, 16, 27)
    weights = replace(shapes, result=(16, 3, 3, 3))
    of_weights = replace(op, kind="convolution_backward_filter", geometry=weights)
    assert tiled_shape(of_weights) == (1, 16, 27, 8 * 16)


def test_costs_go_with_format_and_bytes() -> None:
    device = GPUS["h100"].device
    costs = [
        device.cost(product(4096, 4096, 4096, each)) for each in ("fp32", "tf32", "bf16", "fp8")
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 5 * costs[2]
    adding = replace(product(4096, 1, 4096, "bf16", "add"), geometry=None)
    assert device.cost(adding) == pytest.approx(adding.nbytes / (3350 * 0.85), rel=0.01)
    small = replace(product(2, 2, 2, "bf16", "add"), geometry=None)
    assert device.cost(small) == device.launch_ns.value
    assert GPUS["v100"].device.formats == ("fp16",)
    assert device.formats == ("tf32", "fp16", "bf16", "fp8")


def test_causal_attention_does_half_of_the_work() -> None:
    device, shapes = GPUS["a100"].device, ((1, 16, 4096, 128),) * 3
    whole = replace(
        product(1, 1, 1, "bf16", "_scaled_dot_product_flash_attention"),
        flops=4 * 16 * 4096**2 * 128,
        geometry=Geometry(operands=shapes, result=shapes[0]),
    )
    half = replace(whole, geometry=Geometry(operands=shapes, result=shapes[0], causal=True))
    assert device.cost(whole) == pytest.approx(2 * device.cost(half), rel=1e-3)
    tflop_per_s = half.flops / 2 / device.sustained().cost(half) / 1000
    assert 130 < tflop_per_s < 190  # FlashAttention-2, forward and backward pass


def test_training_keeps_a_share_of_the_rates() -> None:
    device, op = GPUS["h100"].device, product(8192, 8192, 8192, "bf16")
    assert device.cost(op) / device.sustained().cost(op) == pytest.approx(0.7, rel=1e-3)
    (share,) = {device.sustained().product_share}
    assert share is not None
    assert share.mark == "calibrated"
    assert device.sustained().sustained() == device.sustained()


def test_a_plain_device_has_one_rate() -> None:
    plain = GPUS["a100"].device.plain()
    assert {plain.cost(product(4096, 4096, 4096, each)) for each in ("fp32", "bf16")} == {
        5_000 + -(-2 * 4096**3 // 19_500)
    }


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(
        MachineError, match=r"gpu.memory_share is 1.5: expected a share of at most 1"
    ):
        replace(GPUS["a100"].device, memory_share=assumed(1.5, "a slip of the pen"))


def test_a_host_is_shared_by_the_gpus_of_a_job() -> None:
    host = HOSTS["h100"]
    alone, all_eight = host.cpu(), host.cpu(8)
    assert alone.bytes_per_s == pytest.approx(0.43 * 307.2e9)  # one socket
    assert all_eight.bytes_per_s == pytest.approx(0.43 * 2 * 307.2e9 / 8)
    assert host.memory_bytes(8).value == 2**41 // 8
    assert host.memory_bytes().value == 2**41 // 2
    # Two sockets do what DeepSpeed's Adam was measured to do on this host.
    assert 16 * HOSTS["v100"].cpu(16).bytes_per_s == pytest.approx(28e10 / 2.57, rel=0.02)
