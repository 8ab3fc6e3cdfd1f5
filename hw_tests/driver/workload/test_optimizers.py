"""Steps with other optimizers, against captures with them and counts by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sw_driver.workload import NETWORKS, Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.optimizers import OPTIMIZERS, with_optimizer
from sw_driver.workload.precision import in_precision
from sw_driver.workload.trace import Op

SHIPPED = ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb"]


def updates(trace: Trace) -> list[Op]:
    return [op for op in trace.ops if op.phase == "update"]


@pytest.mark.parametrize("name", SHIPPED)
def test_its_own_rule_changes_nothing(name: str) -> None:
    trace = load_trace(name)
    made = with_optimizer(trace, trace.origin["rule"])
    assert replace(made, origin=trace.origin) == trace


@pytest.mark.parametrize("rule", ["momentum", "amsgrad", "adamw", "sgd"])
def test_another_rule_is_as_captured(rule: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    from sw_driver.workload.capture import capture
    from sw_driver.workload.models import MODELS

    config = NETWORKS["gpt-tiny"]
    _, build, step = MODELS[type(config)]
    truth = capture(lambda: build(config), step, name="gpt-tiny", rule=rule)
    made = with_optimizer(load_trace("gpt-tiny"), rule)
    assert made.ops == truth.ops
    assert made.tensors == truth.tensors
    assert made.origin["rule"] == rule


def test_states_by_hand() -> None:
    """The word embedding has 128 * 32 elements, just enough for 8 bits; a bias has few."""
    table, bias = 128 * 32, 96
    for precision, optimizer, of_table, of_bias in (
        ("fp32", "adamw8bit", table + 4 * table // 256, 4 * bias),
        ("bf16", "adamw8bit", table + 4 * table // 256, 4 * bias),
        ("fp32", "adam-bf16", 2 * table, 2 * bias),
        ("bf16", "adam", 2 * table, 2 * bias),
        ("bf16-mixed", "momentum", 4 * table, 4 * bias),
    ):
        trace = in_precision(load_trace("gpt-tiny"), precision)
        made = with_optimizer(trace, optimizer)
        width = 2 if precision == "bf16" else 4
        for name, elements, size in (
            ("embedding.word_embeddings.weight", table, of_table),
            ("layers.0.attention.query_key_value.bias", bias, of_bias),
        ):
            [op] = (op for op in updates(made) if made.tensors[op.reads[0]].name == name)
            states = (size,) * (1 if optimizer == "momentum" else 2)
            assert op.read_bytes == (width * elements, width * elements, *states)
            assert op.write_bytes == (width * elements, *states)
            assert {made.tensors[one].nbytes for one in op.reads[2:]} == {size}
        work = {"adamw8bit": 15, "momentum": 7}.get(optimizer, 16)
        assert [op.flops * 16 for op in updates(made)] == [op.flops * work for op in updates(trace)]


@pytest.mark.parametrize("name", SHIPPED)
def test_updates_in_the_backward_pass_leave_few_gradients(name: str, tmp_path: Path) -> None:
    trace = load_trace(name)
    made = with_optimizer(trace, "adamw8bit", in_backward=True)
    assert sorted(op.reads[0] for op in updates(made)) == sorted(
        op.reads[0] for op in updates(trace)
    )
    end = max(op.id for op in made.ops if op.phase == "backward")
    for op in updates(made):
        parameter, gradient, *_ = (made.tensors[one] for one in op.reads)
        others = [use for one in (parameter, gradient) for use in made.accesses[one.id]]
        assert max(others) == op.id == (gradient.freed or 0) - 1
    biggest = max(one.nbytes for one in trace.tensors if one.kind == "gradient")
    assert biggest <= peak_bytes(made, "gradient") < 0.3 * peak_bytes(trace, "gradient")
    assert sum(op.id > end for op in updates(made)) < len(updates(made)) / 2
    made.save(tmp_path / "trace")
    assert load_trace(tmp_path / "trace") == made


def test_what_makes_no_sense_is_refused() -> None:
    trace = load_trace("gpt-tiny")
    made = with_optimizer(trace, "sgd", in_backward=True)
    assert made.origin["applied"] == ["optimizer=sgd, in backward"]
    several = replace(trace, origin={**trace.origin, "applied": ["accumulate=4"]})
    assert {"adamw8bit", "adamw-bf16", "sgd", "lion8bit"} < {*OPTIMIZERS}
    for step, name, message in (
        (trace, "adamw8bits", "optimizer is 'adamw8bits': did you mean adamw8bit"),
        (trace, "sgd8bit", "optimizer is 'sgd8bit': did you mean"),
        (trace, "copy", "optimizer is 'copy': expected one of"),
        (made, "adam", "has optimizer=sgd, in backward already: optimizer is applied at most once"),
        (several, "adam", "but gpt-tiny has accumulate=4: expected one micro-batch"),
    ):
        with pytest.raises(TraceError, match=message):
            with_optimizer(step, name, in_backward=True)
