"""Workloads by the text that a user gives: a network, a trace file, or a user's function.

A shipped network and a file need no PyTorch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from sw_driver.numbers import check_integer, check_name

from .batches import batched
from .networks import CAPTURED, NETWORKS, DecoderConfig
from .trace import Trace, TraceError, load_trace, trace_names

__all__ = ["Build", "StepFunction", "load_workload", "need_torch", "with_step"]

R = TypeVar("R")

Build: TypeAlias = Callable[[], tuple[Any, tuple[Any, ...]]]
StepFunction: TypeAlias = Callable[..., Any]

_MODULE = "nearmem_workload"


def load_workload(
    workload: str, rule: str | None = None, *, batch: int | None = None, seq: int | None = None
) -> Trace:
    """Return the training step that ``workload`` names.

    Parameters
    ----------
    workload
        One of :func:`~sw_driver.workload.trace.trace_names`; one of
        :data:`~sw_driver.workload.networks.CAPTURED`; a file written by ``Trace.save``; or
        ``FILE.py:FUNCTION``. FILE is run as ``python FILE.py`` does, but not as ``__main__``.
        FUNCTION returns ``(model, batch, step)``. ``model`` is a module, and ``batch`` a tensor or
        a tuple of tensors. ``step(model, *batch)`` returns the loss, or None if it has called
        ``backward``. All of it runs on PyTorch's fake tensors, which have shapes but no contents.
        What it prints goes to standard error.
    rule
        Rule of :mod:`hw.rules` that updates a captured model; by default the network's own, and for
        a function the first of ``PAPER_RULES``.
    batch
        Samples of the batch. A trace is scaled by :func:`~sw_driver.workload.batches.batched`; a
        function takes it as an argument of this name.
    seq
        Tokens of a sample of a decoder; a function takes it as an argument of this name.

    Raises
    ------
    TraceError
        For a text of another form; for a rule or ``seq`` given with a trace, which has its own; for
        a ``batch`` or ``seq`` that the workload does not take; and for an error that keeps a step
        from being captured, with the user's line and the module.
    OSError
        For a file that cannot be read.
    """
    for name, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            check_integer(name, value, error=TraceError)
    if ".py:" in workload:
        return _captured(workload, rule, batch, seq)
    if workload.endswith(".py"):
        raise TraceError(
            f"the workload is {workload!r}, expected a function of it: {workload}:FUNCTION"
        )
    if workload in CAPTURED:
        return _captured_network(workload, rule, batch, seq)
    if not Path(workload).exists():
        forms = "a file of a trace", "FILE.py:FUNCTION"
        check_name("the workload", workload, [*trace_names(), *CAPTURED, *forms], TraceError)
    trace = load_trace(workload)
    if rule is not None:
        raise TraceError(
            f"the rule is {rule!r}, but {workload!r} is captured already, with "
            f"{trace.origin.get('rule')!r}: leave it out"
        )
    if seq is not None:
        raise TraceError(
            f"seq is {seq}, but {workload!r} is captured already: leave it out, or choose a "
            "decoder, such as gpt2-355m"
        )
    if batch is None:
        return trace
    if type(before := trace.origin.get("batch")) is not int:
        raise TraceError(
            f"batch is {batch}, but {workload!r} does not say how many samples it has: leave it "
            "out, or capture it again with batch in its origin"
        )
    try:
        return batched(trace, Fraction(batch, before))
    except TraceError as error:
        raise TraceError(
            f"batch is {batch}, but {workload!r} has {before} samples: {error}"
        ) from error


def with_step(
    workload: str,
    use: Callable[[Build, StepFunction], R],
    cannot: str = "captured",
    *,
    batch: int | None = None,
    seq: int | None = None,
) -> R:
    """Return ``use(build, step)`` for a network or a ``FILE.py:FUNCTION``.

    ``build`` makes model and batch, and ``step`` runs them; see :func:`load_workload`. ``cannot``
    completes the sentence of an error: "cannot be captured".

    Raises :class:`~sw_driver.workload.trace.TraceError` for another text, without PyTorch, and for
    an error in a function, with its line. Raises ``OSError`` for a file that cannot be read.
    """
    need_torch(workload, cannot)
    file, is_function, function = workload.partition(".py:")
    if not is_function:
        from .models import MODELS

        known = [*NETWORKS, *CAPTURED, "FILE.py:FUNCTION"]
        check_name("the network", workload, known, TraceError)
        config = _config(workload, batch=batch, seq=seq)
        _, make, step_of = MODELS[type(config)]
        return use(lambda: make(config), step_of)
    path = Path(f"{file}.py")
    code = path.read_bytes()
    steps: list[StepFunction] = []

    def build() -> tuple[Any, tuple[Any, ...]]:
        module = sys.modules[_MODULE] = ModuleType(_MODULE)
        module.__file__ = str(path)
        exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
        make = getattr(module, function, None)
        if not callable(make):
            raise ValueError(f"the file has no function {function!r}: define it, or give another")
        sizes = {"batch": batch, "seq": seq}
        sizes = {name: size for name, size in sizes.items() if size is not None}
        _check_takes(function, make, sizes)
        model, inputs, step = _parts(function, make(**sizes))
        steps.append(step)
        return model, inputs

    def step(*given: Any) -> Any:
        return _loss(steps[-1](*given))

    try:
        with chdir("."), _alone(path.parent), redirect_stdout(sys.stderr):
            return use(build, step)
    except (Exception, SystemExit) as error:
        raise TraceError(f"{workload} cannot be {cannot}: {_reason(error, path)}") from error


def _captured(workload: str, rule: str | None, batch: int | None, seq: int | None) -> Trace:
    from hw.rules import PAPER_RULES, RULES

    rule = PAPER_RULES[0] if rule is None else rule
    check_name("the rule", rule, RULES, TraceError)
    file, _, function = workload.partition(".py:")
    name = f"{Path(file).name}.{function}"
    sizes = {"batch": batch, "seq": seq}
    origin = {"model": f"{Path(file).name}.py:{function}"} | {
        size: value for size, value in sizes.items() if value is not None
    }

    def captured(build: Build, step: StepFunction) -> Trace:
        from .capture import capture

        return capture(build, step, name=name, rule=rule, origin=origin)

    return with_step(workload, captured, batch=batch, seq=seq)


def _captured_network(name: str, rule: str | None, batch: int | None, seq: int | None) -> Trace:
    from hw.rules import RULES

    config = _config(name, batch=batch, seq=seq, rule=rule)
    check_name("the rule", config.rule, RULES, TraceError)
    need_torch(name, "captured")
    from .capture import capture_config

    return capture_config(name, config)


def _config(name: str, *, seq: int | None, **fields: Any) -> Any:
    """Return a network's configuration with the changes that are not None."""
    config: Any = {**NETWORKS, **CAPTURED}[name]
    if seq is not None:
        if not isinstance(config, DecoderConfig):
            raise TraceError(
                f"seq is {seq}, but {name!r} is no decoder: leave it out, or choose one, such as "
                "gpt2-355m"
            )
        fields["context"] = seq
    return replace(config, **{field: value for field, value in fields.items() if value is not None})


