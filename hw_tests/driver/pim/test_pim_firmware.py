"""The firmware's kernels, compiled for the host and on a core in RTL, bit for bit against the
reference model; and its images, which are made again."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from golden.pim import Cause, Descriptor, Opcode, Room, StackMap, account, check, compute
from golden.pim import kernels as golden
from golden.pim.arithmetic import place
from golden.pim.kernels import Pooling
from golden.rules import reference
from hw_tests.golden.test_pim_arithmetic import random_work
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.experiments.pim.training import training_config
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.device import Pim
from sw_driver.pim.firmware import build
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.lowering import lower
from sw_driver.pim.placing import StackMemory
from sw_driver.pim.planning import planned
from sw_driver.pim.programs import (
    QUEUE_BYTES,
    WINDOW_BYTES,
    Command,
    Firmware,
    Window,
    work_slots,
)
from sw_driver.pim.ring import driver_place

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
SPECIALS = np.array(
    [
        *(0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF),
        *(0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001),
    ],
    np.uint32,
).view(np.float32)
ZEROS = np.array([-0.0] * 12 + [0.0] * 2, np.float32)
CONFIG = training_config(4)
"""Of the other tests of cores, too, which share its simulator."""
START = CONFIG.striped_start_bytes
F = np.float32
Values = NDArray[Any]


class Kernels:
    """Runs kernels on a memory, of which they see the striped part."""

    firmware: Firmware

    def __init__(self) -> None:
        self.memory = np.zeros(CONFIG.stack_bytes, np.uint8)
        self.stack = StackMemory(CONFIG)
        self._places = 0

    def place(self, values: Values) -> int:
        """Writes an array to the memory, at no even place; returns its offset."""
        nbytes = values.nbytes
        self._places += 1
        address = self.stack.place("", (nbytes // 4 + 32,)).address_bytes
        address += 4 * (5 * self._places % 16)
        self.memory[address : address + nbytes] = values.reshape(-1).view(np.uint8)
        return WINDOW_BYTES + address - START

    def at(self, place: int, *shape: int) -> Values:
        """An array in the memory."""
        address = place - WINDOW_BYTES + START
        nbytes = 4 * int(np.prod(shape))
        return self.memory[address : address + nbytes].view(np.float32).reshape(shape)

    def room(self, *shape: int) -> tuple[int, Values]:
        """A place for an array, and what is there."""
        place = self.place(np.full(shape, 7, np.float32))
        return place, self.at(place, *shape)

    def program(self, layer: Layer, pass_name: str) -> tuple[dict[str, Values], int, int]:
        """A pass: its tensors, as they are in the memory, where its slots are, and how many."""
        program = lower(layer, pass_name, CONFIG, memory=self.stack)
        works = [planned(work, CONFIG) for work in program.works]
        tensors = {
            name: as_strided(
                self.memory.view(np.float32)[tensor.address_bytes // 4 :],
                tensor.shape,
                [4 * stride for stride in tensor.strides],
            )
            for name, tensor in program.tensors.items()
        }
        return tensors, self.place(np.array(work_slots(works), np.uint32)), len(works)

    def run(self, name: str, *arguments: Any) -> int:
        """Runs a kernel; returns the cause."""
        raise NotImplementedError


class Host(Kernels):
    """The kernels' library, with the model of the pools, which refuses the first ``refused`` works
    that it is offered."""

    refused = 0

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self.library = library
        start = self.memory.ctypes.data + START - WINDOW_BYTES
        ctypes.c_void_p.in_dll(library, "memory").value = start
        numbers = range(library.library_count())
        self.firmware = Firmware(
            {library.library_name(i).decode(): library.library_words(i) for i in numbers}
        )
        kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32)
        self._called = kind(self._pools)
        pools = ctypes.cast(self._called, ctypes.c_void_p).value
        ctypes.c_void_p.in_dll(library, "host_pools").value = pools

    def _pools(self, slots: Any, count: int) -> None:
        stack = StackMap(banks=CONFIG.banks, bank_bytes=CONFIG.bank_bytes)
        room = Room(CONFIG.first_words, CONFIG.second_words, CONFIG.state_words)
        words = np.ctypeslib.as_array(slots, (64 * count,)).reshape(count, 64)
        for slot in words:
            work = Descriptor.decode(slot[:48].tobytes())
            assert check(work, stack=stack, units=CONFIG.units, room=room) == Cause.NONE
            assert tuple(slot[52:56:2]) == account(work)[:2]
            if self.refused:
                self.refused -= 1
                ctypes.c_uint32.in_dll(self.library, "failure").value = 3 | 9 << 8
            else:
                place(work, self.memory, compute(work, self.memory))

    def run(self, name: str, *arguments: Any) -> int:
        number, count, *words = self.firmware.words(Command(name, arguments))
        return self.library.run(number, count, (ctypes.c_uint32 * count)(*words))


class Core(Kernels):
    """A core in RTL, with the pools."""

    def __init__(self, pim: Pim) -> None:
        super().__init__()
        self.firmware = Firmware.of()
        self._pim = pim

    def run(self, name: str, *arguments: Any) -> int:
        end = self.stack.place("", (1,)).address_bytes
        self._pim.write_memory(START, self.memory[START:end])
        shown = [Window(START, driver_place(CONFIG).start - START)]
        self._pim.wait(self._pim.pim_prog(CONFIG.banks, name, arguments, windows=shown))
        self.memory[START:end] = self._pim.read_memory(START, end - START)
        return 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build.compile_library(tmp_path_factory.mktemp("kernels") / "kernels.so")


@pytest.fixture
def host(library: ctypes.CDLL) -> Host:
    return Host(library)


@pytest.fixture(scope="module")
def pim() -> Iterator[Pim]:
    with Pim(RtlPim(CONFIG)) as device:
        yield device


SEEDS = {"host": 20, "core": 8}


@pytest.fixture(
    params=[(where, number) for where, count in SEEDS.items() for number in range(count)], ids=str
)
def turn(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Where kernels run, and the number of a test there."""
    return request.param


