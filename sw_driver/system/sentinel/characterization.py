"""The paper's figures of section 3: what is in a step, how long it lives and how often it is
accessed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from sw_driver.machine.sentinel import SENTINEL as MACHINE
from sw_driver.workload.networks import SENTINEL as NETWORKS
from sw_driver.workload.summary import peak_bytes
from sw_driver.workload.trace import LASTING, Tensor, load_trace

from ..once import once
from ..plotting import draw_bars
from ..reproduction import Changes, Experiment, Progress, predicted
from .apart import taken_apart
from .pages import ACCESSES, PAGE_BYTES, class_of, in_pages, original, packed, peak_in_pages
from .profiling import profile_of

__all__ = ["figure1", "figure2", "figure3", "figure4", "table1"]

LIVES = ("1 layer", "2 to 16", "17 or more", "outlives the step")
_LONGEST = (1, 16)
LINES, TIMES = ([f"{each} {unit}" for each in ACCESSES] for unit in ("lines", "times"))
_FEW, _, _HOT = TIMES
_HALF = (50, inf)
"""In %: what the paper says of most is said of more than half."""

_OBJECTS = (
    "PyTorch does in one operation what TensorFlow 1.14 does in several, each with objects of its "
    "own; and most of the paper's are shapes and numbers (Table 1), which are no tensors here, "
    "taken apart or not."
)
_ACCESSES = (
    "An object is accessed in so many *lines* past the cache, or so many *times*, if these are "
    "taken over the lines that it has: an operation reads it once. The paper counts faults of "
    "pages, and does not say what is one of an object of many."
)
_BYTES = (
    "In lines, 907 MB would be 14 million accesses at least, and what is accessed in up to ten has "
    "at most 640 bytes. In times, nothing is hot here: the 4 MB may be parameters and momenta "
    "(3.7 MB here), if a convolution reads them for each of 128 images. And 907 MB as 54 % of the "
    "pages makes 1,680 MB of them, 4 MB as 0.2 % makes 2,000, and Table 1 has 1,570."
)
_PAGES = (
    "A page is accessed as often as all that is in it in the step, at once or in turn, and *shared "
    "falsely* if that is another class than of an object in it; *packed* are those that still are "
    "when objects are packed. *Needed apart* are pages with objects at the same time that are "
    "accessed in other layers, of which a migration moves one needlessly: packed, there are none. "
    "That objects of few accesses take more than pages of few is no evidence that objects share a "
    "page, as the paper has it: an allocator gives the same page to one after the other."
)
_SUMS = (
    "92 % of objects live in one layer, so these are sums over a step: 152 MB in pages of 4 KB are "
    "37,109 small objects, each of 12 bytes (0.45 MB), 95 for each of 391 operations here. What "
    "profiling takes more, 400 MB, is these and less than 4 KB for each of the others, which then "
    "are more than 60,000. By Table 5 it takes 2.1 % more at most, not 25.5, and 6,144 MB at once, "
    "which objects of 1,570 cannot."
)


@dataclass(frozen=True, kw_only=True)
class _Step:
    network: str
    apart: bool
    cache_bytes: int

    def __str__(self) -> str:
        return f"profile of {self.network}{', taken apart' * self.apart}"


@once
def _columns(step: _Step) -> Mapping[str, float]:
    """All that tables have of a step."""
    trace = load_trace(step.network)
    profile = profile_of(taken_apart(trace) if step.apart else trace, step.cache_bytes)
    lives: dict[str, list[Tensor]] = {each: [] for each in LIVES}
    lines: dict[str, list[Tensor]] = {each: [] for each in LINES}
    times: dict[str, list[Tensor]] = {each: [] for each in TIMES}
    for each in profile.step.tensors:
        life = bisect_left(_LONGEST, len(profile.lifetime[each.id]))
        lives[LIVES[-1 if each.kind in LASTING else life]].append(each)
        lines[LINES[class_of(sum(profile.lines[each.id].values()))]].append(each)
        times[TIMES[class_of(profile.accesses[each.id])]].append(each)
    before, after = original(profile.step), packed(profile)
    (pages, shared), (_, shared_after) = before.classes(profile), after.classes(profile)
    mb = PAGE_BYTES / 1e6
    found = {
        "layers": len(profile.visits),
        "objects": len(profile.step.tensors),
        "small of 1 layer, %": _share(_small(lives[LIVES[0]]), lives[LIVES[0]]),
        f"small of {LINES[0]}, %": _share(_small(lines[LINES[0]]), lines[LINES[0]]),
        "shared falsely, MB": shared * mb,
        "packed, MB": shared_after * mb,
        "needed apart, MB": before.needed_apart(profile) * mb,
        "at once, MB": peak_bytes(profile.step) / 1e6,
        "at once, one a page, MB": peak_in_pages(profile.step) / 1e6,
    }
    for name, group in (("all", profile.step.tensors), ("small", _small(profile.step.tensors))):
        found[f"{name}, MB"] = _nbytes(group) / 1e6
        found[f"{name}, one a page, MB"] = sum(in_pages(each.nbytes) for each in group) / 1e6
    for name, group in (lives | lines | times).items():
        found[f"{name}, %"] = _share(group, profile.step.tensors)
        found[f"{name}, MB"] = _nbytes(group) / 1e6
        found[f"{name}, small, %"] = _share(_small(group), _small(profile.step.tensors))
        found[f"{name}, small, KB"] = _nbytes(_small(group)) / 1e3
    for name, count in zip(TIMES, pages, strict=True):
        found[f"{name}, pages, MB"] = count * mb
    found[f"objects over pages, {_FEW}"] = found[f"{_FEW}, MB"] / found[f"{_FEW}, pages, MB"]
    return found


def _small(group: Sequence[Tensor]) -> list[Tensor]:
    return [each for each in group if each.nbytes < PAGE_BYTES]


def _nbytes(group: Sequence[Tensor]) -> int:
    return sum(each.nbytes for each in group)


def _share(part: Sequence[Tensor], whole: Sequence[Tensor]) -> float:
    return 100 * len(part) / len(whole) if whole else 0


def figure1(changes: Changes, progress: Progress) -> Experiment:
    """In how many layers objects live."""
    short, small = f"{LIVES[0]}, %", "small of 1 layer, %"
    sizes = {unit: [f"{each}, {unit}" for each in LIVES] for unit in ("%", "MB")}
    return _experiment(
        _found(changes, progress),
        "Figure 1: how long objects live",
        ["layers", "objects", *sizes["%"], *sizes["MB"], small],
        {"layers": (64, 0), short: (92, _HALF), small: (98, _HALF)},
        {short: 92, small: 98},
        _OBJECTS,
        notes=["The paper's words are judged, that most are so, and not how many."],
        panels=sizes,
    )


def figure2(changes: Changes, progress: Progress) -> Experiment:
    """How often objects are accessed."""
    shares, sizes = [f"{each}, %" for each in LINES], [f"{each}, MB" for each in TIMES]
    return _experiment(
        _found(changes, progress),
        "Figure 2: how often objects are accessed",
        [*shares, *(f"{each}, MB" for each in LINES), *sizes],
        {shares[0]: (52.3, 0.25)},
        {sizes[0]: 907, sizes[-1]: 4},
        _BYTES,
        notes=[_ACCESSES],
        panels={"%": shares, "MB": sizes},
    )


def figure3(changes: Changes, progress: Progress) -> Experiment:
    """How often small objects are accessed."""
    sizes = {unit: [f"{each}, small, {unit}" for each in LINES] for unit in ("%", "KB")}
    small = f"small of {LINES[0]}, %"
    return _experiment(
        _found(changes, progress),
        "Figure 3: how often objects of less than 4 KB are accessed",
        [*sizes["%"], *sizes["KB"], small],
        {},
        {small: 98, sizes["KB"][0]: 3900},
        "An object of 4 KB has 64 lines, so all of up to ten are small; and Table 1 has 0.45 MB of "
        f"small ones. {_OBJECTS}",
        panels=sizes,
    )


def figure4(changes: Changes, progress: Progress) -> Experiment:
    """How often pages are accessed, as an allocator gives them, and packed."""
    sizes = [f"{each}, {of}" for of in ("MB", "small, KB", "pages, MB") for each in TIMES]
    shared = ["shared falsely, MB", "packed, MB", "needed apart, MB"]
    ratio = f"objects over pages, {_FEW}"
    return _experiment(
        _found(changes, progress),
        "Figure 4: how often pages are accessed",
        [*sizes, ratio, *shared],
        {},
        {f"{_FEW}, pages, MB": 763, ratio: 907 / 763},
        "It depends on an allocator that is not known, and on how accesses are counted (Figure 2).",
        notes=[_PAGES],
        panels={"MB": [f"{each}, {of}" for of in ("MB", "pages, MB") for each in TIMES]},
    )


def table1(changes: Changes, progress: Progress) -> Experiment:
    """Memory of all objects, and with one object a page, as in the profiled step."""
    paper = {"all, one a page, MB": 1970, "small, MB": 0.45, "small, one a page, MB": 152}
    return _experiment(
        _found(changes, progress),
        "Table 1: memory when each object has pages of its own",
        ["all, MB", *paper, "at once, MB", "at once, one a page, MB"],
        {"all, MB": (1570, 0.25)},
        paper,
        f"{_SUMS} {_OBJECTS}",
        panels={"MB": ["all, MB", "at once, MB"]},
    )


def _found(changes: Changes, progress: Progress) -> dict[tuple[str, str], Mapping[str, float]]:
    """Columns of the five networks, with their operations as captured, and taken apart."""
    cache = MACHINE.override(changes).device("cpu").cache_bytes
    nbytes = int(cache.value) if cache else 0
    return {
        (network, how): _columns(
            _Step(network=network, apart=how == "apart", cache_bytes=nbytes), progress
        )
        for network in NETWORKS
        for how in ("captured", "apart")
    }


def _experiment(
    found: Mapping[tuple[str, str], Mapping[str, float]],
    title: str,
    columns: Sequence[str],
    judged: Mapping[str, tuple[float, float | tuple[float, float]]],
    others: Mapping[str, float],
    why: str,
    *,
    notes: Sequence[str] = (),
    panels: Mapping[str, Sequence[str]],
) -> Experiment:
    """With the paper's figures of ResNet-32 by columns: those that are judged, taken apart, by
    their bands, and others, as captured, that are not, and why."""
    section = f"3.2, {title.partition(':')[0]}"
    captured, apart = found["resnet32", "captured"], found["resnet32", "apart"]
    rows = [
        {
            "network": network,
            "operations": how,
            **{each: predicted(of[each], digits=_digits(of[each])) for each in columns},
        }
        for (network, how), of in found.items()
    ]
    return Experiment(
        title=title,
        rows=rows,
        quoted={
            **{
                f"{name}, taken apart": predicted(apart[name], value, band=band, section=section)
                for name, (value, band) in judged.items()
            },
            **{
                f"{name}, captured": predicted(captured[name], value, excluded=why, section=section)
                for name, value in others.items()
            },
        },
        notes=notes,
        draw=partial(draw_bars, rows, panels),
    )


def _digits(number: float) -> int:
    return 0 if type(number) is int else 1 if number >= 1 else 2
