"""Errors of system models."""

from __future__ import annotations

__all__ = ["EngineError", "NoRoomError"]


class EngineError(RuntimeError):
    """The engine was asked for something impossible; the message says why."""


class NoRoomError(EngineError):
    """More memory was taken than is free."""
