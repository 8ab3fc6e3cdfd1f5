"""Products of a descriptor's fields: spans of tensors, operation counts, steps of an image."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from amaranth.hdl import Array, Cat, Mux, Signal

from hw.float.parts import wire
from hw.pim.config import PimConfig
from hw.pim.front.words import Words
from hw.pim.shared_multiplier import SharedMultiplier, Sum
from hw.pim.work.descriptor import FORMS, TENSORS, Opcode
from hw.pim.work.layouts import Jobs

__all__ = ["Amounts"]

_BITS = 64
_INDICES = range(4)


class Amounts:
    """Amounts of a descriptor, computed one after the other on one multiplier.

    They are meaningless if a size is out of range. Distances are modulo the stack's size, and
    counts of operations are modulo 2 ** 64. Counts of results are right if no two results share a
    place.
    """

    def __init__(self, m: Any, words: Words, config: PimConfig) -> None:
        jobs = Jobs(config)
        word = jobs.word_bits

        def distance(name: str) -> Signal:
            return Signal(word, name=name)

        self.start = Signal(name="start_amounts")
        """Pulse that starts the computation; the words must hold still until ``done``."""
        self.done = Signal(name="amounts_done")
        """Pulse: all amounts are valid."""
        self.lasts = self._lasts(m, words)
        """Greatest values of each tensor's indices."""
        self.low = {tensor: Signal(_BITS, name=f"{tensor}_low") for tensor in TENSORS}
        self.high = {tensor: Signal(_BITS, name=f"{tensor}_high") for tensor in TENSORS}
        """First and last element of each span, signed; 0 for a tensor that the opcode lacks."""
        self.magnitudes = [self._magnitude(m, words, index) for index in _INDICES]
        self.reaches = [distance(f"reach_{index}") for index in _INDICES]
        """Absolute strides of the result, and their products with the last indices."""
        self.is_shared = Signal()
        """High if results share a place; valid if the result's span is in the stack."""
        self.plane = Signal(jobs.checked["first"].shape, name="plane")
        """Rows times columns."""
        self.results = Signal(_BITS, name="results")
        self.products = Signal(_BITS, name="products")
        """Products of all results; an elementwise work has one per result."""
        self.taps = Signal(32, name="taps")
        """Elements of a reduction in a channel."""
        self.chunk_taps = Signal(48, name="chunk_taps")
        """Taps of the plan's channels in a chunk."""
        self.image_start = distance("image_start")
        """Address of the first output's window."""
        self.steps = {name: distance(f"step_{name}") for name in ("outer1", "vector")}
        self.steps |= {name: distance(f"step_{name}") for name in ("row", "column")}
        """Strides of an image from output to output, and from tap to tap."""
        self.line_wraps = {name: distance(f"{name}_line_wrap") for name in ("first", "result")}
        """Distance from the end of a row to the begin of the next one.

        A row is one of outputs, or of SUM's or DOT's columns.
        """

        lists = self._lists(m, words)
        multiplier = SharedMultiplier(m, width=_BITS, lists=lists)
        compares, pair = Signal(), Signal(range(len(_INDICES) ** 2))
        with m.FSM(name="amounts"):
            with m.State("IDLE"), m.If(self.start):
                m.d.comb += multiplier.start["spans"].eq(1)
                m.next = "spans"
            for name, following in pairwise([*lists, "COMPARE"]):
                with m.State(name), m.If(multiplier.done):
                    m.next = following
                    if following in lists:
                        m.d.comb += multiplier.start[following].eq(1)
                    if name == "spans":
                        m.d.sync += compares.eq(1)
            with m.State("COMPARE"), m.If(~compares):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"
        with m.If(self.start):
            m.d.sync += [self.is_shared.eq(0), pair.eq(0)]
        with m.If(compares):
            self._compare(m, pair)
            m.d.sync += [pair.eq(pair + 1), compares.eq(~pair.all())]

    def _lasts(self, m: Any, words: Words) -> dict[str, list[Signal]]:
        lasts = {
            tensor: [Signal(24, name=f"{tensor}_last_{index}") for index in _INDICES]
            for tensor in TENSORS
        }
        with m.Switch(words.field("opcode")):
            for opcode, form in FORMS.items():
                with m.Case(opcode):
                    for tensor, sizes in form.tensors.items():
                        for size, last in zip(sizes, lasts[tensor], strict=False):
                            m.d.comb += last.eq(words.field(size) - 1)
        return lasts

    def _magnitude(self, m: Any, words: Words, index: int) -> Any:
        stride = words.stride("result", index)
        return wire(m, Mux(stride < 0, -stride, stride)[:32], f"magnitude_{index}")

    def _lists(self, m: Any, words: Words) -> dict[str, list[Sum]]:
        def step(tensor: str, index: int) -> Any:
            """Return a stride, sign-extended."""
            stride = words.stride(tensor, index)
            return Cat(stride, stride[-1].replicate(_BITS - 32))

        def size(name: str) -> Any:
            """Return a size, or 1 if the opcode does not have it."""
            value = words.field(name)
            return (value | (value == 0))[:24]

        def reached(tensor: str, *, up: bool) -> list[tuple[Any, Any]]:
            return [
                (step(tensor, index), Mux(words.stride(tensor, index)[-1] ^ up, last, 0))
                for index, last in enumerate(self.lasts[tensor])
            ]

        # Taps of a channel along its longer index; unused sizes are zero.
        longer = wire(m, (words.field("length") | words.field("filter_height"))[:24], "longer")
        # Strides of a row and of a column, and the last column; of a convolution or of sums.
        in_image = wire(m, words.field("opcode") == Opcode.CONV2D, "in_image")
        columns = wire(m, Mux(in_image, *(self.lasts["result"][i] for i in (3, 2))), "columns_last")
        result_row = wire(m, Mux(in_image, step("result", 2), step("result", 1)), "result_row")
        result_column = wire(
            m, Mux(in_image, step("result", 3), step("result", 2)), "result_column"
        )
        first_row = wire(m, Mux(in_image, self.steps["outer1"], step("a", 1)), "first_row")
        first_column = wire(m, Mux(in_image, self.steps["vector"], step("a", 2)), "first_column")
        images, results, channels, rows = (
            Signal(_BITS, name=f"counted_{name}") for name in ("images", "results", "channels", "r")
        )
        m.d.comb += self.results.eq(results)
        stride, dilation, top, left = (
            words.field(name)[:16] for name in ("stride", "dilation", "pad_top", "pad_left")
        )
        down, right = step("a", 2), step("a", 3)
        return {
            "spans": [
                *(
                    Sum(end, words.element(tensor), reached(tensor, up=up))
                    for up, ends in ((False, self.low), (True, self.high))
                    for tensor, end in ends.items()
                ),
                *(
                    Sum(reach, 0, [(magnitude, last)])
                    for reach, magnitude, last in zip(
                        self.reaches, self.magnitudes, self.lasts["result"], strict=True
                    )
                ),
                Sum(self.steps["outer1"], 0, [(down, stride)]),
                Sum(self.steps["vector"], 0, [(right, stride)]),
                Sum(self.steps["row"], 0, [(down, dilation)]),
                # For DOT: the extent of a row of b.
                Sum(
                    self.steps["column"],
                    0,
                    [(Mux(in_image, right, step("b", 2)), Mux(in_image, dilation, columns))],
                ),
                Sum(self.image_start, words.element("a"), [(down, top), (right, left)], True),
                Sum(self.taps, 0, [(longer, size("filter_width"))]),
                Sum(self.plane, 0, [(words.field("rows"), size("columns"))]),
            ],
            "images": [
                Sum(images, 0, [(self.plane, size("images"))]),
                Sum(self.line_wraps["first"], first_row, [(first_column, columns)], True),
                Sum(self.line_wraps["result"], result_row, [(result_column, columns)], True),
                Sum(self.chunk_taps, 0, [(self.taps, words.plan.channels)]),
            ],
            "results": [Sum(results, 0, [(images, size("filters"))])],
            "channels": [Sum(channels, 0, [(results, size("channels"))])],
            "rows": [Sum(rows, 0, [(channels, size("filter_width"))])],
            "products": [Sum(self.products, 0, [(rows, (longer | (longer == 0))[:24])])],
        }

    def _compare(self, m: Any, pair: Any) -> None:
        """Check that each stride is greater than the sum of the reaches of the smaller strides.

        Strides need not be sorted: equal strides count as smaller, so two equal used ones both
        fail.
        """
        bits = max(len(self.reaches[0]), 32)
        below, total = Signal(bits), Signal(bits)
        one, other = pair[2:], pair[:2]

        magnitude = wire(m, Array(self.magnitudes)[one], "magnitude")
        counts = (one != other) & (Array(self.magnitudes)[other] <= magnitude)
        reach = wire(m, Array(self.reaches)[other], "reach")
        last = wire(m, Array(self.lasts["result"])[one], "last")
        m.d.comb += total.eq(Mux(other == 0, 0, below) + Mux(counts, reach, 0))
        m.d.sync += below.eq(total)
        with m.If(other.all() & (last != 0) & (total >= magnitude)):
            m.d.sync += self.is_shared.eq(1)
