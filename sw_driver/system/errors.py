"""What a model of a system raises."""

from __future__ import annotations

__all__ = ["EngineError", "NoRoomError"]


class EngineError(RuntimeError):
    """What the engine was asked for cannot happen; the message says why."""


class NoRoomError(EngineError):
    """More memory was taken than is free."""
