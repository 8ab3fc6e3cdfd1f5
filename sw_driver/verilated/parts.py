"""Builds an assembly, a Verilated model for each of its components, as a shared library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sw_driver.buildcache import verilator_env
from sw_driver.compiler import COMPILER

from .library import C_FLAGS, HARNESS_HEADERS, LINK, OPT_FAST, OPT_SLOW, cached_library, model_args
from .runtime import run_tool, runtime_library

if TYPE_CHECKING:
    from hw.assembly import Assembly

__all__ = ["parts_library"]

_HEADER = """\
// The parts of the design, and what connects them. Generated.
#include <cstring>

#include <verilated.h>

{includes}

// Evaluates a part, without what Verilator's own function does for threads.
{evaluate}

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

    // The parts are shared out evenly between two threads.
    template <unsigned kShare, typename Do> void each_of_share(Do&& act) {{
        if constexpr (kShare == 0) {{
            {each_0}
        }} else {{
            {each_1}
        }}
    }}

{each_of}
    // Moves values from outputs to the inputs of a share.
    template <unsigned kShare> void connect_share() {{
        if constexpr (kShare == 0) {{
            {copies_0}
        }} else {{
            {copies_1}
        }}
    }}

    void connect() {{
        connect_share<0>();
        connect_share<1>();
    }}

    // Whether they are still the same.
    bool connected() const {{
        return {comparisons};
    }}

private:
    template <typename Port> static bool same(const Port& one, const Port& other) {{
        return std::memcmp(&one, &other, sizeof one) == 0;
    }}
}};
"""

_EVALUATE = """\
void V{module}___024root___eval(V{module}___024root*);
inline void evaluate(V{module}& part) {{ V{module}___024root___eval(part.rootp); }}
"""

_EACH_OF = """\
    template <typename Do> void each_{module}(Do&& act) {{
        {each}
    }}
"""


def parts_library(
    design: Callable[[], Assembly],
    *,
    name: str,
    parameters: Sequence[str],
    harness: Path,
    unused: Sequence[str] = (),
    announce: Callable[[str], None] | None = None,
) -> Path:
    """The shared library of an assembly, built unless one of the same sources is there.

    The harness includes ``parts.h``, with a structure ``Parts``: it has a member for each instance,
    its Verilated model, and the functions ``each``, ``each_MODULE``, ``connect`` and ``connected``;
    beside it is the function ``evaluate``.

    Parameters
    ----------
    design: makes the assembly.
    name: of the library.
    parameters: everything beside the sources in ``hw`` on which the assembly depends.
    harness: the source that drives the models.
    unused: packages in ``hw`` without which the assembly can be made.
    announce: told when a build begins.

    Raises
    ------
    BuildError: a tool failed.
    """

    def build(folder: Path) -> None:
        # Amaranth is only needed, and only takes its time to load, when there is a build.
        from hw.verilog import to_verilog

        if announce is not None:
            announce("building the simulator (first run with these settings; some minutes)")
        assembly = design()
        models = [folder / module for module in assembly.components]
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            builds, sizes = [], dict[str, int]()
            for model, component in zip(models, assembly.components.values(), strict=True):
                model.mkdir()
                verilog = model / f"{model.name}.v"
                verilog.write_text(to_verilog(component, model.name))
                sizes[model.name] = verilog.stat().st_size
                builds.append(workers.submit(_build_model, model.name, model))
            for each in builds:
                each.result()
        (folder / "parts.h").write_text(_header(assembly, sizes))
        _link(name, harness, models, folder)
        for model in models:
            shutil.rmtree(model)

    return cached_library(
        build,
        name=name,
        sources=[harness, Path(__file__), *HARNESS_HEADERS],
        unused=unused,
        parameters=[*parameters, *model_args(name), LINK, OPT_FAST, OPT_SLOW],
    )


def _includes(folder: Path) -> list[str]:
    include = Path(verilator_env()["VERILATOR_ROOT"]) / "include"
    return [f"-I{path}" for path in (folder, include, include / "vltstd")]


def _build_model(module: str, folder: Path) -> None:
    """Verilates and compiles the model of ``module``, whose Verilog is in ``folder``."""
    run_tool(["verilator", *model_args(module), "-Mdir", ".", f"{module}.v"], folder)
    # Not by Verilator's makefile, which compiles each file by itself and the headers beforehand:
    # that takes longer, and 140 MB.
    sources = sorted(path.name for path in folder.glob("*.cpp"))
    for name, optimization in (("fast", OPT_FAST), ("slow", OPT_SLOW)):
        chosen = [source for source in sources if ("Slow" in source) == (name == "slow")]
        unit = folder / f"{name}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in chosen))
        compiler = [COMPILER, optimization, *C_FLAGS.split(), *_includes(folder)]
        run_tool([*compiler, "-c", unit.name], folder)


def _link(name: str, harness: Path, models: Sequence[Path], folder: Path) -> None:
    """The library in ``folder``, of the harness and the models that are built in their folders."""
    run_tool(
        [
            *(COMPILER, OPT_FAST, *C_FLAGS.split(), *LINK.split(), *_includes(folder)),
            *(f"-I{path}" for path in (*models, Path(__file__).parent)),
            str(harness),
            *(str(path) for model in models for path in sorted(model.glob("*.o"))),
            str(runtime_library()),
            *("-o", f"lib{name}.so"),
        ],
        folder,
    )


def _shares(weights: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The names in two shares of about the same weight."""
    shares: tuple[list[str], list[str]] = ([], [])
    sums = [0, 0]
    for name in sorted(weights, key=lambda name: -weights[name]):
        lighter = sums.index(min(sums))
        shares[lighter].append(name)
        sums[lighter] += weights[name]
    return shares


def _header(assembly: Assembly, sizes: Mapping[str, int]) -> str:
    """``sizes``: of each module's Verilog, which say about how long its evaluation takes."""
    instances = assembly.instances
    wires = [(".".join(wire.target), ".".join(wire.source)) for wire in assembly.wires]
    shares = _shares({name: sizes[module] for name, module in instances.items()})

    def each(names: Sequence[str]) -> str:
        return "\n            ".join(f"act({name});" for name in names)

    def copies(names: Sequence[str]) -> str:
        return "\n            ".join(
            f"{'.'.join(wire.target)} = {'.'.join(wire.source)};"
            for wire in assembly.wires
            if wire.target[0] in names
        )

    return _HEADER.format(
        includes="\n".join(f'#include "V{module}.h"' for module in assembly.components),
        evaluate="".join(_EVALUATE.format(module=module) for module in assembly.components),
        constructors=", ".join(f'{name}(context, "{name}")' for name in instances),
        members="\n    ".join(f"V{module} {name};" for name, module in instances.items()),
        count=len(instances),
        each_0=each(shares[0]),
        each_1=each(shares[1]),
        copies_0=copies(shares[0]),
        copies_1=copies(shares[1]),
        each_of="\n".join(
            _EACH_OF.format(
                module=module, each=each([name for name in instances if instances[name] == module])
            )
            for module in assembly.components
        ),
        comparisons=" &&\n               ".join(
            f"same({target}, {source})" for target, source in wires
        ),
    )
