"""Steps that are interrupted, and what is loaded then."""

from __future__ import annotations

import copy
import itertools
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from hw_tests.driver.torch.test_optimizer import bits
from sw_driver.axdimm import Axdimm
from sw_driver.torch import Adam
from sw_driver.torch.optimizer import UNDER_WAY, UPDATED

PARTS = ("sw_driver/torch/", "sw_driver/device/clock.py", "sw_driver/device/streams.py")
APART = 41
"""Lines between the moments of interrupts that are tried."""


class Interrupted(Exception):
    """What the handler of a signal raises."""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in signal.valid_signals()}
    yield
    assert {each: signal.getsignal(each) for each in before} == before


@contextmanager
def interrupted(number: int, line: int, parts: tuple[str, ...] = PARTS) -> Iterator[None]:
    """Has a signal come at that line of those that are carried out in these parts."""
    passed = 0

    def raises(*_: object) -> None:
        raise Interrupted

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        if not any(part in frame.f_code.co_filename for part in parts):
            return None
        passed += event == "line"
        if event == "line" and passed == line:
            sys.settrace(None)
            signal.raise_signal(number)
        return trace

    handler, tracer = signal.signal(number, raises), sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(tracer)
        assert signal.signal(number, handler) is raises


class Scene:
    """A model, whose second step is to be interrupted, and what it is to become."""

    def __init__(self, device: Axdimm) -> None:
        torch.manual_seed(5)
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 90))
        self.given = list(self.net.parameters())
        self.optimizer = Adam(self.given, lr=0.1, device=device)
        self.step()
        self.saved = copy.deepcopy([self.net.state_dict(), self.optimizer.state_dict()])

    def set_gradients(self) -> None:
        for index, each in enumerate(self.given):
            each.grad = torch.full_like(each, index - 1.5)

    def step(self) -> None:
        self.set_gradients()
        self.optimizer.step()

    @property
    def values(self) -> list[bytes]:
        return bits(self.given)

    @property
    def state(self) -> list[bytes]:
        states = self.optimizer.state_dict()["state"]
        return bits(value for number in range(4) for value in states[number].values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("begun", ["step", "step_async"])
def test_an_interrupted_step_is_all_or_nothing(golden: Axdimm, number: int, begun: str) -> None:
    scene = Scene(golden)
    old = scene.values, scene.state
    scene.step()
    new = scene.values, scene.state
    scene.optimizer.close()
    seen = set()
    for line, loaded in zip(itertools.count(1, APART), itertools.cycle(range(4))):
        scene = Scene(golden)
        scene.set_gradients()
        try:
            with interrupted(number, line):
                getattr(scene.optimizer, begun)()
        except Interrupted as error:
            notes = "".join(getattr(error, "__notes__", ()))
        else:
            scene.optimizer.close()
            break
        seen.add(notes)
        assert notes in ("", UNDER_WAY, UPDATED)
        is_new = notes == UPDATED or (not notes and scene.values == new[0])  # just at the end
        assert scene.values == (new if is_new else old)[0]
        if loaded & 1:  # also alone
            scene.net.load_state_dict(scene.saved[0])
        if loaded & 2:
            scene.optimizer.load_state_dict(scene.saved[1])
        state, is_loaded = scene.state, loaded & 1 or (loaded & 2 and not is_new)
        is_new |= bool(notes)
        assert state == (new if is_new and not loaded & 2 else old)[1]
        assert scene.values == (new if is_new and not is_loaded else old)[0]
        if loaded == 3 or not is_new:
            scene.step()
            assert (scene.values, scene.state) == new
        scene.optimizer.close()
    assert seen == ({"", UNDER_WAY, UPDATED} if begun == "step" else {"", UNDER_WAY})
    assert line > 10 * APART


def test_what_was_given_up_comes_no_more(golden: Axdimm) -> None:
    scene, calls = Scene(golden), []
    scene.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    scene.set_gradients()
    handle = scene.optimizer.step_async()
    scene.net.load_state_dict(scene.saved[0])
    scene.optimizer.load_state_dict(scene.saved[1])
    with torch.no_grad():
        scene.given[0].fill_(3)
    handle.wait()
    assert torch.equal(scene.given[0], torch.full((7, 5), 3.0))
    assert not calls
    scene.optimizer.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda each: each.clamp_(max=-1),
        lambda each: each.data.clamp_(max=-1),
        lambda each: setattr(each, "data", each.data.clone()),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_written_beside_a_step_stays(golden: Axdimm, shared: bool, write: Any) -> None:
    scenes = Scene(golden), Scene(golden)
    for scene in scenes if shared else ():
        whole = torch.full((3000,), torch.nan)  # of which all parameters are views
        for index, each in enumerate(scene.given):
            view = whole[700 * index :][: each.numel()].view(each.shape)
            each.data = view.copy_(each.data)
    scene, other = scenes
    scene.set_gradients()
    handle = scene.optimizer.step_async()
    with torch.no_grad():
        write(scene.given[1])
    kept = bits(scene.given[1:2])
    other.step()
    handle.wait()
    assert bits(scene.given[1:2]) == kept != bits(other.given[1:2])
    assert bits(scene.given[::2] + scene.given[3:]) == bits(other.given[::2] + other.given[3:])
    assert scene.state == other.state
    for each in scenes:
        each.optimizer.close()
