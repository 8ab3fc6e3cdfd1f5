"""Activations in remote memory: training is bit for bit what it is without."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn

from hw.memory_node.config import MEMORY_NODE_PRESETS
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.memory_node import DeviceNode, Placement
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.backends.rtl import RtlNetwork
from sw_driver.torch.overlay import MemoryOverlay
from sw_driver.torch.residency import held_of

LOCAL_BYTES = 1 << 20
_WAYS = ("lines_written", "lines_read")


def _device(*, local_bytes: int = LOCAL_BYTES, share_bytes: int = 1 << 23) -> DeviceNode:
    network = GoldenNetwork(local_bytes=local_bytes, share_bytes=share_bytes)
    return DeviceNode(network, page_bytes=4096)


_bytes_in_memory: Any = torch._C.StorageBase.nbytes
"""What a storage has, where its own method says what it has to its user."""


class _Residual(nn.Module):
    """Two convolutions around which their input goes, with changes in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, given: Any) -> Any:
        return self.relu(self.second(self.relu(self.norm(self.first(given)))) + given)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, given: Any) -> Any:
        return self.out(self.cells(given.flatten(2).transpose(1, 2))[0][:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(128 * 16, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    ),
    "residual": lambda: nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        _Residual(24),
        nn.AvgPool2d(2),
        _Residual(24),
        nn.Flatten(),
        nn.Linear(24 * 64, 10),
    ),
    "recurrent": lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), _Recurrent()),
}


