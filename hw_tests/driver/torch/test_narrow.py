"""Adam and AdamW with narrow formats on the module: golden steps bit for bit, and their states."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch.nn import Parameter

from golden import narrow as oracle
from golden.rules import reference
from hw_tests.driver.torch.test_optimizer import bits
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.torch import Adam, Adam8bit, AdamW, AdamW8bit
from sw_driver.torch.offloading import Offloading

SETTINGS = {"rules": ("adam", "adamw"), "narrow": True}
BF16 = torch.bfloat16
SEED = 77
OPTIONS = {"lr": 1e-2, "weight_decay": 0.1, "seed": SEED}
SHAPES = [(3, 5), (), (5000,), (0,), (40, 20), (256,), (1, 2049)]
CASES: dict[str, tuple[type[Any], str, dict[str, Any]]] = {
    "8 bits": (Adam8bit, "adam", {}),
    "8 bits, decoupled": (AdamW8bit, "adamw", {"gradient_dtype": BF16}),
    "linear": (Adam, "adam", {"states": "linear"}),
    "BF16 gradients": (Adam, "adam", {"gradient_dtype": BF16}),
    "BF16 parameters": (AdamW, "adamw", {"parameter_dtype": BF16}),
    "all": (AdamW8bit, "adamw", {"gradient_dtype": BF16, "parameter_dtype": BF16}),
    "FP32": (Adam, "adam", {}),
}


@pytest.fixture(scope="module")
def device() -> Iterator[Axdimm]:
    with Axdimm("golden", options=BackendOptions(settings=SETTINGS)) as opened:
        yield opened


def parameters(dtype: Any = torch.float32, shapes: Any = SHAPES) -> list[Any]:
    torch.manual_seed(1)
    return [Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def filled(values: Any) -> Any:
    return np.pad(values, (0, -len(values) % 256))


def set_gradients(given: list[Any], step: int, without: tuple[int, ...] = ()) -> None:
    generator = torch.Generator().manual_seed(step)
    for index, each in enumerate(given):
        gradient = torch.randn(each.shape, generator=generator).to(each.dtype)
        each.grad = None if index in without else gradient


def array(tensor: Any) -> Any:
    return tensor.detach().to(torch.float32).numpy().reshape(-1).copy()


class Expected:
    """A parameter as golden steps have it, each piece of which is a run."""

    def __init__(self, rule: str, options: dict[str, Any], values: Any, first_block: int) -> None:
        states = options.get("states", "dynamic")
        self.model = reference(rule)
        self.forms = {"m": f"{states}_signed", "v": f"{states}_unsigned"}
        if not options["codes"]:
            self.forms = {}
        for name, option in (("g", "gradient_dtype"), ("p", "parameter_dtype")):
            if option in options:
                self.forms[name] = "bf16"
        self.count, self.first_block, self.t = values.size, first_block, 0
        self.values = {"p": self.stored("p", values)}
        self.values |= {name: self.stored(name, 0 * values) for name in "mv"}

    def stored(self, name: str, values: Any) -> Any:
        values, form = filled(values), self.forms.get(name, "fp32")
        if form == "fp32":
            return values
        return oracle.to_bf16(values) if form == "bf16" else oracle.quantize(values, form)

    def pieces(self, channels: int = 2) -> Iterator[tuple[int, int]]:
        """What is cut for the channels at whole lines, and of large ones for the rounds."""
        unit = 2048 if "m" in self.forms else 256
        units = -(-self.count // unit)
        for channel in range(channels):
            low, high = (unit * (units * each // channels) for each in (channel, channel + 1))
            for begin in range(low - channel * 65536 // channels, high, 65536):
                first, last = max(begin, low), min(begin + 65536, high, len(self.values["p"]))
                if first < last:
                    yield first, last

    def step(self, gradient: Any, lr: float, weight_decay: float) -> None:
        self.t += 1
        constants = self.model.constants(
            lr=lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=weight_decay, t=self.t
        )
        tensors = self.values | {"g": self.stored("g", gradient)}
        parts = []
        for first, last in self.pieces():
            part = {name: cut(each, first, last) for name, each in tensors.items()}
            seed = SEED << 32 | self.first_block + first // 256
            forms = {name: self.forms.get(name, "fp32") for name in "pgmv"}
            parts.append(oracle.step(self.model, part, constants, forms, t=self.t, seed=seed)[0])
        if parts:
            self.values = {name: joined([each[name] for each in parts]) for name in "pmv"}

    def read(self, name: str) -> Any:
        return oracle.decode(self.values[name], self.forms.get(name, "fp32"))[: self.count]


def cut(values: Any, first: int, last: int) -> Any:
    if isinstance(values, oracle.Quantized):
        scales = values.scales[first // 256 : last // 256]
        return oracle.Quantized(codes=values.codes[first:last], scales=scales)
    return values[first:last]


def joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], oracle.Quantized):
        return oracle.Quantized(
            codes=np.concatenate([each.codes for each in parts]),
            scales=np.concatenate([each.scales for each in parts]),
        )
    return np.concatenate(parts)


def same(one: Any, other: Any) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def expected_of(case: str, given: list[Any]) -> list[Expected]:
    kind, rule, options = CASES[case]
    codes = "states" in options or kind in (Adam8bit, AdamW8bit)
    result, block = [], 0
    for each in given:
        result.append(Expected(rule, options | {"codes": codes}, array(each), block))
        block += -(-each.numel() // 256)
    return result


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, torch.float32) for case in CASES), ("all", BF16)], ids=str
)
@pytest.mark.filterwarnings("error")
def test_steps_are_golden_steps(device: Axdimm, case: str, dtype: Any) -> None:
    kind, _, options = CASES[case]
    large = [(70_000, 2)] if case == "all" else []  # of more than a round
    given = parameters(dtype, [*SHAPES, *large])
    expected = expected_of(case, given)
    with kind(given, device=device, **OPTIONS, **options) as optimizer:
        for step in range(4):
            lr = optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
            set_gradients(given, step, without=(0, 4) if step == 0 else ())
            optimizer.step()
            for each, wanted in zip(given, expected, strict=True):
                if each.grad is not None:
                    wanted.step(array(each.grad), lr, 0.1)
                    assert same(array(each), wanted.read("p"))
        state = optimizer.state_dict()["state"]
        for index, (each, wanted) in enumerate(zip(given, expected, strict=True)):
            assert state[index]["step"] == wanted.t
            for name, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
                values = wanted.values[name]
                if not isinstance(values, oracle.Quantized):
                    assert same(state[index][key], wanted.read(name))
                    continue
                codes = state[index][f"{key}_{options.get('states', 'dynamic')}"]
                assert (codes.dtype, codes.shape) == (torch.uint8, each.shape)
                assert same(codes, values.codes[: each.numel()])
                assert same(state[index][f"{key}_scales"], values.scales)
                held = [part.tobytes() for _, _, part in optimizer.inspect(each, name)]
                assert b"".join(held) == codes.numpy().tobytes()


def trained(optimizer: Any, given: list[Any], steps: range) -> None:
    for step in steps:
        set_gradients(given, step, without=(2,) if step == 0 else ())
        optimizer.step()


def bits_of(optimizer: Any, given: list[Any]) -> list[Any]:
    states = optimizer.state_dict()["state"]
    return bits([*given, *(value for state in states.values() for value in state.values())])


@pytest.mark.parametrize("backend", ["golden", "cycles"])
@pytest.mark.parametrize("case", ["8 bits", "BF16 parameters", "all"])
def test_training_that_goes_on_is_training_without_a_break(case: str, backend: str) -> None:
    kind, _, options = CASES[case]
    wanted = parameters(shapes=[(1500, 60), (3, 5), (5000,)])
    with kind(wanted, device="golden", **OPTIONS, **options) as optimizer:
        trained(optimizer, wanted, range(4))
        found = bits_of(optimizer, wanted)
    given = parameters(shapes=[(1500, 60), (3, 5), (5000,)])
    with kind(given, device=backend, **OPTIONS, **options) as optimizer:
        trained(optimizer, given, range(2))
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
    again = [Parameter(each.detach().clone()) for each in given]
    with kind(again, device=backend, **OPTIONS, **options) as optimizer:
        file.seek(0)
        optimizer.load_state_dict(torch.load(file, weights_only=True))
        trained(optimizer, again, range(2, 4))
        assert bits_of(optimizer, again) == found
    if "parameter_dtype" in options:
        other = parameters(shapes=[(1500, 60), (3, 5), (5000,)])
        with kind(other, device=backend, **OPTIONS | {"seed": 1}, **options) as optimizer:
            trained(optimizer, other, range(4))
            assert bits_of(optimizer, other) != found


def test_states_become_codes_and_codes_states(device: Axdimm) -> None:
    theirs, ours, back, on = (parameters() for _ in range(4))
    before = torch.optim.AdamW(theirs, lr=1e-2)
    trained(before, theirs, range(3))
    saved = before.state_dict()
    coded, plain = AdamW8bit(ours, device=device), AdamW(back, device=device)
    coded.load_state_dict(saved)
    codes = coded.state_dict()
    plain.load_state_dict(codes)
    states = plain.state_dict()
    for index, each in enumerate(ours):
        assert codes["state"][index]["step"] == saved["state"][index]["step"]
        for key, table in (("exp_avg", "dynamic_signed"), ("exp_avg_sq", "dynamic_unsigned")):
            made = oracle.quantize(filled(array(saved["state"][index][key])), table)
            assert same(codes["state"][index][f"{key}_dynamic"], made.codes[: each.numel()])
            assert same(codes["state"][index][f"{key}_scales"], made.scales)
            assert states["state"][index][key].shape == each.shape
            read = oracle.dequantize(made, table)[: each.numel()]
            assert same(states["state"][index][key], read)
        assert saved["state"][index].keys() == states["state"][index].keys()
    after = torch.optim.AdamW(on, lr=1e-2)
    after.load_state_dict(copy.deepcopy(states))
    trained(after, on, range(3, 4))
    # What comes to the module is the same.
    trained(coded, ours, range(3, 4))
    trained(plain, back, range(3, 4))
    assert bits(ours) == bits(back)


def bad(change: Any, *, coded: bool = True) -> Any:
    def changed(saved: dict[str, Any]) -> None:
        change(saved["state"][2])

    return changed, coded


def put(key: str, index: int, value: float) -> Any:
    def change(state: dict[str, Any]) -> None:
        state[key] = state[key].clone()
        state[key][index] = value

    return change


BAD = {
    r"exp_avg_sq_scales of parameter 2 .* inf for block 3": bad(
        put("exp_avg_sq_scales", 3, float("inf"))
    ),
    r"exp_avg_scales of parameter 2 .* nan for block 0": bad(
        put("exp_avg_scales", 0, float("nan"))
    ),
    r"exp_avg_scales of parameter 2 .* -1.0 for block 1": bad(put("exp_avg_scales", 1, -1.0)),
    r"exp_avg_scales of parameter 2 .* \(19,\): expected \(20,\)": bad(
        lambda state: state.update(exp_avg_scales=state["exp_avg_scales"][1:])
    ),
    r"exp_avg_dynamic of parameter 2 .* \(4999,\): expected \(5000,\)": bad(
        lambda state: state.update(exp_avg_dynamic=state["exp_avg_dynamic"][1:])
    ),
    r"exp_avg_sq_dynamic of parameter 2 .* torch.float32: expected torch.uint8": bad(
        lambda state: state.update(exp_avg_sq_dynamic=state["exp_avg_sq_dynamic"].float())
    ),
    r"no exp_avg_scales for parameter 2": bad(lambda state: state.pop("exp_avg_scales")),
    r"no exp_avg_sq_dynamic for parameter 2|has 'exp_avg_sq_scales' for parameter 2": bad(
        lambda state: state.pop("exp_avg_sq_dynamic")
    ),
    r"'exp_avg_cubic' for parameter 2|has 'exp_avg_scales' for parameter 2": bad(
        lambda state: state.update(exp_avg_cubic=state.pop("exp_avg_dynamic"))
    ),
    r"'exp_avg' for parameter 2|'exp_avg_dynamic' for parameter 2": bad(
        lambda state: state.update(exp_avg=torch.zeros(5000))
    ),
    r"exp_avg_scales of parameter 2 .* inf for block 0": bad(
        put("exp_avg", 7, float("-inf")), coded=False
    ),
    r"exp_avg_sq_scales of parameter 2 .* nan for block 0": bad(
        put("exp_avg_sq", 7, float("nan")), coded=False
    ),
    r"exp_avg of parameter 2 .* \(5000, 1\): expected \(5000,\)": bad(
        lambda state: state.update(exp_avg=state["exp_avg"].view(5000, 1)), coded=False
    ),
}


@pytest.mark.parametrize(
    ("message", "kind"),
    [(each, kind) for each in BAD for kind in (Adam8bit, Adam) if kind is Adam8bit or BAD[each][1]],
)
def test_other_states_are_refused_and_nothing_has_changed(
    device: Axdimm, message: str, kind: Any
) -> None:
    change, coded = BAD[message]
    given = parameters()
    with kind(given, device=device, lr=1e-2) as optimizer:
        trained(optimizer, given, range(2))
        before = bits_of(optimizer, given)
        others = parameters()
        other = (Adam8bit if coded else Adam)(others, device=device)
        trained(other, others, range(3))
        saved = other.state_dict()
        change(saved)
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(saved)
        assert bits_of(optimizer, given) == before


def test_codes_of_another_table_are_refused(device: Axdimm) -> None:
    one, other = parameters(), parameters()
    linear = Adam(one, device=device, states="linear")
    trained(linear, one, range(2))
    with pytest.raises(ValueError, match=r"'exp_avg_linear' for parameter 0 .* exp_avg_dynamic"):
        Adam8bit(other, device=device).load_state_dict(linear.state_dict())


def test_state_that_a_program_reads_and_moves(device: Axdimm) -> None:
    found = []
    for touched in (False, True):
        given = parameters()
        with Adam8bit(given, device=device, lr=1e-2) as optimizer:
            trained(optimizer, given, range(2))
            if touched:
                assert optimizer.state[given[4]]["exp_avg_scales"].shape == (4,)
                given[2] = Parameter(given[2].detach().clone())
                group = optimizer.param_groups[0]["params"]
                optimizer.state[given[2]] = optimizer.state.pop(group[2])
                group[2] = given[2]
            trained(optimizer, given, range(2, 4))
            found.append(bits_of(optimizer, given))
    assert found[0] == found[1]


@pytest.mark.parametrize("kinds", [(Adam, Adam8bit), (Adam8bit, Adam)])
def test_state_of_another_format_is_not_taken_by_hand(device: Axdimm, kinds: Any) -> None:
    given = parameters()
    one, other = (kind(given, device=device, lr=1e-2) for kind in kinds)
    trained(one, given, range(2))
    before = bits(given)
    other.state[given[1]] = one.state.pop(given[1])
    with pytest.raises(ValueError, match=r"state of parameter 1 .* exp_avg.*load_state_dict"):
        other.step()
    assert bits(given) == before


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("exp_avg_dynamic", torch.full((300,), 300.7), "is torch.float32: expected torch.uint8"),
        ("exp_avg_sq_scales", torch.tensor([1.0, -1.0]), "has -1.0 for block 1: expected finite"),
    ],
)
def test_codes_that_are_none_are_not_taken_by_hand(
    device: Axdimm, key: str, value: Any, message: str
) -> None:
    given = [Parameter(torch.ones(300))]
    with Adam8bit(given, device=device) as optimizer:
        trained(optimizer, given, range(1))
        before = bits(given)
        optimizer.state[given[0]][key] = value
        with pytest.raises(ValueError, match=f"{key} in the state of parameter 0 .*{message}"):
            optimizer.step()
        assert bits(given) == before


@pytest.mark.parametrize("kind", [Adam, Adam8bit])
def test_steps_with_gradients_that_are_not_finite_are_none(device: Axdimm, kind: Any) -> None:
    found = []
    for wrong in (None, float("inf"), float("nan"), 3.4e38):
        given = parameters()
        options = {"gradient_dtype": BF16, "skip_not_finite": True}
        with kind(given, device=device, lr=1e-2, **options) as optimizer:
            trained(optimizer, given, range(2))
            if wrong is not None:  # the last is infinite in BF16
                before = bits_of(optimizer, given)
                set_gradients(given, 9)
                given[2].grad[4000:4002] = wrong
                optimizer.step()
                assert optimizer.last_step.not_finite == 2
                assert optimizer.last_step.runs == 0
                assert bits_of(optimizer, given) == before
            trained(optimizer, given, range(2, 4))
            assert optimizer.last_step.not_finite == 0
            found.append(bits_of(optimizer, given))
    assert found[1:] == found[:1] * 3


def test_gradients_that_are_not_finite_are_counted(device: Axdimm) -> None:
    given = parameters()
    with Adam8bit(given, device=device) as optimizer:
        set_gradients(given, 0)
        given[0].grad[0], given[2].grad[7] = float("inf"), float("nan")
        optimizer.step()
        assert optimizer.last_step.not_finite == 6


def test_a_block_of_nan_is_gone_with_its_state(device: Axdimm) -> None:
    found = []
    for broken in (False, True):
        given = parameters()
        with Adam8bit(given, device=device, lr=1e-2, weight_decay=0.1) as optimizer:
            trained(optimizer, given, range(2))
            saved = optimizer.state_dict()
            values = [each.detach().clone() for each in given]
            if broken:
                given[0].grad[1, 1] = float("nan")
                optimizer.step()
                optimizer.step()  # the first has made the block's scales NaN
                assert given[0].isnan().all()
                optimizer.load_state_dict(saved)
                for each, value in zip(given, values, strict=True):
                    each.data.copy_(value)
            trained(optimizer, given, range(2, 4))
            found.append(bits_of(optimizer, given))
    assert found[0] == found[1]


def test_fp32_is_the_same_where_formats_are_narrow(device: Axdimm, golden: Axdimm) -> None:
    found = []
    for opened in (device, golden):
        given = parameters()
        with AdamW(given, device=opened, lr=1e-2) as optimizer:
            trained(optimizer, given, range(3))
            found.append(bits_of(optimizer, given))
    assert found[0] == found[1]


def test_norms_and_scalers_are_pytorchs(device: Axdimm) -> None:
    given = parameters()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with AdamW8bit(given, device=device, lr=1e-2) as optimizer:
        set_gradients(given, 0)
        norm = torch.nn.utils.get_total_norm([each.grad for each in given])
        assert optimizer.clip_grad_norm(1.0) == norm
        before = bits(given)
        scaler.scale(torch.tensor(1.0))
        given[0].grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        assert bits(given) == before
        assert scaler.get_scale() == 2.0


REFUSED: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "gradient_dtype is torch.float16: expected torch.float32": (
        Adam, {"gradient_dtype": torch.float16}
    ),
    "parameter_dtype is torch.float64": (Adam, {"parameter_dtype": torch.float64}),
    "states is 'int8': expected one of fp32, dynamic, linear": (Adam, {"states": "int8"}),
    "skip_not_finite is 'no': expected a bool": (Adam, {"skip_not_finite": "no"}),
    "seed is -1": (Adam8bit, {"seed": -1}),
    "seed is 4294967296": (Adam8bit, {"seed": 1 << 32}),
    "the rule amsgrad has no narrow formats.*a class without 8bit": (Adam8bit, {"amsgrad": True}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_are_refused(device: Axdimm, message: str) -> None:
    kind, options = REFUSED[message]
    with pytest.raises(ValueError, match=message):
        kind(parameters(), device=device, **options)


def test_modules_and_stores_without_narrow_formats_are_refused(golden: Axdimm) -> None:
    with pytest.raises(InvalidArgumentError, match=r"which the kernel .* lacks: .*{'narrow': True"):
        Adam8bit(parameters(), device=golden)
    for kind, options in ((AdamW8bit, {}), (AdamW, {"gradient_dtype": torch.bfloat16})):
        with pytest.raises(ValueError, match="a store has everything in FP32"):
            Offloading(golden, kind, **options)  # type: ignore[arg-type]


def test_a_preset_with_narrow_formats_has_plain_optimizers_too() -> None:
    given = parameters()
    with AdamW(given, device="golden:axdimm_narrow") as optimizer:
        trained(optimizer, given, range(1))
        assert optimizer.device.narrow(0)
