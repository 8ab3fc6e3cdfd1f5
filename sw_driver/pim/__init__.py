"""The heterogeneous PIM's driver: the low-level API, layers as works, what a run cost.

The specification is ``docs/pim-spec.md``.
"""
