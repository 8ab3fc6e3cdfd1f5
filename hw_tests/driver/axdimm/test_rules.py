"""Every update rule through the driver, bit for bit against the golden model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from golden.rules import reference
from hw.rules import RULES, rule
from hw.rules.update_rule import UpdateRule
from hw_tests.driver.conftest import EVERY_RULE, PRESET
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.backends import module_config
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.registers import arbiter_registers, kernel_registers
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.device.errors import IncompatibleDeviceError, InvalidArgumentError, RangeError

COUNT = 1037
"""Ends within a line, and after more lines than a sum has accumulators."""


def options(*rules: str, **settings: str) -> BackendOptions:
    return BackendOptions(preset=PRESET, settings={"rules": rules, **settings})


def values_for(name: str, seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(seed)
    values = {each: rng.normal(size=COUNT).astype(np.float32) for each in rule(name).tensors}
    for each in values.keys() & {"v", "x", "s"}:
        np.square(values[each], out=values[each])
    return values


def run(device: Axdimm, channel: int, name: str, seed: int = 0, scale: float = 1) -> None:
    """A run of the rule, whose tensors and sums have to be the golden model's."""
    chosen = rule(name)
    before = {each: values * np.float32(scale) for each, values in values_for(name, seed).items()}
    tensors = {each: device.MallocAxdimm(4 * COUNT, channel) for each in chosen.tensors}
    for each, pointer in tensors.items():
        device.MemcpyHost2Axdimm(pointer, before[each], 4 * COUNT, backdoor=True)
    hyperparameters = hyperparameters_of(chosen, 2)
    handle = device.RunOnAxdimmAsync(name, tensors, COUNT, hyperparameters, channel, modes="wait")
    result = handle.wait()
    golden = reference(name, device.transport.subnormals)
    expected = golden.step(before, golden.constants(**hyperparameters))
    if device.transport.subnormals == "flushed":
        kept = reference(name).step(before, golden.constants(**hyperparameters))
        assert any(np.any(kept[each] != expected[each]) for each in expected)
    lines = -(-COUNT // 16)
    assert result.beats_read == lines * len(chosen.inputs)
    assert result.beats_written == lines * len(chosen.outputs)
    assert handle.progress.done == COUNT
    assert result.sums == {each: expected[each] for each in chosen.sums}
    for each, pointer in tensors.items():
        found = np.empty(COUNT, np.float32)
        device.MemcpyAxdimm2Host(found, pointer, 4 * COUNT, backdoor=True)
        wanted = expected[each] if each in chosen.outputs else before[each]
        assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32)), each
        device.FreeAxdimm(pointer)


@pytest.mark.parametrize("model", ["golden", "cycles"])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_the_golden_models(model: str, name: str) -> None:
    with Axdimm(model, options=options(name)) as device:
        assert device.rules(0) == device.rules(1) == (name,)
        run(device, 1, name)


@pytest.mark.parametrize("model", ["golden", "cycles", "rtl"])
def test_rules_of_one_device_take_turns(model: str) -> None:
    together = tuple(RULES)
    with Axdimm(model, options=EVERY_RULE) as device:
        assert device.rules(0) == together
        assert device.configuration(0).rules == together
        for seed, name in enumerate((*together, *reversed(together))):
            run(device, seed % 2, name, seed)


@pytest.mark.parametrize("model", ["golden", "cycles", "rtl"])
def test_subnormal_numbers_are_flushed_everywhere(model: str) -> None:
    with Axdimm(model, options=options("sgd", "sum_squares", subnormals="flushed")) as device:
        run(device, 0, "sgd", scale=1e-38)
        run(device, 1, "sum_squares", scale=1e-19)


@pytest.fixture
def device() -> Iterator[Axdimm]:
    with Axdimm("golden", options=options("sgd", "scale_add")) as opened:
        yield opened


