"""Steps of training of one layer, which a core does by itself, and the same by the models."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from golden.pim import Descriptor, compute, kernels
from golden.pim.arithmetic import place
from golden.rules import reference
from hw.pim.config import PimConfig, configure
from sw_driver.pim.descriptor import Opcode, Work
from sw_driver.pim.placing import PlacedTensor, StackMemory, work_on
from sw_driver.pim.planning import planned
from sw_driver.pim.programs import WINDOW_BYTES, Command, Firmware, Window, work_slots

__all__ = ["Steps", "config_of"]

INPUTS, CLASSES = 9, 5
RATE, DECAY = np.float32(0.1), np.float32(0.01)


def config_of(cores: int, core_clock_ratio: int = 1) -> PimConfig:
    """A small pool with room for the firmware of so many cores."""
    return configure(
        "tiny",
        cores=cores,
        rings=cores + 1,
        bank_bytes=1 << 16,
        core_clock_ratio=core_clock_ratio,
    )


STEPS = 2
"""Steps of a program."""


class Steps:
    """Steps of the core ``number``, of which each has more samples than the one before. After each
    step it waits for all, and takes the losses of the next one."""

    def __init__(self, number: int, config: PimConfig, memory: StackMemory) -> None:
        self._config = config
        self._start = config.striped_start_bytes
        self.samples = 2 + 5 * number
        shapes = {
            "x": (INPUTS, self.samples),
            "w": (CLASSES, INPUTS),
            "b": (1, CLASSES),
            "y": (CLASSES, self.samples),
            "dy": (CLASSES, self.samples),
            "dw": (CLASSES, INPUTS),
            "db": (1, CLASSES),
            "labels": (1, self.samples),
            "losses": (1, self.samples),
            "others": (1, 64),
            "seen": (2, 64),
            "slots": (2, 64),
            "program": (1, 256),
        }
        self.tensors = {name: memory.place(name, shape) for name, shape in shapes.items()}
        self.works = [
            self._work("w", "x", "y"),
            self._work("dy", "x", "dw", turned=True),
        ]

    @property
    def window(self) -> Window:
        """All of the striped memory."""
        return Window(self._start, self._config.stack_bytes - self._start)

    def offset(self, name: str) -> int:
        """Where a tensor is, as a kernel's argument."""
        return WINDOW_BYTES + self.tensors[name].address_bytes - self._start

    def fill(self, memory: NDArray[np.uint8], barrier: int, cores: int, other: Steps) -> Command:
        """Writes operands, works and program; returns the command that runs it."""
        rng = np.random.default_rng(self.samples)
        for name in ("x", "w", "b"):
            self.view(memory, name)[...] = rng.standard_normal(self.tensors[name].shape)
        at, samples = self.offset, self.samples
        first, second = at("slots"), at("slots") + 256
        outputs, weights = samples * CLASSES, INPUTS * CLASSES
        y, dy = at("y"), at("dy")
        losses = _copy(other.offset("losses"), at("others"), other.samples)
        see = [_copy(at("labels"), at("seen") + 256 * row, samples) for row in range(2)]
        commands = STEPS * [
            Command("relu", (y, y, outputs)),
            Command(
                "matmul_bias_relu",
                (first, 1, y, at("b"), y, 1, CLASSES, samples, y, y, outputs),
            ),
            Command(
                "softmax_cross_entropy",
                (y, at("labels"), at("losses"), dy, samples, CLASSES, 1, samples, 1 / samples),
            ),
            Command("relu_gradient", (y, dy, dy, outputs)),
            Command("works", (second, 1)),
            Command("bias_gradient", (dy, at("db"), 1, CLASSES, samples)),
            Command("sgd", (at("w"), at("dw"), weights, DECAY, RATE)),
            Command("sgd", (at("b"), at("db"), CLASSES, DECAY, RATE)),
            losses,
            Command("barrier", (barrier, cores)),
            losses,
        ]
        # A cache holds y before the pools write it, losses before the barrier, and labels when the
        # host writes new ones: who does not see to it has what was.
        commands = [see[0], *commands, see[1]]
        for name, words in (
            ("slots", work_slots(self.works)),
            ("program", Firmware.of().program(commands)),
        ):
            view = self.view(memory, name).view(np.uint32)
            view.ravel()[: len(words)] = words
        return Command("program", (at("program"), len(commands)))

    def label(self, memory: NDArray[np.uint8], turn: int) -> None:
        """Writes new labels."""
        labels = np.random.default_rng((self.samples, turn)).integers(0, CLASSES, self.samples)
        self.view(memory, "labels").view(np.uint32)[...] = labels

    def expect(self, memory: NDArray[np.uint8]) -> None:
        """Does to ``memory`` what the core does in a program, but for what it takes of others."""
        for _ in range(STEPS):
            self._step(memory)

    def _step(self, memory: NDArray[np.uint8]) -> None:
        see = {name: self.view(memory, name) for name in self.tensors}
        product, gradient = (Descriptor.decode(work.encode_bytes()) for work in self.works)
        place(product, memory, compute(product, memory))
        bias = kernels.bias(see["y"][None], see["b"][0])
        y = see["y"][...] = kernels.relu(bias[0])
        labels = see["labels"].view(np.uint32)[0].astype(np.int64)
        scale = np.float32(1 / self.samples)
        losses, dx = kernels.softmax_cross_entropy(y.T, labels, scale)
        see["losses"][0] = losses
        see["dy"][...] = kernels.relu_gradient(y, dx.T)
        place(gradient, memory, compute(gradient, memory))
        see["seen"][:, : self.samples] = see["labels"]
        see["db"][0] = kernels.bias_gradient(see["dy"][None])
        rule, constants = reference("sgd"), {"lam": DECAY, "lr": RATE}
        for p, g in (("w", "dw"), ("b", "db")):
            see[p][...] = rule.step({"p": see[p], "g": see[g]}, constants)["p"]

    def view(self, memory: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
        """A tensor in ``memory``."""
        tensor = self.tensors[name]
        strides = [4 * stride for stride in tensor.strides]
        origin = memory.view(np.float32)[tensor.address_bytes // 4 :]
        return as_strided(origin, tensor.shape, strides)

    def _work(self, a: str, b: str, result: str, *, turned: bool = False) -> Work:
        right: PlacedTensor = self.tensors[b]
        work = work_on(
            Opcode.MATMUL,
            a=self.tensors[a],
            b=right.view(1, 0) if turned else right,
            result=self.tensors[result],
            units=self._config.units,
        )
        return planned(work, self._config)


def _copy(source: int, target: int, count: int) -> Command:
    return Command("copy", (source, target, 1, 1, 1, count, *[0, 0, 0, 1] * 2))
