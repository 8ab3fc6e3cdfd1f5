"""Masters of parameters among the optimizer's states: ZeRO's bytes, and the same products."""

from __future__ import annotations

from collections import Counter

import pytest

from sw_driver.workload import Trace, load_trace
from sw_driver.workload.masters import with_masters
from sw_driver.workload.summary import parameters_of
from sw_driver.workload.training import Training

KINDS = ("parameter", "gradient", "optimizer_state")


def bytes_of(trace: Trace) -> Counter[str]:
    nbytes = Counter[str]()
    for tensor in trace.tensors:
        nbytes[tensor.kind] += tensor.nbytes * (tensor.kind in KINDS)
    return nbytes


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("network", ["resnet-50", "gpt-tiny"])
def test_a_step_takes_two_two_and_twelve_bytes_a_parameter(network: str, checkpoint: str) -> None:
    mixed = Training(precision="fp16-mixed", checkpoint=checkpoint).apply(load_trace(network))
    step = with_masters(mixed)
    parameters = parameters_of(step)
    assert parameters == parameters_of(mixed)
    shares = {kind: nbytes / parameters for kind, nbytes in bytes_of(step).items()}
    # In FP32 are the weights of norms, and the gradient of a table that is the output's weight.
    assert shares["parameter"] == pytest.approx(2, rel=0.05)
    assert shares["optimizer_state"] == pytest.approx(12, rel=0.02)
    assert shares["gradient"] == pytest.approx(2, rel=0.2)
    products = [
        [(op.kind, op.flops, op.nbytes) for op in trace.ops if op.geometry is not None]
        for trace in (mixed, step)
    ]
    assert products[0] == products[1]


def test_an_update_writes_the_master_and_its_copy() -> None:
    step, seen = with_masters(Training(precision="bf16-mixed").apply(load_trace("resnet-50"))), 0
    for op in step.ops:
        *states, copy = (step.tensors[tensor] for tensor in op.writes)
        if op.phase == "update" and copy.kind == "parameter":
            seen += 1
            assert {state.parameter for state in states} == {copy.id}
            assert (
                op.nbytes == 28 * copy.nbytes // copy.element_bytes
            )  # 2 + 12 read, 12 + 2 written
    assert seen == 55  # weights of 53 convolutions, and of the last layer with its bias


def test_a_step_without_casts_stays_as_it_is() -> None:
    plain = load_trace("gpt-tiny")
    assert with_masters(plain) is plain
    masters = with_masters(Training(precision="bf16-mixed").apply(plain))
    assert with_masters(masters) is masters
