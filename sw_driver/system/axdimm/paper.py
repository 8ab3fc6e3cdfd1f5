"""What the paper says of models and times: Kim et al., Tables 4 to 6."""

from __future__ import annotations

__all__ = ["CPU_CEILING_MPARAMS_PER_S", "CPU_MPARAMS_PER_S", "MODELS", "TABLE_4", "TABLE_6"]

CPU_MPARAMS_PER_S = 140.32
CPU_CEILING_MPARAMS_PER_S = 228.57
"""Of Adam on one core (Table 5)."""

_ROWS = (
    "baseline: forward, s",
    "baseline: backward, s",
    "baseline: total, s",
    "module: forward, s",
    "module: backward, s",
    "module: total, s",
    "speedup, backward",
    "speedup, total",
    "peak NVMe, GB",
)
TABLE_6: dict[str, dict[str, float]] = {
    model: dict(zip(_ROWS, cells, strict=True))
    for model, cells in {
        "gpt3-large": (0.78, 8.01, 8.79, 0.80, 4.60, 5.40, 1.74, 1.63, 0.9),
        "gpt3-xl": (2.12, 19.31, 21.42, 2.14, 13.28, 15.43, 1.45, 1.39, 9.8),
        "gpt3-2.7b": (4.78, 43.09, 47.87, 4.79, 30.45, 35.23, 1.42, 1.36, 26.1),
        "gpt3-6.7b": (13.12, 115.17, 128.29, 13.55, 88.17, 101.72, 1.31, 1.26, 78.4),
        "gpt3-13b": (25.24, 221.62, 246.86, 26.21, 166.25, 192.45, 1.33, 1.28, 153.1),
    }.items()
}
"""By the trace of the model."""

TABLE_4: dict[str, tuple[float, float, float]] = {
    "gpt3-large": (0.76, 3.0, 6.1),
    "gpt3-xl": (1.3, 5.2, 10.4),
    "gpt3-2.7b": (2.7, 10.8, 20.2),
    "gpt3-6.7b": (6.7, 26.8, 53.6),
    "gpt3-13b": (13.0, 52.0, 104.0),
}
"""Parameters in billions, and GB of parameters and of optimizer states."""

MODELS = tuple(TABLE_6)
