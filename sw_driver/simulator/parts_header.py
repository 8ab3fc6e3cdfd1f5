"""C++ header with the parts of an assembly and their connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hw.sim.assembly import Assembly

__all__ = ["parts_header"]

_HEADER = """\
// The parts of the design, and what connects them. Generated.
#include <cstring>
#include <type_traits>

#include <verilated.h>

{includes}

// An edge of a part's clock. At the falling one it takes its inputs.
template <typename Part> void edge(Part& part, bool clock) {{
    part.clk = clock;
    part.eval();
}}
{faster}
template <typename Port> using Value = std::remove_reference_t<Port>;

struct Parts {{
    explicit Parts(VerilatedContext* context)
        : {constructors} {{
        each([](auto& part) {{ edge(part, true); }});
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

_FASTER = """
// Its cores' clock rises with its own, and in between.
inline void edge(V{module}& part, bool clock) {{
    part.clk = part.core_clk = clock;
    part.eval();
    for (unsigned more = clock ? 0 : {ratio} - 1; more != 0; --more) {{
        for (const bool core_clock : {{true, false}}) {{
            part.core_clk = core_clock;
            part.eval();
        }}
    }}
}}
"""

_EACH_OF = """\
    template <typename Do> void each_{module}(Do&& act) {{
        {each}
    }}
"""


def parts_header(assembly: Assembly, weights: Mapping[str, int]) -> str:
    """Return the header with an assembly's structure ``Parts`` and the clock edges of a part.

    ``weights`` are relative evaluation times by module.
    """
    instances = assembly.instances
    shares = _shares({name: weights[module] for name, module in instances.items()})
    share_of = {name: number for number, names in enumerate(shares) for name in names}

    def each(names: Iterable[str], spaces: int = 12) -> str:
        return _lines((f"act({name});" for name in names), spaces)

    connect, comparisons = list[str](), list[str]()
    of_share: tuple[list[str], list[str]] = ([], [])
    # Outputs handed from each share to the other one, numbered.
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
        values = (f"Value<decltype({port})> value_{number};" for number, port in enumerate(ports))
        return _lines(values, 8)

    def hand_over(share: int) -> str:
        sources = enumerate(map(".".join, handed[share]))
        return _lines((f"own.value_{number} = {source};" for number, source in sources), 12)

    return _HEADER.format(
        includes=_lines((f'#include "V{module}.h"' for module in assembly.components), 0),
        faster="".join(
            _FASTER.format(module=module, ratio=ratio)
            for module, ratio in assembly.core_clock_ratios.items()
        ),
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
    """Divide the names into two shares of about the same weight."""
    shares: tuple[list[str], list[str]] = ([], [])
    sums = [0, 0]
    for name in sorted(weights, key=lambda name: -weights[name]):
        lighter = sums.index(min(sums))
        shares[lighter].append(name)
        sums[lighter] += weights[name]
    return shares
