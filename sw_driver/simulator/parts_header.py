"""The header with the parts of an assembly: their evaluation, and what moves between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .runtime import BuildError

if TYPE_CHECKING:
    from hw.sim.assembly import Assembly

__all__ = ["EVALUATION_ARGS", "parts_header"]

EVALUATION_ARGS = ["--inline-cfuncs", "0", "--inline-cfuncs-product", "0"]
"""Verilator's arguments for a model whose evaluation is nothing but calls of functions."""

_HEADER = """\
// The parts of the design, and what connects them. Generated.
#include <cstring>
#include <type_traits>

#include <verilated.h>

{includes}

// Each of these brings a part to what it is after a change of its clock, and returns the triggers
// that the change has raised. What has one of the triggers `left_out` is not evaluated.

{evaluations}
// The falling edge of a part's clock, at which it takes its inputs. Returns what `rise` is given.
template <typename Part> uint64_t fall(Part& part) {{
    part.clk = 0;
    return evaluate(part, 0);
}}

// The rising edge. What depends on an input will be evaluated when the clock falls, and is not
// needed before.
template <typename Part> void rise(Part& part, uint64_t fell) {{
    part.clk = 1;
    evaluate(part, fell);
}}

template <typename Port> using Value = std::remove_reference_t<Port>;

struct Parts {{
    explicit Parts(VerilatedContext* context)
        : {constructors} {{
        each([](auto& part) {{
            part.clk = 1;
            part.eval();
        }});
    }}

    {members}

    static constexpr unsigned kCount = {count};

    template <typename Do> void each(Do&& act) {{
        each_of_share<0>(act);
        each_of_share<1>(act);
    }}

{each_of}
    // Moves values from outputs to inputs.
    void connect() {{
        {connect}
    }}

    // Whether they are still the same.
    bool connected() const {{
        return {comparisons};
    }}

    // Calls for each output that is connected to nothing.
    template <typename Do> void each_free_output(Do&& act) {{
        {each_free}
    }}

    // The parts are shared out evenly between two threads. Neither touches the other one's parts:
    // what goes from share to share is handed over, in one of two turns.
    template <unsigned kShare, typename Do> void each_of_share(Do&& act) {{
        if constexpr (kShare == 0) {{
            {each_0}
        }} else {{
            {each_1}
        }}
    }}

    // Moves values to the inputs of a share.
    template <unsigned kShare> void connect_share(unsigned turn) {{
        if constexpr (kShare == 0) {{
            const auto& other = from_1_[turn];
            {connect_0}
        }} else {{
            const auto& other = from_0_[turn];
            {connect_1}
        }}
    }}

    // Takes values from the outputs of a share, for the inputs of the other one.
    template <unsigned kShare> void hand_over(unsigned turn) {{
        if constexpr (kShare == 0) {{
            auto& own = from_0_[turn];
            {hand_over_0}
        }} else {{
            auto& own = from_1_[turn];
            {hand_over_1}
        }}
    }}

private:
    template <typename Port> static bool same(const Port& one, const Port& other) {{
        return std::memcmp(&one, &other, sizeof one) == 0;
    }}

    struct alignas(64) From0 {{
        {fields_0}
    }};

    struct alignas(64) From1 {{
        {fields_1}
    }};

    From0 from_0_[2];
    From1 from_1_[2];
}};
"""

_EACH_OF = """\
    template <typename Do> void each_{module}(Do&& act) {{
        {each}
    }}
"""

_EVALUATE = """\
{declarations}

inline uint64_t evaluate(V{module}& part, uint64_t left_out) {{
    auto* const root = part.rootp;
    {begin}
    const uint64_t raised = root->__VnbaTriggered[0U];
    {steps}
    root->__VnbaTriggered[0U] = 0;
    return raised;
}}
"""

_GROUP = re.compile(
    r" {4}if \(\((\w+) & vlSelfRef\.__VnbaTriggered\[0U\]\)\) {\n((?: {8}\w+\(vlSelf\);\n)+) {4}}\n"
)
_CALL = re.compile(r"(\w+)\(vlSelf\);")


