"""What streams share goes by simulated time: order, pace of every kind of copy, and no overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver.axdimm import Axdimm

NBYTES = 200_000


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
def test_copies_go_at_the_pace_of_the_slower_end(backend: str, tmp_path: Path) -> None:
    with Axdimm(backend) as device:
        device.RegisterStorage(tmp_path / "storage", capacity_bytes=1 << 20)
        pointers = {
            "Host": device.MallocHost(NBYTES),
            "Axdimm": device.MallocAxdimm(NBYTES, 0),
            "Gpu": device.MallocGpu(NBYTES),
            "Nvme": device.MallocNvme(NBYTES),
        }
        # The link: two fabric cycles of 5 ns for 64 bytes. The others: latency and bandwidth.
        least_ns = {"Host": 0.0, "Axdimm": NBYTES / 6.4, "Gpu": 7_000 + NBYTES / 12}
        least_ns["Nvme"] = 70_000 + NBYTES / 3.45
        for one in least_ns:
            for other in least_ns:
                if one == other:
                    continue
                copy = getattr(device, f"Memcpy{one}2{other}")
                handle = copy(pointers[other], pointers[one], NBYTES)
                took_ns = 5 * (handle.ended - handle.began)
                slowest_ns = max(least_ns[one], least_ns[other])
                # Reads over the link that meet a refresh are repeated.
                most = 1.4 if slowest_ns == least_ns["Axdimm"] else 1.02
                assert slowest_ns * 0.999 <= took_ns <= slowest_ns * most + 1000, (one, other)


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
@pytest.mark.parametrize("slow", ["Nvme", "Gpu"])
def test_copies_of_two_streams_on_one_channel_do_not_overlap(
    backend: str, slow: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with Axdimm(backend, timeline=path) as device:
        device.RegisterStorage(tmp_path / "storage", capacity_bytes=1 << 20)
        there = getattr(device, f"Malloc{slow}")(8192)
        pointer = device.MallocAxdimm(8192, 0)
        streams = [device.new_stream(name) for name in ("slow", "fast")]
        for _ in range(3):
            copy = getattr(device, f"Memcpy{slow}2Axdimm")
            copy(pointer, there, 8192, stream=streams[0])
            device.MemcpyHost2Axdimm(pointer, bytes(128), 128, stream=streams[1])
        for stream in streams:
            stream.wait()
    trace = read_trace(path)
    assert_sound(trace)
    assert len(trace.tracks["channel 0"]) == 6


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
def test_the_link_goes_to_who_is_there_first(backend: str) -> None:
    """Not to who was queued first: that copy waits for another in its stream."""
    with Axdimm(backend) as device:
        pointers = [device.MallocAxdimm(NBYTES, channel) for channel in range(2)]
        gpu = device.MallocGpu(NBYTES)
        late, early = device.new_stream("late"), device.new_stream("early")
        device.MemcpyHost2Gpu(gpu, bytes(NBYTES), NBYTES, stream=late)
        copies = [
            device.MemcpyHost2Axdimm(pointers[channel], bytes(NBYTES), NBYTES, stream=stream)
            for channel, stream in ((0, late), *[(1, early)] * 3)
        ]
        for stream in (late, early):
            stream.wait()
        second, *first = copies
        # While one copy goes on, the other channel's waits for the link, and then has it.
        assert first[0].ended <= second.ended <= first[1].ended
        busy = 2 * NBYTES // 64 * len(copies)
        assert first[-1].ended - first[0].began == pytest.approx(busy, rel=0.05)


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
def test_the_same_calls_give_the_same_times(backend: str) -> None:
    """However and whenever the program waits or asks for what was queued."""
    outcomes = []
    for way in ("forwards", "backwards", "impatiently"):
        with Axdimm(backend, modes="wait") as device:
            pointers = [device.MallocAxdimm(8192, channel) for channel in range(2)]
            handles = [
                device.MemcpyHost2Axdimm(
                    pointers[channel], bytes(8192), 8192, stream=device.stream(channel)
                )
                for channel in (0, 1, 1, 0, 1)
            ]
            handles += [device.SetArbiterAcc(each, stream=device.stream(each)) for each in (0, 1)]
            for handle in handles if way == "forwards" else handles[::-1]:
                while way == "impatiently" and not handle.done:
                    pass
                handle.wait()
            outcomes.append([(each.began, each.ended) for each in handles])
    assert outcomes[1:] == outcomes[:1] * 2


def test_what_a_queued_run_is_given_is_the_programs() -> None:
    """Names, tensors and hyper-parameters are copied at the call, and bytes are read when the
    copy's turn has come: what an earlier one has written, too."""
    n = 16
    with Axdimm("golden", modes="wait") as device:
        stream = device.stream(0)
        tensors = {name: device.MallocAxdimm(4 * n, 0) for name in "pmvg"}
        source, staged, result = (np.ones(n, np.float32) for _ in range(3))
        for name in "mv":
            device.MemcpyHost2Axdimm(tensors[name], np.zeros(n, np.float32), 4 * n)
        device.MemcpyHost2Axdimm(tensors["p"], source, 4 * n)
        p = tensors["p"]
        device.MemcpyHost2Host(staged, source, 4 * n, stream=stream)
        device.MemcpyHost2Axdimm(tensors["g"], staged, 4 * n, stream=stream)
        source[...] = -1
        rates = {"lr": 0.5, "beta1": 0.0, "beta2": 0.0, "eps": 0.0, "weight_decay": 0, "t": 1}
        device.RunOnAxdimmAsync("adam", tensors, n, rates, 0, stream=stream)
        rates["lr"], rates["t"] = 7.0, 99
        tensors.clear()
        device.MemcpyAxdimm2Host(result, p, 4 * n, stream=stream)
        stream.wait()
        np.testing.assert_array_equal(staged, source)
        np.testing.assert_array_equal(result, np.full(n, 1.5, np.float32))
