"""Runs of the kernel through the driver, bit for bit against the golden model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.device_memory import fill, snapshot
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm, AxdimmPointer
from sw_driver.axdimm.runs import RunResult

SPECIAL_BITS = np.array(
    [
        *(0, 0x80000000),  # zeros
        *(1, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF),  # ends of the ranges
        *(0x7F800000, 0xFF800000),  # infinities
        *(0x7FC00000, 0x7F800001, 0xFFC12345),  # NaNs
    ],
    dtype=np.uint32,
)


def values(rng: np.random.Generator, count: int, *, positive: bool = False) -> np.ndarray:
    """FP32 of many magnitudes, one in sixteen of them special."""
    scale = np.exp2(rng.integers(-130, 20, count).astype(np.float64))
    data = (rng.standard_normal(count) * scale).astype(np.float32)
    special = rng.random(count) < 1 / 16
    data[special] = rng.choice(SPECIAL_BITS, special.sum()).view(np.float32)
    return np.abs(data) if positive else data


def hyperparameters(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "lr": float(10 ** rng.uniform(-6, 0)),
        "beta1": float(rng.choice([0.0, 0.5, 0.9, rng.random(), 0.999999])),
        "beta2": float(rng.choice([0.0, 0.9, 0.999, rng.random(), 0.99999999])),
        "eps": float(rng.choice([0.0, 1e-45, 1e-8, 1.0])),
        "weight_decay": float(rng.choice([0.0, 1e-4, 0.1])),
        "t": int(rng.choice([1, 2, 10, 1000, 10**9])),
    }


class Update:
    """A step on one channel, and what memory must be like after it."""

    def __init__(self, device: Axdimm, channel: int, count: int, rng: np.random.Generator) -> None:
        self._device = device
        self.channel = channel
        self.count = count
        self.tensors: dict[str, AxdimmPointer] = {
            name: device.MallocAxdimm(4 * count, channel) for name in "pgmv"
        }
        self.before = {name: values(rng, count, positive=name == "v") for name in "pgmv"}
        self.hyperparameters = hyperparameters(rng)

    def upload(self, memory: np.ndarray) -> None:
        """Puts the tensors into the device and into the expected ``memory``."""
        for name, pointer in self.tensors.items():
            data = self.before[name]
            self._device.MemcpyHost2Axdimm(pointer, data, data.nbytes)
            memory[pointer.address :][: data.nbytes] = data.view(np.uint8)

    def run(self) -> RunResult:
        """Runs the step and waits."""
        self._device.SetArbiterAcc(self.channel)
        run = self._device.RunAdamOnAxdimmAsync(
            **self.tensors, nparams=self.count, **self.hyperparameters, channel=self.channel
        )
        result = run.wait(timeout=120)
        self._device.SetArbiterNormal(self.channel)
        return result

    def expect(self, memory: np.ndarray) -> None:
        """Puts the golden results into the expected ``memory``."""
        constants = adam_constants(**self.hyperparameters)
        p, g, m, v = (self.before[name] for name in "pgmv")
        results = adam_step(p, g, m, v, constants)
        for name, data in zip("pmv", results, strict=True):
            memory[self.tensors[name].address :][: data.nbytes] = data.view(np.uint8)

    def free(self) -> None:
        for pointer in self.tensors.values():
            self._device.FreeAxdimm(pointer)


def counts(block: int) -> list[int]:
    return [1, 15, 16, 17, block - 1, block, block + 1, 2 * block, 3 * block + 7, 5 * block + 33]


def test_both_channels_at_once_update_exactly_their_outputs(
    device: Axdimm, watched: WatchedTransport
) -> None:
    rng = np.random.default_rng(11)
    expected = fill(watched, rng)
    block = device.configuration(0).block_bytes // 4
    sizes = counts(block)
    for one, other in zip(sizes, rng.permutation(sizes), strict=True):
        updates = [Update(device, 0, one, rng), Update(device, 1, int(other), rng)]
        for update in updates:
            update.upload(expected[update.channel])
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(Update.run, updates))
        for update, result in zip(updates, results, strict=True):
            update.expect(expected[update.channel])
            beats = -(-update.count // 16)
            assert result.nparams == update.count
            assert (result.beats_read, result.beats_written) == (4 * beats, 3 * beats)
            if watched.timed:
                assert result.fabric_cycles >= 7 * beats
                assert result.idle_fabric_cycles <= result.fabric_cycles - 4 * beats
            update.free()
        for channel, (found, wanted) in enumerate(zip(snapshot(watched), expected, strict=True)):
            wrong = np.flatnonzero(found != wanted)
            assert not len(wrong), (
                f"channel {channel}: {len(wrong)} bytes differ, first at {wrong[0]:#x}, "
                f"counts {one} and {other}, {updates[channel].hyperparameters}"
            )


def test_steps_follow_each_other(device: Axdimm) -> None:
    rng = np.random.default_rng(3)
    count = 100
    tensors = {name: device.MallocAxdimm(4 * count, 0) for name in "pmvg"}
    p = rng.standard_normal(count).astype(np.float32)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for name, data in zip("pmv", (p, m, v), strict=True):
        device.MemcpyHost2Axdimm(tensors[name], data, data.nbytes)
    adam: dict[str, Any] = {
        "lr": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.01,
    }
    for t in range(1, 6):
        g = rng.standard_normal(count).astype(np.float32)
        device.MemcpyHost2Axdimm(tensors["g"], g, g.nbytes)
        device.SetArbiterAcc(0)
        device.RunAdamOnAxdimmAsync(**tensors, nparams=count, **adam, t=t, channel=0)
        device.WaitAxdimm(0)
        device.SetArbiterNormal(0)
        p, m, v = adam_step(p, g, m, v, adam_constants(**adam, t=t))
        for name, golden in zip("pmv", (p, m, v), strict=True):
            found = np.empty_like(golden)
            device.MemcpyAxdimm2Host(found, tensors[name], found.nbytes)
            assert np.array_equal(found.view(np.uint32), golden.view(np.uint32)), (t, name)


def test_a_run_of_part_of_the_tensors(device: Axdimm, watched: WatchedTransport) -> None:
    rng = np.random.default_rng(4)
    expected = fill(watched, rng)[1]
    whole = Update(device, 1, 500, rng)
    whole.upload(expected)
    part = Update(device, 1, 37, rng)
    part.tensors = {name: pointer + 256 for name, pointer in whole.tensors.items()}
    part.before = {name: data[64 : 64 + 37] for name, data in whole.before.items()}
    part.run()
    part.expect(expected)
    assert np.array_equal(snapshot(watched)[1], expected)


def test_the_parameter_order_is_the_papers(device: Axdimm) -> None:
    rng = np.random.default_rng(6)
    memory = np.zeros(device.transport.capacity_bytes, dtype=np.uint8)
    update = Update(device, 0, 40, rng)
    update.upload(memory)
    update.expect(memory)
    device.SetArbiterAcc(0)
    t, h = update.tensors, update.hyperparameters
    device.RunAdamOnAxdimmAsync(
        t["p"], t["m"], t["v"], t["g"], 40,
        h["lr"], h["beta1"], h["beta2"], h["eps"], h["weight_decay"], h["t"], 0,
    )  # fmt: skip
    device.WaitAxdimm(0)
    device.SetArbiterNormal(0)
    for pointer in t.values():
        found = np.empty(160, dtype=np.uint8)
        device.MemcpyAxdimm2Host(found, pointer, 160)
        assert np.array_equal(found, memory[pointer.address :][:160])


def test_waiting_and_polling_without_a_run(device: Axdimm) -> None:
    assert device.WaitAxdimm(0) is None
    assert device.PollAxdimm(0)


def test_one_channel_copies_while_the_other_runs(device: Axdimm, watched: WatchedTransport) -> None:
    rng = np.random.default_rng(8)
    memory = np.zeros(watched.capacity_bytes, dtype=np.uint8)
    update = Update(device, 0, 64, rng)
    update.upload(memory)
    device.SetArbiterAcc(0)
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(
        **update.tensors, nparams=64, **update.hyperparameters, channel=0
    )
    pointer = device.MallocAxdimm(1000, 1)
    data = rng.integers(0, 256, 1000, dtype=np.uint8)
    device.MemcpyHost2Axdimm(pointer, data, 1000)
    back = np.zeros_like(data)
    device.MemcpyAxdimm2Host(back, pointer, 1000)
    assert np.array_equal(back, data)
    assert not run.done
    watched.held = False
    run.wait(timeout=60)
    device.SetArbiterNormal(0)


@pytest.mark.parametrize("mode", ["normal", "acceleration"])
def test_the_driver_finds_the_mode_in_force(device: Axdimm, backend, mode: str) -> None:
    (device.SetArbiterAcc if mode == "acceleration" else device.SetArbiterNormal)(1)
    with Axdimm(backend) as second:
        assert second.mode(1) == mode
        assert second.mode(0) == "normal"