def test_a_rule_that_the_device_has_not_is_refused(device: Axdimm) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has sgd, scale_add, not lion: .*'rules': "):
        device.RunOnAxdimmAsync("lion", {}, 1, {}, 0)
    with pytest.raises(InvalidArgumentError, match=r"no update rule 'adamm': known are .*adamw"):
        device.RunOnAxdimmAsync("adamm", {}, 1, {}, 0)
    pointers = [device.MallocAxdimm(64, 0) for _ in range(4)]
    with pytest.raises(InvalidArgumentError, match="not adam: open it with"):
        device.RunAdamOnAxdimmAsync(*pointers, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, 1, 0)


def test_tensors_have_the_names_of_the_rule(device: Axdimm) -> None:
    p, g = (device.MallocAxdimm(64, 0) for _ in range(2))
    hyperparameters = {"lr": 1.0, "weight_decay": 0.0}
    before = device.memory(0)
    for tensors, message in (
        ({"p": p}, "'g' is missing: sgd takes p .parameters., g .gradients."),
        ({"p": p, "g": g, "m": g}, "'m' was given: sgd takes"),
        ([p, g], "expected a mapping"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            device.RunOnAxdimmAsync("sgd", tensors, 16, hyperparameters, 0)  # type: ignore[arg-type]
    assert device.memory(0) == before
    for pointer in (p, g):  # nothing holds them
        device.FreeAxdimm(pointer)


def test_what_is_read_alone_may_overlap(device: Axdimm) -> None:
    device.SetArbiterAcc(0)
    x, z = (device.MallocAxdimm(256, 0) for _ in range(2))
    device.MemcpyHost2Axdimm(x, np.arange(64, dtype=np.float32), 256, backdoor=True)
    hyperparameters = {"scale": 2}
    device.RunOnAxdimmAsync("scale_add", {"x": x, "y": x, "z": z}, 64, hyperparameters, 0).wait()
    found = np.empty(64, np.float32)
    device.MemcpyAxdimm2Host(found, z, 256, backdoor=True)
    assert np.array_equal(found, 3 * np.arange(64, dtype=np.float32))
    with pytest.raises(RangeError, match=r"y at .* and z at .* overlap"):
        device.RunOnAxdimmAsync("scale_add", {"x": x, "y": z, "z": z}, 64, hyperparameters, 0)


class _Unknown(GoldenTransport):
    def _arbiter_values(self, state: Any, name: str) -> dict[str, int]:
        values = super()._arbiter_values(state, name)
        return {"identifier": 0x1234} if name == "rule_1" else values


def test_an_unknown_rule_is_another_device() -> None:
    config = module_config(options("sgd", "copy"))
    transport = _Unknown(capacity_bytes=config.capacity_bytes, rules=config.rules)
    with pytest.raises(IncompatibleDeviceError, match="rule_1 the identifier 0x00001234, of an"):
        Axdimm(transport)


def test_a_rule_beyond_those_there_is_refused_by_the_kernel() -> None:
    transport = GoldenTransport(rules=("sgd", "copy"))
    arbiter_registers(transport, 0).write("mode", 1)
    kernel = kernel_registers(transport, 0)
    kernel.write_many({"count": 16, "x_in": 0, "y_out": 64, "rule": 2, "control": 1})
    causes = dict(kernel["status"]["cause"].encoding)
    assert kernel.read_field("status", "cause") == causes["no_rule"]
    # The other rule's addresses, unaligned here, do not matter.
    kernel.write_many({"p_in": 1, "rule": 1, "control": 1})
    assert kernel.read_field("status", "cause") == causes["none"]
    assert kernel.read("beats_written") == 1


def test_a_rule_added_by_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    added = UpdateRule(
        name="ramp",
        title="ramp",
        tensors={"a": "ramp"},
        inputs=("a",),
        outputs=("a",),
        constants={"slope": "1 / (span - 1)"},
        formula=lambda *, a, slope: {"a": a * slope},
    )
    monkeypatch.setitem(RULES, "ramp", added)
    with Axdimm("golden", options=options("ramp")) as opened:
        tensor = opened.MallocAxdimm(64, 0)
        with pytest.raises(ValueError, match="the constants of ramp cannot be computed"):
            opened.RunOnAxdimmAsync("ramp", {"a": tensor}, 1, {"span": 1}, 0)
