"""What a model of a system raises."""

from __future__ import annotations

__all__ = ["DeadlockError", "EngineError", "NoRoomError"]


class EngineError(RuntimeError):
    """What the engine was asked for cannot happen; the message says why."""


class NoRoomError(EngineError):
    """More memory was taken than is free."""


class DeadlockError(EngineError):
    """Nothing can happen any more, and something still waits."""