@pytest.fixture
def kernels(turn: tuple[str, int], request: pytest.FixtureRequest) -> Kernels:
    if turn[0] == "core":
        return Core(request.getfixturevalue("pim"))
    return request.getfixturevalue("host")


@pytest.fixture
def rng(turn: tuple[str, int]) -> np.random.Generator:
    return np.random.default_rng((SEED, turn[1]))


once = pytest.mark.parametrize("turn", [(where, 0) for where in SEEDS], indirect=True, ids=str)


def values(rng: np.random.Generator, *shape: int) -> Values:
    """Random numbers of all sizes, or of about 1 with few special ones among them."""
    wild = rng.random() < 0.3
    if wild:
        result = rng.integers(0, 1 << 32, shape, np.uint64).astype(np.uint32).view(np.float32)
    else:
        result = rng.standard_normal(shape).astype(np.float32)
    special = rng.random(shape) < rng.choice([0, 0.02, 0.3, 1])
    return np.where(special, rng.choice(rng.choice([SPECIALS, ZEROS]), shape), result)


def same(result: Values, expected: Values) -> None:
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


def test_elementwise(kernels: Kernels, rng: np.random.Generator) -> None:
    count = int(rng.integers(1, 300))
    x, dy = values(rng, count), values(rng, count)
    at_x, at_dy = kernels.place(x), kernels.place(dy)
    place, y = kernels.room(count)
    for name, arguments, expected in (
        ("relu", (at_x, place, count), golden.relu(x)),
        ("relu_gradient", (at_x, at_dy, place, count), golden.relu_gradient(x, dy)),
        ("dropout", (at_x, place, count, 5, 6, 7, 1 << 30, F(1.5)),
         golden.dropout(x, (5, 6), 7, 1 << 30, F(1.5))),
    ):  # fmt: skip
        assert kernels.run(name, *arguments) == 0
        same(y, expected)
    assert kernels.run("fill", place, count, 0xFFC12345) == 0
    assert set(y.view(np.uint32).tolist()) == {0xFFC12345}
    assert not kernels.at(place + 4 * count, 16).any()


