"""Profiles for tests, and a model of the link that shares no code with the one under test."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from random import Random

from sw_driver.system.memferry.link import MODES, AccessPlan
from sw_driver.system.memferry.profile import LayerProfile, ModelProfile


def profile_of(*layers: LayerProfile, update_ns: int = 0) -> ModelProfile:
    return ModelProfile(device="a", link_bytes_per_s=1e9, update_ns=update_ns, layers=layers)


def layer(
    name: str,
    transfer: int,
    forward: tuple[int, int],
    backward: tuple[int, int, int] = (0, 0, 0),
    gaps: tuple[int, int] = (0, 0),
) -> LayerProfile:
    """``forward`` is on the GPU and by DHA, ``backward`` also with the gradient by DHA; a byte of
    parameters takes a ns."""
    return LayerProfile(
        name=name,
        nbytes=transfer,
        transfer_ns=transfer,
        forward_ns=forward[0],
        forward_dha_ns=forward[1],
        backward_ns=backward[0],
        backward_dha_ns=backward[1],
        backward_gradient_dha_ns=backward[2],
        gap_forward_ns=gaps[0],
        gap_backward_ns=gaps[1],
    )


FIGURE_4 = profile_of(layer("1", 80, (20, 100)), layer("2", 90, (30, 200)))
FIGURE_6 = profile_of(
    layer("1", 10, (4, 12), (8, 9, 20)),
    layer("2", 20, (6, 10), (10, 14, 30)),
    layer("3", 30, (10, 90), (20, 90, 90)),
    update_ns=12,
)


def any_profile(random: Random, layers: int) -> ModelProfile:
    """Small numbers, so that much is equal, and much is 0. An update takes whole ns for a byte."""
    most = random.choice((3, 9, 30))

    def some() -> int:
        return random.randrange(most) * (random.random() > 0.1)

    made = [
        layer(str(n), some(), (some(), some()), (some(), some(), some()), (some(), some()))
        for n in range(layers)
    ]
    return profile_of(
        *made, update_ns=random.randrange(3) * sum(made_layer.nbytes for made_layer in made)
    )


def any_plan(random: Random, layers: int) -> AccessPlan:
    return AccessPlan(
        modes=tuple(random.choice(MODES) for _ in range(layers)),
        gradients_on_gpu=tuple(random.random() < 0.5 for _ in range(layers)),
    )


class Ticks:
    """Ends of a forward pass and of a step, ns by ns: half a ns of the link for each of two."""

    def __init__(self, profile: ModelProfile, plan: AccessPlan, shared: bool) -> None:
        self.ways = list(zip(profile.layers, plan.modes, plan.gradients_on_gpu, strict=True))
        self.shared = shared
        self.rest = dict.fromkeys(("computes", "reads", "writes"), Fraction())
        self.to_gpu = [[n, self._bytes(n)] for n, way in enumerate(self.ways) if way[1] == "GFGB"]
        self.to_host: list[list] = []
        self.later: list[int] = []
        self.loaded: list[int] = []
        self.came: list[int] = []
        self.moved = {"to_gpu": Fraction(), "to_host": Fraction()}
        self.busy = dict.fromkeys(self.moved, 0)
        self.now = self.forward_ns = self.step_ns = 0
        self.update_ns_of_byte = profile.update_ns // max(
            sum(way_layer.nbytes for way_layer in profile.layers), 1
        )
        gpu = self._gpu()
        while True:
            before = None
            while before != (before := self._lengths()):
                computing = next(gpu, "over")
                if not self.to_gpu and self.later:
                    n = self.later.pop()
                    self.to_gpu.append([n, self._bytes(n)])
                for queue, over in ((self.to_gpu, self.loaded.append), (self.to_host, self._come)):
                    while queue and queue[0][1] == 0:
                        over(queue.pop(0)[0])
            if computing == "over" and not self.to_host:
                break
            self._tick()

    def _come(self, n: int) -> None:
        self.came.append(n)
        self.step_ns = max(self.step_ns, self.now) + self.update_ns_of_byte * self.ways[n][0].nbytes

    def _lengths(self) -> tuple[int, ...]:
        lists = (self.to_gpu, self.to_host, self.later, self.loaded, self.came)
        return (*map(len, lists), *map(int, self.rest.values()))

    def _tick(self) -> None:
        self.now += 1
        self.rest["computes"] = max(self.rest["computes"] - 1, Fraction())
        for name, queue, dha in (
            ("to_gpu", self.to_gpu, "reads"),
            ("to_host", self.to_host, "writes"),
        ):
            users = (len(queue) > 0) + (self.rest[dha] > 0 and self.shared)
            for _ in range(users):
                self.moved[name] += Fraction(1, users)
            self.busy[name] += users > 0
            if queue:
                queue[0][1] -= Fraction(1, users)
                assert queue[0][1] >= 0
            if self.rest[dha]:
                self.rest[dha] -= Fraction(1, users)
                assert self.rest[dha] >= 0

    def _bytes(self, n: int) -> Fraction:
        return Fraction(self.ways[n][0].transfer_ns)

    def _dha_moves(self, n: int, alone: int, on_gpu: int) -> int:
        return self.shared * (alone if alone > on_gpu else min(alone, int(self._bytes(n))))

    def _work(self, computes: int, reads: int = 0, writes: int = 0) -> Iterator[None]:
        self.rest.update(
            computes=Fraction(computes), reads=Fraction(reads), writes=Fraction(writes)
        )
        while any(self.rest.values()):
            yield

    def _gpu(self) -> Iterator[None]:
        for n, (way_layer, mode, _) in enumerate(self.ways):
            if mode == "GFGB":
                while n not in self.loaded:
                    yield
                yield from self._work(way_layer.forward_ns)
            else:
                dha = way_layer.forward_dha_ns
                yield from self._work(dha, self._dha_moves(n, dha, way_layer.forward_ns))
            if mode == "DFGB":
                self.later.append(n)
            yield from self._work(way_layer.gap_forward_ns)
        self.forward_ns = self.now
        for n, (way_layer, mode, on_gpu) in reversed(list(enumerate(self.ways))):
            yield from self._work(way_layer.gap_backward_ns)
            while mode != "DHA" and n not in self.loaded:
                yield
            alone, reads, writes = [], 0, 0
            if mode == "DHA":
                alone.append(way_layer.backward_dha_ns)
                reads = self._dha_moves(n, way_layer.backward_dha_ns, way_layer.backward_ns)
            if not on_gpu:
                alone.append(way_layer.backward_gradient_dha_ns)
                writes = self._dha_moves(
                    n, way_layer.backward_gradient_dha_ns, way_layer.backward_ns
                )
            yield from self._work(max(alone, default=way_layer.backward_ns), reads, writes)
            if on_gpu:
                self.to_host.append([n, self._bytes(n)])
            else:
                self._come(n)
