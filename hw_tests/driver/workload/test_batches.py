"""Steps with another batch, against captures with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.workload import NETWORKS, Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.batches import batched
from sw_driver.workload.trace import KINDS


def flops(trace: Trace) -> int:
    return sum(each.flops for each in trace.ops)


def different(one: Trace, other: Trace) -> list[Any]:
    """Operations and tensors that are not the same."""
    return [
        pair
        for name in ("ops", "tensors")
        for pair in zip(getattr(one, name), getattr(other, name), strict=True)
        if pair[0] != pair[1]
    ]


def test_one_sample_and_eight_are_the_same_network() -> None:
    """With one sample, keys and values are saved as parts of what has queries, too; with eight,
    copies of them are, which have to be made."""
    one, eight = load_trace("transformer-xl-1.0b"), load_trace("transformer-xl-1.0b-8")
    made = batched(one, 8)
    assert flops(made) == flops(eight)
    assert made.origin == eight.origin
    for kind in set(KINDS) - {"activation"}:
        assert peak_bytes(made, kind) == peak_bytes(eight, kind)
    kept, true = (peak_bytes(each, "activation") for each in (made, eight))
    assert kept == pytest.approx(true, rel=0.07)
    assert peak_bytes(made) == pytest.approx(peak_bytes(eight), rel=0.035)
    moved, true = (sum(op.nbytes for op in each.ops) for each in (made, eight))
    assert moved == pytest.approx(true, rel=0.05)


def test_there_and_back_is_the_same() -> None:
    trace = load_trace("inception-v3")
    assert batched(batched(trace, 3), Fraction(1, 3)) == trace


@pytest.mark.parametrize(
    "name", ["bert-base", "resnet-34", "dcgan", "rnn-lstm-1", "gpt-tiny", "transformer-xl-1.0b-8"]
)
@pytest.mark.parametrize("factor", [2, 0.5])
def test_a_shipped_network_is_as_captured(name: str, factor: float) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    from sw_driver.workload.capture import capture_config

    if name == "gpt-tiny" and factor < 1:
        pytest.skip("one sample needs other operations than two")
    config = NETWORKS[name]
    truth = capture_config(name, replace(config, batch=int(config.batch * factor)))
    assert different(batched(load_trace(name), factor), truth) == []


def perceptron(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 16))


def twice(nn: Any) -> Any:
    layer = nn.Linear(16, 16)
    return nn.Sequential(layer, nn.Tanh(), layer)


def recurrent(nn: Any) -> Any:
    class Last(nn.Module):
        def forward(self, values: Any) -> Any:
            return values[0]

    return nn.Sequential(nn.LSTM(16, 16, num_layers=2, batch_first=True), Last())


def normed(nn: Any) -> Any:
    """Its gradient passes more before it is one of a parameter."""
    return nn.utils.parametrizations.weight_norm(nn.Linear(16, 16, bias=False))


def attending(nn: Any) -> Any:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)


@pytest.mark.parametrize("make", [perceptron, twice, recurrent, normed, attending])
@pytest.mark.parametrize("loss", ["mean", "norm"])
def test_other_networks_are_as_captured(make: Callable[[Any], Any], loss: str) -> None:
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
    )
    from sw_driver.workload.capture import capture

    def captured(batch: int) -> Trace:
        return capture(
            lambda: (make(torch.nn), (torch.zeros(batch, 6, 16),)),
            lambda model, values: getattr(model(values), loss)(),
            name="net",
        )

    assert different(batched(captured(4), 1.5), captured(6)) == []


def test_what_leaves_parts_of_a_sample_is_refused() -> None:
    with pytest.raises(
        TraceError, match=r"factor is 1/2: expected one .* of gpt3-13b whole; .* is 1$"
    ):
        batched(load_trace("gpt3-13b"), 0.5)
    anonymous = replace(load_trace("resnet32"), origin={})
    with pytest.raises(TraceError, match="factor is 1/1009: expected one that keeps samples"):
        batched(anonymous, Fraction(1, 1009))
    for wrong in (0, -1, float("nan"), "2"):
        with pytest.raises(InvalidArgumentError, match=r"factor is .*: expected a number from"):
            batched(anonymous, wrong)  # pyright: ignore[reportArgumentType]
