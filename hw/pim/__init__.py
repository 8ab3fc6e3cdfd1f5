"""Fixed-function pools of the heterogeneous PIM: units in the logic layer of a 3D memory's banks.

The specification is ``docs/pim-spec.md``.
"""
