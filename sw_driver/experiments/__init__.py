"""Experiments and reports behind the commands of ``nearmem``."""
