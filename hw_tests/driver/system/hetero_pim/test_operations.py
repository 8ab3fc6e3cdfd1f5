"""Operations by TensorFlow's names, and what can run them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sw_driver.system.hetero_pim.operations import core_kernels, on_pools, operation_name
from sw_driver.workload import Geometry, Op, load_trace

IMAGES, FILTERS = (2, 3, 8, 8), (4, 3, 3, 3)
CONVOLUTION = Op(
    id=0,
    kind="convolution",
    layer=0,
    phase="forward",
    stage=0,
    reads=(0, 1),
    writes=(2,),
    read_bytes=(1536, 432),
    write_bytes=(1152,),
    flops=2 * 2 * 4 * 36 * 27,
    geometry=Geometry(
        operands=(IMAGES, FILTERS),
        result=(2, 4, 6, 6),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
    ),
)


def _of(kind: str, **changes: object) -> Op:
    return replace(CONVOLUTION, kind=kind, **{"geometry": None, **changes})


def test_vgg_19_has_the_papers_operations() -> None:
    counts = Counter(map(operation_name, load_trace("vgg-19").ops))
    products = ("Conv2DBackpropFilter", "Conv2DBackpropInput", "BiasAddGrad", "Conv2D")
    assert [counts[name] for name in products] == [16, 15, 16, 16]  # Table I
    assert counts["MatMul"] == 9
    assert counts["ApplyAdam"] == 38


def test_a_transposed_convolution_is_anothers_gradient() -> None:
    transposed = replace(
        CONVOLUTION,
        geometry=replace(CONVOLUTION.geometry, transposed=True),  # type: ignore[type-var]
    )
    assert operation_name(CONVOLUTION) == "Conv2D"
    assert operation_name(transposed) == "Conv2DBackpropInput"
    assert (on_pools(CONVOLUTION), on_pools(transposed)) == ("whole", "part")


def test_what_only_adds_and_multiplies_is_the_pools() -> None:
    assert [on_pools(_of(kind)) for kind in ("mul", "add_", "sum", "sgd")] == ["whole"] * 4
    assert on_pools(_of("native_batch_norm")) == "part"
    kinds = ("adam", "relu_", "max_pool2d_with_indices", "div_", "cat", "linalg_inv_ex")
    assert [on_pools(_of(kind)) for kind in kinds] == ["no"] * 6
    # A counter of steps is a single integer.
    assert on_pools(_of("add_", read_bytes=(8, 8), write_bytes=(8,))) == "no"
    geometry = replace(CONVOLUTION.geometry, stride=(1, 2))  # type: ignore[type-var]
    assert on_pools(replace(CONVOLUTION, geometry=geometry)) == "no"


def test_a_core_lacks_products_that_are_only_names() -> None:
    assert core_kernels(_of("tanh")) == ["exponential"]
    assert core_kernels(CONVOLUTION) == ["add_up"]
    assert not core_kernels(_of("linalg_inv"))
