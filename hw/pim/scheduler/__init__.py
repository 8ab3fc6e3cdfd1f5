"""Scheduler of works: starts them on banks, deals their tiles and counts their operations."""