def parts_header(assembly: Assembly, weights: Mapping[str, int], folder: Path) -> str:
    """The structure ``Parts`` and the functions ``fall`` and ``rise``, the edges of a part's clock.

    Parameters
    ----------
    assembly: the parts.
    weights: of each module; they say about how long its evaluation takes.
    folder: where Verilator's models are, in a folder for each module.

    Raises
    ------
    BuildError: Verilator's code is not what is expected of this version.
    """
    instances = assembly.instances
    shares = _shares({name: weights[module] for name, module in instances.items()})
    share_of = {name: number for number, names in enumerate(shares) for name in names}

    def each(names: Iterable[str], spaces: int = 12) -> str:
        return _lines((f"act({name});" for name in names), spaces)

    connect, comparisons = list[str](), list[str]()
    of_share: tuple[list[str], list[str]] = ([], [])
    # From a share to the other one: a number for each output.
    handed: tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]] = ({}, {})
    for wire in assembly.wires:
        target, source = ".".join(wire.target), ".".join(wire.source)
        connect.append(f"{target} = {source};")
        comparisons.append(f"same({target}, {source})")
        begin, end = share_of[wire.source[0]], share_of[wire.target[0]]
        if begin == end:
            of_share[end].append(connect[-1])
            continue
        number = handed[begin].setdefault(wire.source, len(handed[begin]))
        of_share[end].append(f"{target} = other.value_{number};")

    def fields(share: int) -> str:
        ports = (f"V{instances[name]}::{port}" for name, port in handed[share])
        each = (f"Value<decltype({port})> value_{number};" for number, port in enumerate(ports))
        return _lines(each, 8)

    def hand_over(share: int) -> str:
        sources = enumerate(map(".".join, handed[share]))
        return _lines((f"own.value_{number} = {source};" for number, source in sources), 12)

    return _HEADER.format(
        includes=_lines(
            (
                f'#include "V{module}{part}.h"'
                for module in assembly.components
                for part in ("", "___024root")
            ),
            0,
        ),
        evaluations="\n".join(_evaluate(each, folder / each) for each in assembly.components),
        constructors=", ".join(f'{name}(context, "{name}")' for name in instances),
        members=_lines((f"V{module} {name};" for name, module in instances.items()), 4),
        count=len(instances),
        each_of="\n".join(
            _EACH_OF.format(
                module=module,
                each=each((name for name in instances if instances[name] == module), 8),
            )
            for module in assembly.components
        ),
        connect=_lines(connect, 8),
        each_free=each((".".join(port) for port in assembly.free_outputs()), 8),
        comparisons=" &&\n               ".join(comparisons),
        **{f"each_{share}": each(names) for share, names in enumerate(shares)},
        **{f"connect_{share}": _lines(copies, 12) for share, copies in enumerate(of_share)},
        **{f"hand_over_{share}": hand_over(share) for share in range(2)},
        **{f"fields_{share}": fields(share) for share in range(2)},
    )


def _lines(lines: Iterable[str], spaces: int) -> str:
    return f"\n{' ' * spaces}".join(lines)


def _shares(weights: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The names in two shares of about the same weight."""
    shares: tuple[list[str], list[str]] = ([], [])
    sums = [0, 0]
    for name in sorted(weights, key=lambda name: -weights[name]):
        lighter = sums.index(min(sums))
        shares[lighter].append(name)
        sums[lighter] += weights[name]
    return shares


def _evaluate(module: str, folder: Path) -> str:
    """A function that does what Verilator's own does at an edge of the clock.

    That one also keeps account of threads, looks again whether what it has done raised a trigger,
    which does not happen here, and has no way to leave something out.
    """
    root = f"V{module}___024root"
    text = "".join(path.read_text() for path in sorted(folder.glob(f"{root}__*.cpp")))

    def body(function: str) -> str:
        begin = rf"^void {root}___{function}\({root}\* vlSelf\) {{.*?// Body\n"
        found = re.search(rf"{begin}(.*?)^}}", text, re.DOTALL | re.MULTILINE)
        if not found:
            raise BuildError(f"Verilator's model of {module} has no function {function}")
        return found[1]

    def refuse(what: object) -> None:
        raise BuildError(f"in Verilator's model of {module} this is not expected: {what}")

    phases = re.findall(r"(\w+___eval_phase__\w+)\(vlSelf\)", body("eval"))
    inputs, triggers, functions = (f"{root}___eval_phase__{name}" for name in ("ico", "act", "nba"))
    if phases not in ([triggers, functions], [inputs, triggers, functions]):
        refuse(phases)
    calls = [f"while ({triggers}(root)) {{}}"]
    if inputs in phases:
        first = "root->__VicoFirstIteration"
        calls = [f"{first} = 1;", f"while ({inputs}(root)) {first} = 0;", *calls]
    rest, steps = body("eval_nba"), list[tuple[str, str]]()
    while group := _GROUP.match(rest):
        rest = rest[group.end() :]
        steps += [(group[1], function) for function in _CALL.findall(group[2])]
    if rest:
        refuse(repr(rest[:200]))
    return _EVALUATE.format(
        module=module,
        declarations=_lines(
            [
                *(f"bool {phase}({root}*);" for phase in phases[:-1]),
                *(f"void {function}({root}*);" for _, function in steps),
            ],
            0,
        ),
        begin=_lines(calls, 4),
        steps=_lines(
            (
                f"if (raised & {of} && !(left_out & {of})) {function}(root);"
                for of, function in steps
            ),
            4,
        ),
    )