def need_torch(workload: str, cannot: str) -> None:
    """Raise ``TraceError`` if PyTorch, without which a workload ``cannot`` be used, is missing."""
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        raise TraceError(
            f"PyTorch, without which {workload} cannot be {cannot}, is not installed: "
            "pip install -e '.[torch]'"
        ) from error


def _check_takes(function: str, make: Callable[..., Any], sizes: Mapping[str, int]) -> None:
    """Raise ``ValueError`` for a size that a user's function has no argument for."""
    if not sizes:
        return
    takes = signature(make).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in takes.values()):
        return
    for name, size in sizes.items():
        if name not in takes:
            raise ValueError(
                f"{name} is {size}, but {function}() takes no {name}: add the argument, or leave "
                "it out"
            )


def _parts(function: str, made: Any) -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    from torch import Tensor, nn

    parts = made if isinstance(made, tuple) else (made,)
    model, batch, step = parts if len(parts) == 3 else (None, None, None)
    batch = (batch,) if isinstance(batch, Tensor) else batch
    if isinstance(model, nn.Module) and isinstance(batch, tuple | list) and callable(step):
        return model, tuple(batch), step
    raise ValueError(
        f"{function}() returns {', '.join(type(part).__name__ for part in parts)}: expected "
        "(model, batch, step), a torch.nn.Module, a tensor or a tuple of them, and a function"
    )


def _loss(loss: Any) -> Any:
    from torch import Tensor

    if loss is None or (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        return loss
    raise ValueError(
        f"step returns {loss!r:.80}: expected the loss, a tensor of one number that depends on a "
        "parameter, or None if it has called backward"
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Import modules of ``folder`` within this context, and forget them afterwards.

    Restore PyTorch's default data type, too. Meanwhile PyTorch does not log errors, since it raises
    them anyway.
    """
    from torch import get_default_dtype, set_default_dtype

    path, modules, dtype = [*sys.path], {*sys.modules}, get_default_dtype()
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        set_default_dtype(dtype)
        log.setLevel(level)
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            first = folder / name.partition(".")[0]
            if name == _MODULE or first.is_dir() or first.with_suffix(".py").exists():
                del sys.modules[name]


def _reason(error: BaseException, path: Path) -> str:
    """Return the error's text, after the last line of the user's code that it passed."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    places = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    reason = str(error)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        reason = (
            f"{error.func} depends on the contents of a tensor, and here they have none: let only "
            "shapes decide, and make the batch of zeros"
        )
    elif isinstance(error, SyntaxError):
        places = [(error.filename or str(path), error.lineno or 1)]
        reason = f"SyntaxError: {error.msg}"
    elif type(error) is not ValueError:
        reason = f"{type(error).__name__}: {reason}"
    lines = [
        f"{file}:{line}: "
        for file, line in places
        if path.parent.resolve() in Path(file).resolve().parents and "site-packages" not in file
    ]
    return "".join(lines[-1:]) + "; ".join([reason, *getattr(error, "__notes__", ())])
