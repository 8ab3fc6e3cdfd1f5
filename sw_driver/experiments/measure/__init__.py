"""Speeds of this machine, for a machine file."""
