"""Arguments that PyTorch's operators write to, including writes that the schema omits."""

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

A test measures those that run on a CPU. Some show only in inference mode, where PyTorch does not
decompose operators.
"""

_TRAINING = "training", "use_input_stats"
"""Arguments that must be true for an operator of the list to write anything."""


def outlasts_call(func: Any) -> bool:
    """Return whether an operator may read and write its tensors after it has returned."""
    return func.namespace == "c10d"  # collectives run in threads of their own


def written_arguments(
    func: Any, arguments: Mapping[str, Any] | None = None
) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an operator writes to.

    ``arguments`` are those of one call, by name. Without them, return all that a call may write to.
    """
    schema = func._schema.arguments
    hidden = HIDDEN_WRITES.get(func._schema.name.removeprefix("aten::"), ())
    if arguments and not all(arguments.get(name, True) for name in _TRAINING):
        hidden = ()
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(schema)
        if argument.name in hidden
        or outlasts_call(func)
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )
