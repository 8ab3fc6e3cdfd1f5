"""Costs of operations by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from hw.pim.config import configure
from hw_tests.driver.system.hetero_pim.test_operations import CONVOLUTION
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.pim.layers import Convolution
from sw_driver.predict.pim.core import kernel_cycles
from sw_driver.system.hetero_pim import operations
from sw_driver.system.hetero_pim.configurations import STRICT
from sw_driver.system.hetero_pim.costs import Cost, Costs, Phase
from sw_driver.system.hetero_pim.operations import cycles_of
from sw_driver.workload import Geometry, Op

PREDICTED, CALIBRATED = Costs(readings=STRICT), Costs(unit_rate=2, readings=STRICT)


def _op(kind: str, read: list[int], written: list[int], flops: int = 0, **changes: object) -> Op:
    return replace(
        CONVOLUTION,
        kind=kind,
        reads=tuple(range(len(read))),
        writes=tuple(range(len(written))),
        read_bytes=tuple(read),
        write_bytes=tuple(written),
        flops=flops,
        **{"geometry": None, **changes},  # type: ignore[arg-type]
    )


def _shapes(phases: tuple[Phase, ...]) -> list[tuple[str, str]]:
    return [(phase.device, phase.kernel) for phase in phases]


def test_cpu_and_gpu_by_their_rates() -> None:
    # 307.2 GFLOP/s and 59 GB/s: 10 ns of computing, 20 of memory of which 10 are hidden.
    assert PREDICTED.cpu(_op("mul", [590, 0], [590], 3072)) == Cost(10, 10, 0)
    assert PREDICTED.cpu(_op("mul", [59], [59], 3072)) == Cost(10, 0, 0)
    # Nothing takes no time, even if its operands are all in the cache.
    assert PREDICTED.cpu(_op("fill_", [], [0])) == Cost(0, 1, 0)
    # 10.752 TFLOP/s and 484 GB/s, of which a network uses half.
    half = Costs(gpu_use=0.5)
    assert half.gpu(_op("mm", [4], [4], 10_752_000)) == Cost(2000, 0, 0)
    assert half.gpu(_op("mul", [484_000], [0], 10_752)) == Cost(2000, 0, 0)


def test_calibrated_units_and_memory() -> None:
    # 444 units, 2 operations each: 888 a cycle of 3.2 ns; a bank's memory moves 32 bytes.
    phase = Phase("pools", "descent", 888_000, 1024)
    assert CALIBRATED.pools_ns(phase, 32) == 3200
    assert CALIBRATED.pools_ns(phase, 8) == 12_800
    assert CALIBRATED.pools_ns(phase._replace(nbytes=1024 * 2000), 32) == 6400
    assert Costs(unit_rate=2, frequency=4).pools_ns(phase, 32) == 800
    slow = HETERO_PIM.override({"stack.total_gb_per_s": "160"})
    assert Costs(machine=slow, unit_rate=2).pools_ns(phase._replace(nbytes=1024_000), 8) == 25_600
    # An ARM core does 4 of a product and else 1, at 2 GHz.
    product = Phase("core", "add_up", 8000, 0)
    assert CALIBRATED.core_ns(product) == 1000
    assert CALIBRATED.core_ns(product._replace(kernel="relu")) == 4000
    assert CALIBRATED.core_ns(product._replace(nbytes=100_000)) == 10_000
    # Four cores have the whole stack's bandwidth, and in RTL a quarter of the cycles.
    assert Costs(unit_rate=2).core_ns(product) == 250
    assert Costs(unit_rate=2).core_ns(product._replace(nbytes=3_200_000)) == 10_000
    relu = product._replace(kernel="relu", elements=1000)
    assert Costs().core_ns(relu) == pytest.approx(PREDICTED.core_ns(relu) / 4, abs=1)


@pytest.mark.parametrize(("size", "banks"), [(11, 18), (7, 28), (3, 32), (1, 32), (21, 32)])
def test_groups_of_the_paper(size: int, banks: int) -> None:
    # 11 x 11: 241 of 444 units; four groups of 97; 26 of 17; 222 of 2; no room for one of 881.
    layer = Convolution(
        images=1, channels=1, height=32, width=32, filters=1, filter_height=size, filter_width=size
    )
    phase = Phase("pools", "forward", 1, 1, layer=layer)
    assert CALIBRATED.most_banks(phase) == banks


def test_more_banks_are_never_slower() -> None:
    (phase,) = PREDICTED.phases(_op("mul", [40_000, 40_000], [40_000], 10_000))
    times = [PREDICTED.pools_ns(phase, banks) for banks in range(1, 33)]
    assert times == sorted(times, reverse=True)
    assert times[3] > times[5] > times[7]
    most = PREDICTED.most_banks(phase)
    assert most < 32
    assert times[most // 2 - 1] > times[most - 1] == times[-1]
    assert Costs(frequency=2).pools_ns(phase, 32) == pytest.approx(times[-1] / 2, abs=1)
    other = Costs(config=configure("paper", rows=2, columns=5, total=100))
    assert other.pools_ns(phase, 7) > other.pools_ns(phase, 10)


def test_phases_of_recursive_kernels() -> None:
    assert _shapes(PREDICTED.phases(CONVOLUTION)) == [("pools", "forward")]
    biased = replace(CONVOLUTION.geometry, operands=(*CONVOLUTION.geometry.operands, (4,)))  # type: ignore
    assert _shapes(PREDICTED.phases(replace(CONVOLUTION, geometry=biased)))[1:] == [
        ("pools", "descent")
    ]
    geometry = Geometry(
        operands=((2, 4, 4, 4), (4, 3, 1, 1)),
        result=(2, 3, 8, 8),
        stride=(2, 2),
        padding=(0, 0),
        dilation=(1, 1),
    )
    gradient = _op("convolution_backward_input", [512, 48], [1536], flops=768, geometry=geometry)
    # Three of four elements meet no filter: the core fills all 384 with zeros before.
    before, pools = PREDICTED.phases(gradient)
    assert (before.kernel, before.elements, before.nbytes) == ("fill", 384, 1536)
    assert (pools.kernel, pools.flops) == ("backward-input", 768)
    # Sums for each of the 16 channels, and element by element between them.
    norm = PREDICTED.phases(_op("native_batch_norm", [8192, 64], [64, 8192, 64], 2048))
    assert [phase.device for phase in norm].count("core") == 2
    assert [phase.flops for phase in norm if phase.device == "pools"] == [2048] * 6
    assert PREDICTED.phases(_op("adam", [64] * 4, [64] * 3, 256)) == ()


def test_a_core_goes_on_as_its_kernels_begin() -> None:
    # The firmware's kernels on so many elements, which the model follows one by one.
    for kernel, sample in operations._SAMPLES.items():  # pyright: ignore[reportPrivateUsage]
        wanted = kernel_cycles(kernel, sample(20_000, 2), read_cycles=40)
        assert cycles_of(kernel, 20_000, 2) == pytest.approx(wanted, rel=0.005), kernel


def test_operations_on_a_core() -> None:
    # ReLU: 16.6 cycles an element, and a miss of 55 for eight; 3.2 ns each.
    relu = PREDICTED.core(_op("relu_", [4_000_000], [4_000_000], 1_000_000))
    assert relu is not None
    assert relu.operation_ns == pytest.approx(1e6 * (16.6 + 55 / 8) * 3.2, rel=1e-3)
    # 16 cycles a multiplication with its addition.
    product = PREDICTED.core(CONVOLUTION)
    assert product == Cost(round(CONVOLUTION.flops / 2 * 16 * 3.2 + 0.5), 0, 0)
    # Windows of 2 x 2 that are as far apart: 64 of 16 results.
    pool = partial(_op, "max_pool2d_with_indices")
    assert PREDICTED.core(pool([256], [64, 128], 64)) == Cost(
        PREDICTED.core_ns(Phase("core", "max_pool", 0, 0, elements=64, window=2)), 0, 0
    )
    # As many results as elements: windows of 3 x 3 that overlap.
    same = PREDICTED.core(_op("avg_pool2d", [256], [256], 64))
    assert same == Cost(
        PREDICTED.core_ns(Phase("core", "average_pool", 0, 0, elements=576, window=3)), 0, 0
    )
    assert PREDICTED.core(_op("linalg_inv", [64], [64])) is None


def test_launches_as_measured() -> None:
    # 299 - 152 cycles of 3.2 ns, over the link and back; a core: 954 more.
    assert PREDICTED.launch_host_ns == 471 + 200
    assert PREDICTED.launch_core_ns == 471 + 3053
    assert CALIBRATED.launch_core_ns == 471 + 477
