"""The heterogeneous PIM's fixed-function pools: units in the banks of a 3D memory's logic layer.

The specification is ``docs/pim-spec.md``.
"""
