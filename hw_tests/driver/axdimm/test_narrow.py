"""Runs with narrow formats through the driver and by registers, bit for bit against the golden
model on data of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from golden.narrow import Quantized, quantize, step, to_bf16
from golden.rules import reference
from hw_tests.driver.transports import Bytes, WatchedTransport
from sw_driver.axdimm import Axdimm, AxdimmPointer, BackendOptions, Formats, KernelRun
from sw_driver.axdimm.backends import open_backend
from sw_driver.axdimm.launch import options_for
from sw_driver.axdimm.registers import ChannelRegisters, arbiter_registers, kernel_registers
from sw_driver.axdimm.transport import Transport, kernel_window
from sw_driver.device.errors import InvalidArgumentError, RangeError

OPTIONS = BackendOptions(preset="axdimm_narrow", settings={"capacity_bytes": 1 << 20})
PLAIN = BackendOptions(settings={"capacity_bytes": 1 << 20})
HYPERPARAMETERS = {
    "lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "t": 7
}  # fmt: skip
CODES = Formats(gradients="bf16", parameters="bf16", states="dynamic", copy="bf16")
GUARD = 0xA5
END = kernel_window(1 << 20)
MIXTURES = [
    Formats(gradients=g, parameters=p, states=states, copy=copy)
    for g, p, states, copy in product(
        ("fp32", "bf16"), ("fp32", "bf16"), ("fp32", "dynamic", "linear"), ("none", "fp32", "bf16")
    )
]


class Job:
    """A run's tensors as memory holds them, before and after it, and what it is to count."""

    def __init__(
        self,
        formats: Formats,
        count: int,
        *,
        rule: str = "adam",
        t: int = 7,
        seed: int = 0,
        wrong: tuple[int, ...] = (),
        subnormals: str = "kept",
    ) -> None:
        rng = np.random.default_rng(count + formats.code())
        values = {name: rng.normal(size=count).astype(np.float32) for name in "pgmv"}
        values["v"] **= 2
        values["g"][1] = 1e-40  # subnormal
        for n, place in enumerate(wrong):
            values["g"][place] = (np.inf, np.nan, -np.inf)[n % 3]
        self.formats, self.count, self.rule, self.seed = formats, count, rule, seed
        self.hyperparameters = {**HYPERPARAMETERS, "t": t}
        form = {"g": formats.gradients, "p": formats.parameters}
        if formats.states != "fp32":
            form |= {"m": f"{formats.states}_signed", "v": f"{formats.states}_unsigned"}
        tensors: dict[str, Any] = dict(values)
        for name, kind in form.items():
            if kind == "bf16":
                tensors[name] = to_bf16(values[name])
            elif kind != "fp32":
                tensors[name] = quantize(values[name], kind, subnormals)
        model = reference(rule, subnormals)
        results, self.not_finite = step(
            model,
            tensors,
            model.constants(**self.hyperparameters),
            form,
            t=t,
            seed=seed,
            copy=formats.copy,
            skip_not_finite=formats.skip_not_finite,
        )
        self.skipped = formats.skip_not_finite and self.not_finite > 0
        self.before = _in_memory(tensors)
        self.after = self.before | _in_memory(results)
        if formats.copy != "none":
            width = 4 if formats.copy == "fp32" else 2
            self.before["p_copy"] = np.full(width * count, GUARD, np.uint8)
            self.after.setdefault("p_copy", self.before["p_copy"])
        lines = {name: -(-each.size // 64) for name, each in self.before.items()}
        moved = (0 if self.skipped else 1) * sum(lines.values())
        gradients, copy = lines["g"], lines.get("p_copy", 0)
        self.beats_read = moved - (0 if self.skipped else copy)
        self.beats_read += gradients if formats.skip_not_finite else 0
        self.beats_written = moved - (0 if self.skipped else gradients)

    def put(self, device: Axdimm) -> dict[str, AxdimmPointer]:
        pointers = {name: device.MallocAxdimm(each.size, 0) for name, each in self.before.items()}
        for name, each in self.before.items():
            device.MemcpyHost2Axdimm(pointers[name], each, each.size, modes="wait")
        return pointers

    def start(self, device: Axdimm, pointers: dict[str, AxdimmPointer]) -> KernelRun:
        return device.RunOnAxdimmAsync(
            self.rule,
            pointers,
            self.count,
            self.hyperparameters,
            0,
            formats=self.formats,
            seed=self.seed,
            modes="wait",
        )

    def run(self, device: Axdimm) -> KernelRun:
        """Runs it, and checks all of the channel's memory and what the kernel counted."""
        pointers = self.put(device)
        transport = device.transport
        expected = transport.backdoor_read(0, 0, END)
        for name, each in self.after.items():
            assert each.size == self.before[name].size
            expected[pointers[name].address :][: each.size] = each
        handle = self.start(device, pointers)
        result = handle.wait()
        for name, each in self.after.items():
            found = np.empty_like(each)
            device.MemcpyAxdimm2Host(found, pointers[name], found.size, modes="wait")
            assert np.array_equal(found, each), name
        memory = transport.backdoor_read(0, 0, END)
        assert np.array_equal(memory, expected)
        assert (result.not_finite, result.skipped) == (self.not_finite, self.skipped)
        assert result.beats_read == self.beats_read
        assert result.beats_written == self.beats_written
        moved = result.beats_read + result.beats_written
        assert moved == (handle.fewest_beats if self.skipped else handle.beats)
        for pointer in pointers.values():
            device.FreeAxdimm(pointer)
        return handle


def _in_memory(tensors: dict[str, Any]) -> dict[str, Bytes]:
    """Bytes of tensors, with the scales of ``m`` and ``v`` in turn."""
    found = {}
    for name, each in tensors.items():
        found[name] = (each.codes if isinstance(each, Quantized) else each).view(np.uint8)
    if isinstance(tensors["m"], Quantized):
        scales = np.empty(2 * tensors["m"].scales.size, np.float32)
        scales[::2], scales[1::2] = tensors["m"].scales, tensors["v"].scales
        found["scales"] = scales.view(np.uint8)
    return found


@pytest.fixture(params=["golden", "cycles"])
def device(request: pytest.FixtureRequest) -> Iterator[Axdimm]:
    with Axdimm(request.param, options=OPTIONS) as opened:
        opened.transport.backdoor_write(0, 0, np.full(END, GUARD, np.uint8))
        yield opened


@pytest.mark.parametrize("rule", ["adam", "adamw"])
def test_every_mixture_is_the_golden_models(device: Axdimm, rule: str) -> None:
    for number, formats in enumerate(MIXTURES):
        # The last line of scales is full only with a multiple of 2048.
        count = (256, 1280, 2048)[number % 3]
        job = Job(formats, count, rule=rule, seed=2**63 + number, wrong=(count - 1,)[: number % 2])
        assert job.run(device).wait().not_finite == number % 2


@pytest.mark.parametrize("subnormals", ["kept", "flushed"])
def test_subnormal_numbers(subnormals: str) -> None:
    settings = {**OPTIONS.settings, "subnormals": subnormals}
    with Axdimm("golden", options=BackendOptions(preset="axdimm_narrow", settings=settings)) as it:
        it.transport.backdoor_write(0, 0, np.full(END, GUARD, np.uint8))
        Job(Formats(copy="bf16"), 256, subnormals=subnormals).run(it)
        Job(CODES, 256, subnormals=subnormals).run(it)


def test_the_step_of_random_words_has_32_bits(device: Axdimm) -> None:
    formats = Formats(parameters="bf16")
    late = Job(formats, 512, t=3 * 2**31 + 7, seed=1)
    late.run(device)
    other = Job(formats, 512, t=3 * 2**31 + 8, seed=1)
    assert not np.array_equal(late.after["p"], other.after["p"])
    other = Job(formats, 512, t=3 * 2**31 + 7, seed=1 + 2**40)
    assert not np.array_equal(late.after["p"], other.after["p"])


def test_a_run_in_fp32_follows_one_in_other_formats(device: Axdimm) -> None:
    """Also with counts that fill no block, or line."""
    Job(CODES, 512).run(device)
    assert Job(Formats(), 1037, wrong=(3, 4, 1036)).run(device).wait().not_finite == 3
    Job(Formats(copy="fp32"), 37).run(device)


@pytest.mark.parametrize("count", [256, 1280])
@pytest.mark.parametrize("formats", [Formats(), Formats(gradients="bf16"), CODES], ids=str)
def test_runs_with_wrong_gradients_are_skipped(
    device: Axdimm, formats: Formats, count: int
) -> None:
    skipping = replace(formats, skip_not_finite=True)
    for wrong in ((0,), (count - 1,), (3, 5, 7)):
        result = Job(skipping, count, wrong=wrong).run(device).wait()
        assert result.skipped
        assert result.not_finite == len(wrong)
        assert result.beats_written == 0
    assert not Job(skipping, count).run(device).wait().skipped
    assert not Job(formats, count, wrong=(0,)).run(device).wait().skipped


def test_skipping_in_fp32_takes_any_count(device: Axdimm) -> None:
    formats = Formats(skip_not_finite=True)
    Job(formats, 37).run(device)
    Job(formats, 37, wrong=(36,)).run(device)


def test_the_end_of_a_skipped_run_is_seen_soon() -> None:
    with Axdimm("cycles", options=OPTIONS) as device:
        job = Job(Formats(skip_not_finite=True), 1 << 14, wrong=(5,))
        handle = job.start(device, job.put(device))
        kernel_ended = handle.kernel_began + handle.wait().fabric_cycles
        assert handle.ended is not None
        assert handle.ended - kernel_ended < 1000


def test_progress_follows_the_formats(device: Axdimm) -> None:
    for formats in MIXTURES:
        job = Job(formats, 2048)
        pointers = job.put(device)
        handle = job.start(device, pointers)
        written = handle.wait().beats_written
        assert handle.parameters_done(written) == 2048
        assert handle.parameters_done(written // 2) == 2048 * (written // 2) // written
        for pointer in pointers.values():
            device.FreeAxdimm(pointer)


def test_opening_takes_no_longer() -> None:
    def lines(options: BackendOptions) -> int:
        watched = WatchedTransport(open_backend("golden", options))
        with Axdimm(watched):
            return watched.link_lines

    settings = {"rules": ("adam", "adamw"), "capacity_bytes": 1 << 20}
    plain = BackendOptions(settings=settings)
    assert lines(BackendOptions(settings={**settings, "narrow": True})) == lines(plain)


def test_devices_say_whether_they_have_them(device: Axdimm) -> None:
    assert device.narrow(1)
    assert device.configuration(1).narrow
    with Axdimm("golden", options=PLAIN) as plain:
        assert not plain.narrow(0)
        assert not plain.configuration(0).narrow


# What the driver refuses.


@pytest.mark.parametrize(
    ("expected", "said", "changes"),
    [
        (
            InvalidArgumentError,
            "'scales' is missing: adam with Formats.*'dynamic'.* takes p .*scales of the states",
            {"tensors": lambda them: {k: v for k, v in them.items() if k != "scales"}},
        ),
        (
            InvalidArgumentError,
            "'p_copy' is missing",
            {"tensors": lambda them: {k: v for k, v in them.items() if k != "p_copy"}},
        ),
        (
            InvalidArgumentError,
            "'scales' was given: adam with .* p_copy .another copy",
            {"formats": Formats(copy="bf16")},
        ),
        (
            InvalidArgumentError,
            "'p_copy' was given",
            {"formats": Formats(gradients="bf16", states="linear")},
        ),
        (InvalidArgumentError, "nparams is 511: .*multiple of 256.*append 1 ", {"nparams": 511}),
        (InvalidArgumentError, "p holds 512 parameters, the run is over 768", {"nparams": 768}),
        (
            InvalidArgumentError,
            "scales starts at address .* 8 bytes past",
            {"nparams": 256, "tensors": lambda them: them | {"scales": them["scales"] + 8}},
        ),
        (
            InvalidArgumentError,
            "scales holds 256 parameters, the run is over 512",
            {"tensors": lambda them: them | {"scales": them["scales"] + 8}},
        ),
        (
            RangeError,
            "p at .* and p_copy at .* overlap: they have 1024 and 1024 bytes",
            {"tensors": lambda them: them | {"p_copy": them["p"]}},
        ),
        (
            RangeError,
            "g at .* and p_copy at .* overlap: they have 1024 and 1024 bytes",
            {"tensors": lambda them: them | {"p_copy": them["g"]}},
        ),
        (
            RangeError,
            "m at .* and v at .* overlap: they have 256 and 256 bytes",
            {"nparams": 256, "tensors": lambda them: them | {"v": them["m"] + 192}},
        ),
        (InvalidArgumentError, "formats is 'bf16': expected a Formats", {"formats": "bf16"}),
        (
            InvalidArgumentError,
            "seed is 18446744073709551616: expected an integer from 0 to",
            {"seed": 2**64},
        ),
        (InvalidArgumentError, "seed is -1", {"seed": -1}),
    ],
)
def test_what_the_driver_refuses(
    device: Axdimm, expected: type[Exception], said: str, changes: dict[str, Any]
) -> None:
    """A run of 512 parameters with :data:`CODES` but for ``changes``."""
    pointers = Job(CODES, 512).put(device)
    device.SetArbiterAcc(0)
    before = device.transport.backdoor_read(0, 0, END)
    given = {"nparams": 512, "tensors": dict, "formats": CODES, **changes}
    given["tensors"] = given["tensors"](pointers)
    with pytest.raises(expected, match=said):
        device.RunOnAxdimmAsync("adam", **given, hyperparameters=HYPERPARAMETERS, channel=0)
    assert np.array_equal(device.transport.backdoor_read(0, 0, END), before)
    for pointer in pointers.values():  # nothing holds them
        device.FreeAxdimm(pointer)


def test_parts_that_do_not_overlap_are_taken(device: Axdimm) -> None:
    """Codes of 256 parameters fill 256 bytes."""
    job = Job(CODES, 256)
    pointers = job.put(device)
    states = device.MallocAxdimm(512, 0)
    pointers |= {"m": states, "v": states + 256}
    job.start(device, pointers).wait()


def test_kernels_without_them_refuse_formats() -> None:
    options = BackendOptions(settings={"rules": ("sgd", "adam"), "capacity_bytes": 1 << 20})
    with Axdimm("golden", options=options) as device:
        how = (
            r"channel 0 has no narrow formats, .*copy='fp32'.*'narrow': True, 'rules': \('adam',\)"
        )
        formats = Formats(copy="fp32")
        with pytest.raises(InvalidArgumentError, match=how):
            device.RunOnAxdimmAsync("adam", {}, 256, HYPERPARAMETERS, 0, formats=formats)
        with pytest.raises(InvalidArgumentError, match=r"sgd is none of the rules .* adam, adamw"):
            device.RunOnAxdimmAsync("sgd", {}, 256, {}, 0, formats=formats)


@pytest.mark.parametrize(
    ("name", "narrow", "settings"),
    [
        ("sgd", False, {"rules": ("adam", "sgd")}),
        ("adamw", True, {"narrow": True, "rules": ("adam", "adamw")}),
        ("sgd", True, {"narrow": False, "rules": ("sgd",)}),
    ],
)
def test_options_that_are_advised_can_be(name: str, narrow: bool, settings: Any) -> None:
    """Also on top of those that the kernel has."""
    assert options_for(name, ["adam"], narrow) == f"BackendOptions(settings={settings})"
    has = {"rules": ("adam",), "narrow": narrow, "capacity_bytes": 1 << 20}
    with Axdimm("golden", options=BackendOptions(settings=has | settings)) as device:
        assert name in device.rules(0)


# What the kernel refuses.

ADDRESSES = {name: 0x4000 * (1 + n) for n, name in enumerate("pgmv")}


def settings(**changes: int) -> dict[str, int]:
    """Settings of a run of 512 parameters with :data:`CODES` that are fine but for ``changes``."""
    return {
        "count": 512,
        **{f"{name}_in": address for name, address in ADDRESSES.items()},
        "scales_in": 0x20000,
        **{f"{name}_out": ADDRESSES[name] for name in "pmv"},
        "scales_out": 0x20000,
        "p_copy_out": 0x30000,
        "rule": 0,
        "formats": CODES.code(),
        **changes,
    }


REFUSALS = {
    "no rule": ("no_rule", {"rule": 2, "formats": 3, "count": 0}),
    **{
        f"format {code} at {lsb}": ("no_format", {"formats": code << lsb, "count": 0})
        for code, lsb in ((2, 0), (3, 0), (2, 2), (3, 4), (3, 6))
    },
    "no parameters": ("zero_count", {"count": 0, "p_in": 4}),
    "part of a block": ("part_of_block", {"count": 511, "p_in": 4}),
    "part of a block of gradients": (
        "part_of_block",
        {"count": 300, "formats": Formats(gradients="bf16").code()},
    ),
    **{
        f"{name} unaligned": ("unaligned", {name: 0x38020, "p_in": END})
        for name in settings()
        if name.endswith(("_in", "_out")) and name != "p_in"
    },
    "scales past the end": ("out_of_range", {"scales_in": END, "p_out": 0x4040}),
    "p_copy past the end": ("out_of_range", {"p_copy_out": END - 1024 + 64}),
    "p_out into p_in": ("overlap", {"p_out": 0x4040}),
    "p_out on g_in": ("overlap", {"p_out": 0x8000}),
    "m_out ends in v_in": ("overlap", {"m_out": 0x10000 - 448}),
    "scales_out on p": ("overlap", {"scales_out": 0x4000}),
    "p_copy in place of p": ("overlap", {"p_copy_out": 0x4000, "p_out": 0x34000}),
    "p_copy on scales": ("overlap", {"p_copy_out": 0x20000 - 960}),
    "p_copy on scales_out": ("overlap", {"p_copy_out": 0x24000, "scales_out": 0x24000}),
}


@pytest.fixture(params=["golden", "cycles"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    opened = open_backend(request.param, OPTIONS)
    rng = np.random.default_rng(0)
    opened.backdoor_write(0, 0, rng.integers(0, 256, END, np.uint8))
    arbiter_registers(opened, 0).write("mode", 1)
    yield opened
    opened.close()


def started(kernel: ChannelRegisters, changes: dict[str, int]) -> str:
    """What became of a run: the name of its cause."""
    kernel.write_many(settings(**changes))
    kernel.write("control", 1)
    status = kernel.poll("status", {"busy": 0}, interval=16, timeout=1_000_000)
    field = kernel["status"]["cause"]
    return {code: name for name, code in field.encoding}[field.extract(status)]


@pytest.mark.parametrize("case", REFUSALS)
def test_what_the_kernel_refuses(transport: Transport, case: str) -> None:
    cause, changes = REFUSALS[case]
    kernel = kernel_registers(transport, 0)
    assert started(kernel, {}) == "none"
    counts = ["cycles", "beats_read", "beats_written", "not_finite"]
    counted = kernel.read_many(counts)
    assert counted["not_finite"] > 0
    memory = transport.backdoor_read(0, 0, END)
    assert started(kernel, changes) == cause
    assert kernel.read_many(counts) == counted
    assert np.array_equal(transport.backdoor_read(0, 0, END), memory)
    assert started(kernel, {}) == "none"


@pytest.mark.parametrize(
    "changes",
    [
        # Of tensors that are not there, no address is looked at.
        {"formats": 0, "scales_in": 4, "scales_out": 0x4000, "p_copy_out": 4},
        {"formats": Formats(states="linear").code(), "p_copy_out": 0x4000},
        {"formats": Formats(gradients="bf16", copy="fp32").code(), "scales_out": END},
        # Just beside each other, or at the end.
        {"p_out": 0x4000 + 1024, "m_out": 0xC000 + 512, "v_out": 0x10000 - 512},
        {"scales_out": 0x20040, "p_copy_out": 0x20000 - 1024},
        {"scales_in": END - 64, "scales_out": END - 128},
    ],
)
def test_what_the_kernel_takes(transport: Transport, changes: dict[str, int]) -> None:
    assert started(kernel_registers(transport, 0), changes) == "none"