def test_exp_and_log_over_all_exponents(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 1 << 32, 100_000, np.uint64).astype(np.uint32).view(np.float32)
    near = rng.uniform(-105, 90, 100_000).astype(np.float32)
    x = np.concatenate([x, near, np.abs(near), SPECIALS])
    for name, expected in (("exponential", golden.exp(x)), ("logarithm", golden.log(x))):
        function = library[name]
        function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
        result = np.array([function(number) for number in x.tolist()], np.float32)
        same(np.where(np.isnan(result), F(np.nan), result), expected)


def test_copies(kernels: Kernels, rng: np.random.Generator) -> None:
    shape = tuple(int(n) for n in rng.integers(1, 7, 4))
    x = values(rng, *shape)
    order = rng.permutation(4)
    source = x.transpose(order)
    place, y = kernels.room(*source.shape)
    # Backwards in the last index, too.
    start = kernels.place(x) + 4 * (source.shape[3] - 1) * source.strides[3] // 4
    strides = [stride // 4 for stride in source.strides]
    strides[3] = -strides[3]
    dense = [stride // 4 for stride in y.strides]
    assert kernels.run("copy", start, place, *source.shape, *strides, *dense) == 0
    same(y, source[..., ::-1])


def test_channels(kernels: Kernels, rng: np.random.Generator) -> None:
    shape = tuple(int(n) for n in rng.integers(1, 8, 3))
    channels = shape[1]
    x, dy, gamma, beta = (
        values(rng, *shape),
        *(values(rng, *sizes) for sizes in (shape, [channels], [channels])),
    )
    eps = F(rng.choice([1e-5, 0]))
    at_x, at_dy, at_gamma, at_beta = map(kernels.place, (x, dy, gamma, beta))
    at_y, y = kernels.room(*shape)
    rooms = [kernels.room(channels) for _ in range(4)]
    at_mean, at_inverse, at_dgamma, at_dbeta = (place for place, _ in rooms)
    mean, inverse, dgamma, dbeta = (room for _, room in rooms)

    assert kernels.run("bias", at_x, at_beta, at_y, *shape) == 0
    same(y, golden.bias(x, beta))
    assert kernels.run("bias_gradient", at_dy, at_dbeta, *shape) == 0
    same(dbeta, golden.bias_gradient(dy))

    assert kernels.run("moments", at_x, at_mean, at_inverse, eps, *shape) == 0
    for result, expected in zip((mean, inverse), golden.moments(x, eps), strict=True):
        same(result, expected)
    known = at_mean, at_inverse, at_gamma
    assert kernels.run("normalise", at_x, *known, at_beta, at_y, *shape) == 0
    same(y, golden.normalise(x, mean, inverse, gamma, beta))
    results = at_y, at_dgamma, at_dbeta
    assert kernels.run("normalise_gradient", at_x, at_dy, *known, *results, *shape) == 0
    gradients = golden.normalise_gradient(x, dy, mean, inverse, gamma)
    for result, expected in zip((y, dgamma, dbeta), gradients, strict=True):
        same(result, expected)


def test_pooling(kernels: Kernels, rng: np.random.Generator) -> None:
    planes, height, width, window_height, window_width, stride = rng.integers(1, [4, 9, 9, 5, 5, 4])
    top, left = rng.integers(0, [window_height, window_width])
    rows = (height + top - 1) // stride + 1
    columns = (width + left - 1) // stride + 1
    sizes = [
        int(n)
        for n in (height, width, rows, columns, window_height, window_width, stride, top, left)
    ]
    names = ("height", "width", "rows", "columns", "window_height", "window_width", "stride")
    pooling = Pooling(**dict(zip((*names, "pad_top", "pad_left"), sizes, strict=True)))
    if any(not inside for _, _, inside in pooling.windows()):
        pytest.skip("a window is all outside")
    x = values(rng, int(planes), int(height), int(width))
    dy = values(rng, int(planes), int(rows), int(columns))
    at_x, at_dy = kernels.place(x), kernels.place(dy)
    (at_y, y), (at_dx, dx) = kernels.room(*dy.shape), kernels.room(*x.shape)
    shape = (planes, *sizes)
    assert kernels.run("max_pool", at_x, at_y, *shape) == 0
    same(y, golden.max_pool(x, pooling))
    assert kernels.run("max_pool_gradient", at_x, at_dy, at_dx, *shape) == 0
    same(dx, golden.max_pool_gradient(x, dy, pooling))
    assert kernels.run("average_pool", at_x, at_y, *shape) == 0
    same(y, golden.average_pool(x, pooling))
    assert kernels.run("average_pool_gradient", at_dy, at_dx, *shape) == 0
    same(dx, golden.average_pool_gradient(dy, pooling))


@pytest.mark.parametrize("across", [False, True], ids=["rows", "columns"])
def test_softmax_cross_entropy(kernels: Kernels, rng: np.random.Generator, across: bool) -> None:
    samples, classes = (int(n) for n in rng.integers(1, 12, 2))
    x = values(rng, samples, classes)
    labels = rng.integers(0, classes + (rng.random() < 0.2), samples)
    at_x, at_labels = kernels.place(x.T if across else x), kernels.place(labels.astype(np.uint32))
    at_loss, loss = kernels.room(samples)
    at_dx, dx = kernels.room(*(x.T if across else x).shape)
    strides = (1, samples) if across else (classes, 1)
    run = (at_x, at_labels, at_loss, at_dx, samples, classes, *strides, F(0.3))
    assert kernels.run("softmax_cross_entropy", *run) == 0
    expected_loss, expected_dx = golden.softmax_cross_entropy(x, labels, F(0.3))
    same(loss, expected_loss)
    same(dx.T if across else dx, expected_dx)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_optimizers(kernels: Kernels, rng: np.random.Generator, name: str) -> None:
    rule = reference(name)
    count = int(rng.integers(1, 100))
    tensors = {operand: values(rng, count) for operand in rule.inputs}
    settings: dict[str, Any] = {"lr": 0.01, "weight_decay": float(rng.choice([0, 0.1]))}
    if name == "adam":
        settings |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "t": int(rng.integers(1, 9))}
    constants = rule.constants(**settings)
    names = ("lam", "lr")
    if name == "adam":
        moments = "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "inv_bc1", "inv_bc2"
        names = ("lam", *moments, "eps", "lr")
    places = [kernels.place(tensor) for tensor in tensors.values()]
    assert kernels.run(name, *places, count, *(constants[constant] for constant in names)) == 0
    expected = rule.step(tensors, constants)
    for input_name, start in zip(tensors, places, strict=True):
        same(kernels.at(start, count), expected.get(input_name, tensors[input_name]))


def test_what_is_refused(host: Host) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no kernel 'relv': expected one of .*relu"):
        host.run("relv", 1, 2)
    with pytest.raises(InvalidArgumentError, match="relu has 2 arguments: expected 3"):
        host.run("relu", 1, 2)
    with pytest.raises(InvalidArgumentError, match=r"an argument is 1e\+39: .* FP32"):
        Firmware.of().words(Command("fill", (0, 1, 1e39)))
    with pytest.raises(InvalidArgumentError, match="an argument is 4294967296"):
        host.run("relu", 1, 2, 1 << 32)
    # The core does not rely on that.
    assert host.library.run(1000, 0, None) == 1
    assert host.library.run(0, 2, None) == 2


def place_of(kernels: Kernels, tensor: Values) -> int:
    return WINDOW_BYTES + tensor.ctypes.data - kernels.memory.ctypes.data - START


def copy_of(kernels: Kernels, source: Values, target: Values) -> list[int]:
    """Arguments of a copy of views of the memory."""
    strides = (stride // 4 for tensor in (source, target) for stride in tensor.strides)
    return [place_of(kernels, source), place_of(kernels, target), *source.shape, *strides]


LAYER = Convolution(
    images=2, channels=3, height=5, width=6, filters=4, filter_height=3, filter_width=3,
    stride=2, padding=1,
)  # fmt: skip
NO_COPY = [0] * 14


def whole(rng: np.random.Generator, *shape: int) -> Values:
    """Small integers, of which every order of sums is exact."""
    return rng.integers(-9, 10, shape).astype(np.float32)


def windows(x: Values) -> Values:
    """What the filters of the layer meet: images, channels, rows, columns and the filter's."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]


@once
def test_gradient_of_a_filter_from_images_with_channels_last(kernels: Kernels) -> None:
    """Figure 6: what is before and behind the convolution changes the layout."""
    rng = np.random.default_rng(SEED)
    x, dy = whole(rng, 2, 5, 6, 3), whole(rng, 2, 3, 3, 4)
    tensors, slots, count = kernels.program(LAYER, "backward-filter")
    views = {}
    for name, value in {"x": x, "dy": dy}.items():
        view = kernels.at(kernels.place(value), *value.shape)
        views[name] = copy_of(kernels, view.transpose(3, 0, 1, 2), tensors[name])
    _, dw = kernels.room(3, 3, 3, 4)
    behind = copy_of(kernels, tensors["dweights"], dw.transpose(3, 2, 0, 1))
    arguments = [slots, count, *views["x"], *views["dy"], *behind]
    assert kernels.run("conv2d_backprop_filter", *arguments) == 0
    expected = np.einsum("ncpquv,npqf->uvcf", windows(x.transpose(0, 3, 1, 2)), dy)
    same(dw, expected.astype(np.float32))


@once
def test_gradient_of_an_input_has_zeros_where_no_work_writes(kernels: Kernels) -> None:
    rng = np.random.default_rng(SEED)
    layer = replace(LAYER, filter_height=1, filter_width=1, padding=0)
    dy, weights = whole(rng, 4, 2, 3, 3), whole(rng, 4, 3, 1, 1)
    tensors, slots, count = kernels.program(layer, "backward-input")
    tensors["dy"][...], tensors["weights"][...], tensors["dx"][...] = dy, weights, 7
    clear = [place_of(kernels, tensors["dx"]), tensors["dx"].size, 0]
    assert tensors["dx"].flags.c_contiguous
    arguments = [slots, count, *NO_COPY, *clear, *NO_COPY]
    assert kernels.run("conv2d_backprop_input", *arguments) == 0
    expected = np.zeros((3, 2, 5, 6), np.float32)
    expected[:, :, ::2, ::2] = np.einsum("fnpq,fc->cnpq", dy, weights[:, :, 0, 0])
    same(tensors["dx"], expected)


@pytest.mark.parametrize("opcode", Opcode, ids=lambda opcode: opcode.name.lower())
def test_works_of_the_pools_by_a_core(host: Host, opcode: Opcode) -> None:
    """Whether a kernel has them or, without pools, a recursive one."""
    ctypes.c_void_p.in_dll(host.library, "host_pools").value = None
    rng = np.random.default_rng((SEED, opcode))
    start, offset = START + (1 << 16), ctypes.c_uint32.in_dll(host.library, "host_offset")
    for name in ["compute", "works"] * 10:
        work = random_work(rng, opcode)
        slot = host.place(np.frombuffer(work.encode().ljust(256, b"\0"), np.uint8))
        host.memory[start:] = values(rng, (len(host.memory) - start) // 4).view(np.uint8)
        tensors = host.memory[start:].copy()
        place(work, tensors, compute(work, tensors))
        offset.value = WINDOW_BYTES + start - START
        assert host.run(name, slot, 1, *[offset.value] * (name == "compute")) == 0
        same(host.memory[start:], tensors)


@pytest.mark.parametrize(
    ("turn", "refused"),
    [(("host", 0), 0), (("host", 0), 1), (("core", 0), 0)],
    indirect=["turn"],
    ids=str,
)
def test_a_program_of_layers_stops_where_a_work_is_refused(kernels: Kernels, refused: int) -> None:
    rng = np.random.default_rng(SEED)
    layer = FullyConnected(samples=3, inputs=5, outputs=4)
    weights, x, bias = whole(rng, 4, 5), whole(rng, 5, 3), whole(rng, 4)
    tensors, slots, count = kernels.program(layer, "forward")
    tensors["weights"][...], tensors["x"][...], tensors["y"][...] = weights, x, 7
    y, (at_z, z) = place_of(kernels, tensors["y"]), kernels.room(4, 3)
    product = (slots, count, y, kernels.place(bias), y, 1, 4, 3, y, y, 12)
    commands = [Command("matmul_bias_relu", product), Command("relu", (y, at_z, 12))]
    at = kernels.place(np.array(kernels.firmware.program(commands), np.uint32))
    if refused:
        assert isinstance(kernels, Host)
        kernels.refused = refused
    assert kernels.run("program", at, len(commands)) == (3 | 9 << 8 if refused else 0)
    expected = np.maximum(weights @ x + bias[:, None], 0)
    same(z, np.full_like(z, 7) if refused else expected)
    if not refused:
        same(tensors["y"].copy(), expected)


def test_the_image_has_the_kernels_of_the_host_and_what_cores_share(host: Host) -> None:
    firmware = Firmware.of()
    shared = {"barrier": 2, "lock": 2, "unlock": 1}
    assert firmware.kernels == host.firmware.kernels | shared
    assert len(firmware.image) <= QUEUE_BYTES


def test_a_slot_by_hand() -> None:
    firmware = Firmware({"relu": 3, "fill": 3})
    windows = [Window(0x1000, 0x40), Window(0x1_0000_0000, 0x20)]
    slot = firmware.slot(Command("fill", (1 << 27, 5, -1.0)), windows)
    assert slot[:6] == [1, 3, 1 << 27, 5, 0xBF800000, 0]
    assert (slot[48:53], len(slot)) == ([0x80, 2, 0x800_0000, 1, 0], 64)
    with pytest.raises(InvalidArgumentError, match="has 8 windows, a core has 7"):
        firmware.slot(Command("fill", (0, 0, 0)), windows * 4)


def compiler() -> None:
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed (the extra `firmware`)")


def test_what_is_no_image_is_refused() -> None:
    good = Firmware.of().image
    for image in (b"", good[:1000], b"\xff" * 64, good.ljust(QUEUE_BYTES + 1)):
        with pytest.raises(InvalidArgumentError, match=rf"{len(image)} bytes .* of 32768 bytes"):
            Firmware.of(image)


@pytest.mark.soak
def test_the_image_is_made_again_to_the_byte() -> None:
    compiler()
    assert build.compile_image() == build.IMAGE.read_bytes()


def test_a_kernel_of_ones_own_is_in_the_table_unless_the_unit_cannot(tmp_path: Path) -> None:
    compiler()
    own = tmp_path / "own.c"
    own.write_text(
        '#include "pim.h"\nKERNEL(own, 1) {'
        "float x = FLOATS(a[0])[0]; put(FLOATS(a[0]), -__builtin_fabsf(x) * (float)(i32)x); }"
    )
    assert Firmware.of(build.compile_image([own])).kernels["own"] == 1
    own.write_text('#include "pim.h"\nKERNEL(own, 1) { FLOATS(a[0])[0] = (float)a[0]; }')
    with pytest.raises(ValueError, match=r"own.c: the float unit has no fcvt.s.wu"):
        build.compile_image([own])


def test_a_compile_error_is_the_compilers_message(tmp_path: Path) -> None:
    own = tmp_path / "own.c"
    own.write_text('#include "pim.h"\nKERNEL(own, 0) { put(FLOATS(0), 1) }')
    with pytest.raises(InvalidArgumentError, match=r"own.c:2:\d+: error: expected .;"):
        build.compile_library(tmp_path / "own.so", [own])
    compiler()
    with pytest.raises(InvalidArgumentError, match=r"own.c:2:\d+: error: expected ';'"):
        build.compile_image([own])
    program = [sys.executable, "-m", "sw_driver.pim.firmware.build", own, tmp_path / "own.bin"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: expected ';'" in done.stderr
    assert "Traceback" not in done.stderr
    # A kernel without arguments compiles without a warning.
    own.write_text('#include "pim.h"\nKERNEL(own, 0) { put(FLOATS(0), 1); }')
    assert Firmware.of(build.compile_image([own])).kernels["own"] == 0


def test_an_address_is_in_a_function() -> None:
    firmware = Firmware.of()
    starts = {name: address for address, name in firmware.functions.items()}
    assert firmware.function_at(starts["run_relu"]) == "run_relu"
    assert firmware.function_at(starts["run_relu_gradient"] - 4) == "run_relu"
    assert firmware.function_at(0) == firmware.function_at(0x2000_0000) == ""
    assert Firmware.of(firmware.image).function_at(starts["run_relu"]) == ""
