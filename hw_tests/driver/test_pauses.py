"""Pauses of the host change nothing: programs have the same times and bytes with them."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw_tests.driver.adam import ADAM
from hw_tests.driver.conftest import EVERY_RULE
from hw_tests.soak import for_soak
from sw_driver.axdimm import Axdimm
from sw_driver.device.clock import Clock
from sw_driver.device.streams import Handle

Stamps = list[Any]
"""What has to be the same: whatever can be compared, and arrays."""
Program = Callable[[str, Path], Stamps]
"""A program on a backend, with a folder for its files."""

NPARAMS = 3000
NBYTES = 4 * NPARAMS

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


def opened(backend: str, folder: Path) -> Axdimm:
    """A small module, with a timeline if it has a time."""
    timeline = None if backend == "golden" else folder / "timeline.json"
    return Axdimm(backend, options=EVERY_RULE, timeline=timeline, modes="wait")


def polled(handle: Any) -> int:
    """How often a program asks that waits so."""
    questions = 0
    while not handle.done:
        questions += 1
    return questions


def streams_of_two_channels(backend: str, folder: Path) -> Stamps:
    values = np.random.default_rng(1).random((4, NPARAMS), np.float32)
    stamps: Stamps = []
    with opened(backend, folder) as device:
        channels = range(device.channels)
        there = [[device.MallocAxdimm(NBYTES, each) for _ in "pmvg"] for each in channels]
        results = np.zeros((device.channels, NPARAMS), np.float32)
        for step in (1, 2):
            runs, backs = [], []
            for channel in channels:
                stream = device.stream(channel)
                for source, target in zip(values, there[channel], strict=True):
                    device.MemcpyHost2Axdimm(target, source, NBYTES, stream=stream)
                how: dict[str, Any] = {**ADAM, "t": step, "channel": channel, "stream": stream}
                runs.append(device.RunAdamOnAxdimmAsync(*there[channel], NPARAMS, **how))
                back, updated = results[channel], there[channel][0]
                backs.append(device.MemcpyAxdimm2Host(back, updated, NBYTES, stream=stream))
            stamps.append(polled(runs[0]))
            device.MemcpyAxdimm2Host(np.zeros(16, np.float32), there[0][3], 64)
            stamps += [runs[1].wait().fabric_cycles, device.simulated_ns, device.PollAxdimm(0)]
            device.stream(0).wait_for(backs[1])
            stamps += [device.WaitAxdimm(channel) for channel in channels]
        stamps.append(results)
        stamps.append(device.simulated_ns)
    return stamps


def storage_and_gpu(backend: str, folder: Path) -> Stamps:
    (folder / "nvme").write_bytes(bytes(1 << 18))
    values = np.random.default_rng(2).random(NPARAMS, np.float32)
    with opened(backend, folder) as device:
        device.RegisterStorage(folder / "nvme")
        gpu, nvme = device.MallocGpu(NBYTES), [device.MallocNvme(NBYTES) for _ in range(2)]
        there = [device.MallocAxdimm(NBYTES, channel) for channel in range(device.channels)]
        beside, back = device.new_stream("beside"), np.zeros((2, NPARAMS), np.float32)
        device.MemcpyHost2Gpu(gpu, values, NBYTES)
        first = device.MemcpyGpu2Nvme(nvme[0], gpu, NBYTES, stream=beside)
        for channel, pointer in enumerate(there):
            device.MemcpyGpu2Axdimm(pointer, gpu, NBYTES, stream=device.stream(channel))
        questions = polled(first)
        to_storage = device.MemcpyAxdimm2Nvme(nvme[1], there[1], NBYTES, stream=device.stream(1))
        device.MemcpyNvme2Axdimm(there[0], nvme[0], NBYTES, stream=device.stream(0))
        device.MemcpyNvme2Host(back[0], nvme[0], NBYTES, stream=beside)
        beside.wait_for(to_storage)
        device.MemcpyNvme2Host(back[1], nvme[1], NBYTES, stream=beside).wait()
        for channel in range(device.channels):
            device.stream(channel).wait()
        assert np.array_equal(back, [values, values])
        return [questions, back, device.simulated_ns]


def training(backend: str, folder: Path) -> Stamps:
    import torch

    from sw_driver.torch import Adam

    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(30, 60), torch.nn.Tanh(), torch.nn.Linear(60, 20))
    stamps: Stamps = []
    with opened(backend, folder) as device:
        optimizer = Adam(net.parameters(), device=device)
        # What has a module of its own is closed by garbage collection, at any time.
        Adam([torch.nn.Parameter(torch.ones(8))], device="cycles:tiny")
        for step in range(4):
            optimizer.zero_grad()
            net(torch.randn(5, 30)).square().sum().backward()
            optimizer.clip_grad_norm(0.5)
            if step % 2:
                stamps.append(polled(handle := optimizer.step_async()))
                handle.wait()
            else:
                optimizer.step()
            stamps += [optimizer.last_step, device.simulated_ns]
        stamps += [each.detach().numpy() for each in net.parameters()]
        stamps += [state["exp_avg"].numpy() for state in optimizer.state.values()]
    return stamps


def offloaded_training(backend: str, folder: Path) -> Stamps:
    import torch

    from hw_tests.driver.torch.offloading.models import Tied, batches, loss_of
    from sw_driver.torch import AdamW
    from sw_driver.torch.offloading import Offloading

    (folder / "nvme").write_bytes(bytes(1 << 20))
    stamps: Stamps = []
    with (
        opened(backend, folder) as device,
        Offloading(
            device, AdamW, lr=0.01, capacity_bytes=20 << 10, storage=folder / "nvme"
        ) as platform,
    ):
        torch.manual_seed(4)
        model = platform.build(Tied)
        optimizer = platform.optimizer()
        for batch in batches(3):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            stamps += [loss.item(), platform.store.statistics()]
            optimizer.step()
            stamps += [platform.store.statistics(), device.simulated_ns]
        state = optimizer.state_dict()["state"]
        stamps += [each["exp_avg_sq"].numpy() for each in state.values()]
        stamps += [each.numpy() for each in model.state_dict().values()]
    return stamps


PROGRAMS = [
    streams_of_two_channels,
    storage_and_gpu,
    pytest.param(training, marks=needs_torch),
    pytest.param(offloaded_training, marks=needs_torch),
]


def observed(program: Program, backend: str, folder: Path, pauses: random.Random | None) -> Stamps:
    """What a program has seen, all its handles and its files; pauses come before every call of the
    device, those of its libraries included."""
    handles: list[Handle[Any]] = []
    made, entered = Handle.__init__, Clock.enter

    def note(handle: Handle[Any], *how: Any, **more: Any) -> None:
        handles.append(handle)
        made(handle, *how, **more)

    def enter(clock: Clock, *how: Any) -> bool:
        if pauses is not None and pauses.random() < 0.1:
            time.sleep(pauses.uniform(0, 0.003))
            if pauses.random() < 0.2:
                gc.collect()
        return entered(clock, *how)

    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handle, "__init__", note)
        patch.setattr(Clock, "enter", enter)
        stamps = program(backend, folder)
    stamps += [(each.label, each.began, each.ended, repr(each.error)) for each in handles]
    stamps += [(each.name, each.read_bytes()) for each in sorted(folder.iterdir())]
    return [each.tobytes() if isinstance(each, np.ndarray) else each for each in stamps]


@pytest.mark.parametrize("backend", for_soak("cycles", "golden", "rtl"))
@pytest.mark.parametrize("program", PROGRAMS)
def test_pauses_change_nothing(program: Program, backend: str, tmp_path: Path) -> None:
    plain = observed(program, backend, tmp_path / "plain", None)
    for seed in range(2):
        paused = observed(program, backend, tmp_path / str(seed), random.Random(seed))
        assert len(paused) == len(plain)
        for number, (one, other) in enumerate(zip(plain, paused, strict=True)):
            assert one == other, f"number {number} of what was seen"