def _train(model: nn.Module, steps: int, device: DeviceNode | None, **options: Any) -> list[float]:
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        inputs, targets = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
        optimizer.zero_grad()
        if device is None:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
        else:
            with MemoryOverlay(model, device, **options):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _state(model: nn.Module) -> dict[str, bytes]:
    return {name: each.numpy().tobytes() for name, each in model.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=[pytest.mark.soak] * (name == "recurrent" and number > 0))
        for name in MODELS
        for number, options in enumerate(
            [{}, {"prefetched": 0}, {"recomputed": ()}, {"prefetched": 50}, {"compressed": True}]
        )
    ],
)
def test_training_is_the_same_to_the_last_bit(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    plain = MODELS[name]()
    overlaid = copy.deepcopy(plain)
    device = _device()
    assert _train(plain, 3, None) == _train(overlaid, 3, device, **options)
    assert _state(plain) == _state(overlaid)
    gc.collect()
    with MemoryOverlay(overlaid, device):
        pass
    assert device.local_memory.allocations == device.remote_memory.allocations == 0
    assert device.remote_memory.peak_allocated_bytes > 0


def test_training_through_nodes_in_rtl() -> None:
    """Bit for bit, with compression and without; the nodes' counters say what it saves."""
    torch.manual_seed(1)
    plain = MODELS["convolutions"]()
    start = copy.deepcopy(plain)
    assert sum(each.numel() for each in plain.parameters()) > 300_000
    losses = _train(plain, 3, None)
    moved: list[list[int]] = []
    for compressed in (False, True):
        overlaid = copy.deepcopy(start)
        network = RtlNetwork(config=MEMORY_NODE_PRESETS["tiny"], local_bytes=LOCAL_BYTES)
        device = DeviceNode(network, page_bytes=4096)
        assert _train(overlaid, 3, device, compressed=compressed) == losses
        assert _state(plain) == _state(overlaid)
        links = [partial(node.link, link) for node in network.ports.registers for link in (0, 1)]
        moved.append([64 * sum(count(way) for count in links) for way in _WAYS])
        if compressed:
            counted = device.compression
            assert moved[1] == [counted.moved_out, counted.moved_back]
            assert moved[0] == [counted.bytes_out, counted.bytes_back]
        network.close()
    assert moved[0][0] > 2_000_000
    assert all(less < 0.8 * whole for whole, less in zip(*moved, strict=True)), moved


def test_what_is_moved_is_what_layers_save() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    with MemoryOverlay(model, _device()) as overlay:
        model(torch.randn(4, 3, 20, 20)).sum().backward()
    expected = 4 * 4 * (3 * 20 * 20 + 8 * 18 * 18 + 8 * 16 * 16)
    assert overlay.statistics.bytes_out == overlay.statistics.bytes_back == expected
    assert overlay.statistics.bytes_recomputed == 0
    rows = [" ".join(row.split()) for row in str(overlay).splitlines()]
    assert {"budget none", f"out {expected:,} bytes", f"back {expected:,} bytes"} <= {*rows}


@pytest.mark.parametrize("recomputed", [(), None])
def test_what_is_moved_compressed_follows_from_the_zeros(
    recomputed: tuple[Any, ...] | None,
) -> None:
    options = {} if recomputed is None else {"recomputed": recomputed}
    words: list[Any] = []

    class Watched(DeviceNode):
        def write(self, address: int, values: Any) -> None:
            words.append(values.copy().view("<u4"))
            super().write(address, values)

    network = GoldenNetwork(local_bytes=LOCAL_BYTES, share_bytes=1 << 23)
    device = Watched(network, page_bytes=4096)
    torch.manual_seed(1)
    model = MODELS["convolutions"]()
    for step in range(2):
        words.clear()
        with MemoryOverlay(model, device, compressed=True, **options) as overlay:
            inputs, targets = torch.randn(8, 3, 16, 16), torch.randint(10, (8,))
            nn.functional.cross_entropy(model(inputs), targets).backward()
        lines = 0
        for saved in words:
            for block in (saved[at : at + 1024] for at in range(0, len(saved), 1024)):
                size = -(-len(block) // 16)
                used = sum(map(bool, block.tolist()))
                lines += min(size, -(-size // 32) - (-used // 16))
        found = overlay.statistics.compression
        assert found is not None
        assert (found.bytes_out, found.moved_out) == (overlay.statistics.bytes_out, 64 * lines)
        assert (found.bytes_back, found.moved_back) == (found.bytes_out, found.moved_out)
        assert found.ratio > 1.2
        assert step == 0 or device.compression.bytes_out > found.bytes_out


def test_what_is_cheap_is_computed_again() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    given = torch.randn(4, 3, 20, 20)
    moved = {}
    for recomputed in ((), (nn.ReLU, nn.BatchNorm2d)):
        with MemoryOverlay(model, _device(), recomputed=recomputed) as overlay:
            model(given).sum().backward()
        moved[recomputed] = overlay.statistics
    size = 4 * 4 * 8 * 18 * 18
    always, cheap = moved.values()
    assert always.bytes_out - cheap.bytes_out == size
    # Both outputs: the normalised one, which nothing saved, is on the way to the other.
    assert cheap.bytes_recomputed == 2 * size


def test_what_a_forward_pass_saves_is_not_in_memory_any_more() -> None:
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)))
    seen: list[Any] = []
    for layer in model:
        layer.register_forward_hook(
            lambda _layer, inputs, _output: seen.append(weakref.ref(inputs[0].untyped_storage()))
        )
    with MemoryOverlay(model, _device()):
        loss = model(torch.randn(2, 8, 32, 32)).sum()
        assert [_bytes_in_memory(each()) for each in seen] == [0] * 6
        loss.backward()


def test_what_an_operation_saves_leaves_when_nobody_else_has_it() -> None:
    with MemoryOverlay(nn.ReLU(), _device()) as overlay:
        first = torch.randn(64, 64, requires_grad=True).tanh()
        storage = weakref.ref(first.untyped_storage())
        second = first.exp()
        first.sum()
        assert _bytes_in_memory(storage()) == 4 * 64 * 64
        assert overlay.statistics.bytes_out == 0
        del first
        loss = second.sum()
        assert _bytes_in_memory(storage()) == 0
        assert overlay.statistics.bytes_out == 4 * 64 * 64
        loss.backward()


def test_what_the_last_layer_saves_leaves_with_the_next_operation() -> None:
    with MemoryOverlay(model := nn.Linear(1024, 4), _device()) as overlay:
        model(torch.randn(8, 1024)).exp().sum().backward()
    assert overlay.statistics.bytes_out == 4 * 8 * 1024


def test_what_is_used_again_is_moved_once() -> None:
    model = _Residual(8)
    with MemoryOverlay(model, _device(), recomputed=()) as overlay:
        model(torch.randn(4, 8, 20, 20)).sum().backward()
    # The input and the results of the norm's input and of both activations.
    size = 4 * 4 * 8 * 20 * 20
    assert overlay.statistics.bytes_out == overlay.statistics.bytes_back == 4 * size


def test_what_numpy_has_had_stays() -> None:
    given = torch.randn(64, 64, requires_grad=True)
    with MemoryOverlay(nn.ReLU(), _device()) as overlay:
        first = given.tanh()
        first.detach().numpy()
        second = first.exp()
        del first
        second.sum().backward()
    assert overlay.statistics.bytes_out == 0
    assert given.grad is not None
    again = given.detach().requires_grad_()
    again.tanh().exp().sum().backward()
    assert torch.equal(given.grad, again.grad)


def test_what_one_overlay_has_left_the_next_one_moves() -> None:
    model, device = nn.Conv2d(8, 8, 3), _device()
    given = torch.randn(4, 8, 20, 20)
    with MemoryOverlay(model, device) as first:
        model(given).sum().backward()
    with MemoryOverlay(model, device) as second:
        made = model(given)
        del given
        made.sum().backward()
    assert (first.statistics.bytes_out, second.statistics.bytes_out) == (0, 4 * 4 * 8 * 20 * 20)


def test_little_memory_of_the_device_is_enough() -> None:
    torch.manual_seed(1)
    plain = MODELS["convolutions"]()
    overlaid = copy.deepcopy(plain)
    largest = 4 * 8 * 32 * 16 * 16
    device = _device(local_bytes=largest)
    assert _train(plain, 2, None) == _train(overlaid, 2, device, prefetched=4)
    assert device.local_memory.peak_allocated_bytes <= largest


def test_an_abandoned_forward_pass_gives_its_memory_back() -> None:
    model, device = MODELS["residual"](), _device()
    with MemoryOverlay(model, device):
        loss = model(torch.randn(8, 3, 16, 16)).sum()
        assert device.remote_memory.allocations > 0
        del loss
        gc.collect()
    assert device.remote_memory.allocations == 0


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_graph_may_outlive_its_overlay(error: type[Exception] | None) -> None:
    """Its memory is given back under the next overlay of the device."""
    model, device = MODELS["residual"](), _device()
    with nullcontext() if error is None else pytest.raises(error), MemoryOverlay(model, device):
        loss = model(torch.randn(8, 3, 16, 16)).sum()
        if error is not None:
            raise error
    if error is None:
        loss.backward()
    assert device.remote_memory.allocations > 0
    del loss
    gc.collect()
    with MemoryOverlay(model, device):
        model(torch.randn(8, 3, 16, 16)).sum().backward()
    assert device.local_memory.allocations == device.remote_memory.allocations == 0


def test_what_is_computed_again_stays_so_when_the_overlay_is_left() -> None:
    moved: list[int] = []
    for inside in (True, False):
        model = MODELS["convolutions"]()
        with MemoryOverlay(model, _device()) as overlay:
            loss = model(torch.randn(8, 3, 16, 16)).sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        moved.append(overlay.statistics.bytes_out)
    assert moved[0] == moved[1]


def test_of_two_overlays_the_inner_one_moves() -> None:
    models, given = [MODELS["convolutions"]() for _ in range(2)], torch.randn(8, 3, 16, 16)
    plain = copy.deepcopy(models)

    def gradients(each: nn.Module) -> list[Any]:
        torch.manual_seed(2)
        each(given).square().sum().backward()
        return [parameter.grad for parameter in each.parameters()]

    with MemoryOverlay(models[0], _device()), MemoryOverlay(models[1], _device()) as inner:
        found = [gradients(each) for each in models]
    assert inner.statistics.bytes_out > 0
    for mine, theirs in zip(found, map(gradients, plain), strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_gradients_of_several_forward_passes_and_a_second_backward_pass() -> None:
    torch.manual_seed(1)
    plain = MODELS["residual"]()
    overlaid = copy.deepcopy(plain)
    inputs = [torch.randn(8, 3, 16, 16) for _ in range(2)]

    def pass_through(model: nn.Module) -> None:
        losses = [model(each).square().mean() for each in inputs]
        losses[1].backward(retain_graph=True)
        losses[0].backward()
        losses[1].backward()

    pass_through(plain)
    with MemoryOverlay(overlaid, _device()):
        pass_through(overlaid)
    for expected, found in zip(plain.parameters(), overlaid.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert torch.equal(expected.grad, found.grad)


def test_remote_memory_that_is_full_is_told() -> None:
    model = MODELS["convolutions"]()
    with (
        pytest.raises(OutOfMemoryError, match="no room for"),
        MemoryOverlay(model, _device(share_bytes=1 << 17)),
    ):
        model(torch.randn(8, 3, 16, 16))


class _Several(nn.Module):
    """A layer that saves five storages."""

    def forward(self, given: Any) -> Any:
        return (given.sin() * given.cos()).exp().tanh()


def test_remote_memory_that_is_full_after_a_part_of_a_layer_is_told() -> None:
    model, device = _Several(), _device(share_bytes=1 << 12)
    given = torch.ones(1024, requires_grad=True)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match="no room for"), MemoryOverlay(model, device):
            model(given).sum()
    gc.collect()
    with MemoryOverlay(model, device):
        (given * given.detach()).sum().backward()
    assert device.local_memory.allocations == device.remote_memory.allocations == 0


def test_remote_memory_that_is_full_at_the_end_is_told() -> None:
    model, device = nn.Conv2d(8, 8, 3), _device(share_bytes=1 << 12)
    with pytest.raises(OutOfMemoryError, match="no room for"), MemoryOverlay(model, device):
        made = model(torch.randn(2, 8, 32, 32))
    assert held_of(model.weight) is None
    made.sum().backward()
    with MemoryOverlay(model, _device()) as overlay:
        loss = model(torch.randn(2, 8, 32, 32)).sum()
    loss.backward()
    assert overlay.statistics.bytes_back > 0


def test_a_storage_larger_than_the_devices_memory_is_told() -> None:
    with (
        pytest.raises(OutOfMemoryError, match="no room for 262144 bytes"),
        MemoryOverlay(MODELS["convolutions"](), _device(local_bytes=1 << 17)),
    ):
        MODELS["convolutions"]()(torch.randn(8, 3, 16, 16))


@pytest.mark.parametrize("options", [{"prefetched": -1}, {"least_bytes": -1}])
def test_options(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="an integer of 0 or more"):
        MemoryOverlay(nn.ReLU(), _device(), **options)


@pytest.mark.parametrize("wrong", [nn.RReLU, type("Mine", (nn.ReLU,), {})])
def test_only_cheap_layers_are_computed_again(wrong: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match=f"{wrong.__name__}'>, which is none of ReLU, .*: leave"):
        MemoryOverlay(nn.ReLU(), _device(), recomputed=(nn.GELU, wrong))


def test_placement_makes_no_difference() -> None:
    states = []
    for placement in Placement:
        torch.manual_seed(1)
        model = MODELS["residual"]()
        network = GoldenNetwork(local_bytes=LOCAL_BYTES, share_bytes=1 << 23)
        device = DeviceNode(network, placement=placement, page_bytes=4096)
        _train(model, 1, device)
        states.append(_state(model))
    assert states[0] == states[1]
