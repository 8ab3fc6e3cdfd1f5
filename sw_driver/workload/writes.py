"""Arguments that PyTorch's operators write to, also where the schema does not say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["HIDDEN_WRITES", "outlasts_call", "written_arguments"]

_STATISTICS = "running_mean", "running_var"

HIDDEN_WRITES: dict[str, tuple[str, ...]] = {
    "_batch_norm_impl_index": _STATISTICS,
    "_cudnn_rnn": ("dropout_state",),
    "_cudnn_rnn_backward": ("dropout_state", "reserve"),
    "batch_norm": _STATISTICS,
    "batch_norm_gather_stats": _STATISTICS,
    "batch_norm_gather_stats_with_counts": _STATISTICS,
    "batch_norm_update_stats": _STATISTICS,
    "cudnn_batch_norm": _STATISTICS,
    "inductor::resize_storage_bytes_": ("variable",),
    "instance_norm": _STATISTICS,
    "miopen_batch_norm": _STATISTICS,
    "mkldnn_rnn_layer_backward": ("workspace",),
    "native_batch_norm": _STATISTICS,
}
"""Arguments that PyTorch's operators write to without their schema saying so, by operator.

Those that a CPU runs are measured by a test. Some are seen in inference mode only, where PyTorch
takes no operator apart."""

_TRAINING = "training", "use_input_stats"
"""Arguments without which an operator of the list writes nothing."""


def outlasts_call(func: Any) -> bool:
    """Return whether an operator may read and write its tensors after it has returned."""
    return func.namespace == "c10d"  # collectives, which have threads of their own


def written_arguments(
    func: Any, arguments: Mapping[str, Any] | None = None
) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an operator writes to.

    ``arguments`` are those of a call, by name; without them all are returned that a call may write
    to.
    """
    schema = func._schema.arguments
    hidden = HIDDEN_WRITES.get(func._schema.name.removeprefix("aten::"), ())
    if arguments and not all(arguments.get(name, True) for name in _TRAINING):
        hidden = ()
    return tuple(
        (position, each.name)
        for position, each in enumerate(schema)
        if each.name in hidden
        or outlasts_call(func)
        or (each.alias_info is not None and each.alias_info.is_write)
    )
