"""Networks as layers, from the shipped traces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.workload import BENCHMARKS, TraceError, load_trace
from sw_driver.workload.layers import layers_of, load_layers
from sw_driver.workload.networks import CELLS, RecurrentConfig

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg-e": 143_667_240,
    "resnet-34": 21_797_672,
}
"""As torchvision's documentation has them."""
LAYERS = {"alexnet": 8, "googlenet": 58, "vgg-e": 19, "resnet-34": 34}
"""Table III of Kwon and Rhu; ResNet's three projections are none of its layers."""
GIGA_MACS = {"alexnet": 0.714, "vgg-e": 19.632, "resnet-34": 3.664}
"""Of an image forward; torchvision's documentation has the same."""
RECURRENT = [name for name, each in BENCHMARKS.items() if isinstance(each, RecurrentConfig)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_their_published_parameters(name: str) -> None:
    sizes = [each.nbytes for each in load_trace(name).tensors if each.kind == "parameter"]
    assert sum(sizes) == 4 * PARAMETERS[name]


@pytest.mark.parametrize("name", LAYERS)
def test_networks_have_the_papers_layers(name: str) -> None:
    projections = 3 if name == "resnet-34" else 0
    assert len(load_layers(name)) == LAYERS[name] + projections


@pytest.mark.parametrize("name", GIGA_MACS)
def test_products_are_those_of_an_image(name: str) -> None:
    macs = sum(each.rows * each.columns * each.depth for each in load_layers(name))
    assert macs / 1e9 == pytest.approx(GIGA_MACS[name], rel=1e-3)


def test_a_layers_sizes_are_those_of_the_network() -> None:
    first, second, *_, third, _, _ = load_layers("alexnet")
    assert (first.rows, first.columns, first.depth) == (55 * 55, 64, 3 * 11 * 11)
    assert (first.first, first.needs, first.inputs) == (True, (), 3 * 224 * 224)
    # Pooled in between: its input is smaller than what comes before.
    assert (second.rows, second.columns, second.depth) == (27 * 27, 192, 64 * 5 * 5)
    assert (second.first, second.needs, second.inputs) == (False, (0,), 64 * 27 * 27)
    assert (third.rows, third.columns, third.depth) == (1, 4096, 256 * 6 * 6)
    assert third.parameters == 4096 * 9216


def test_branches_share_their_input_and_a_sum_needs_both_sides() -> None:
    branches = [each for each in load_layers("googlenet") if each.name.startswith("5.")]
    assert len({each.input for each in branches}) == 4  # the module's, two reduced, one pooled
    projected = next(each for each in load_layers("resnet-34") if each.name == "7.first.0")
    assert len(projected.needs) >= 2


@pytest.mark.parametrize("name", RECURRENT)
def test_each_time_step_is_a_layer_with_the_same_weights(name: str) -> None:
    config = BENCHMARKS[name]
    assert isinstance(config, RecurrentConfig)
    layers = load_layers(name)
    assert len(layers) == config.steps
    assert len({each.weights for each in layers}) == 1
    width = CELLS[config.cell] * config.hidden
    for number, layer in enumerate(layers):
        assert (layer.rows, layer.columns, layer.depth) == (1, width, config.hidden)
        assert layer.first == (not number)
        assert layer.needs[-1:] == ((number - 1,) if number else ())
        assert layer.between_forward > 0
        assert layer.between_backward > 0


def test_sums_of_weights_gradients_do_not_count_for_each_sample() -> None:
    """Twice as wide, a state has twice as much to do, and weights four times."""
    one, other = (load_layers(f"rnn-lstm-{number}")[1] for number in (1, 2))
    assert other.between_backward == 2 * one.between_backward
    assert other.parameters == 4 * one.parameters


def test_what_is_no_network_of_samples_is_refused() -> None:
    trace = load_trace("alexnet")
    with pytest.raises(TraceError, match="does not multiply 7 samples"):
        layers_of(replace(trace, origin={**trace.origin, "batch": 7}))
