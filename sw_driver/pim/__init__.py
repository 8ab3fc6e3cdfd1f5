"""Driver of the heterogeneous PIM: the low-level API, layers as works, and the cost of a run.

The specification is ``docs/pim-spec.md``.
"""
