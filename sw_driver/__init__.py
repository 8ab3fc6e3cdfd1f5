"""Nearmem's driver and what is built on it; ``nearmem`` has what most programs need of it.

Raises ImportError if another module or folder of the name of one that it needs is found first.
"""

from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

for _name in ("hw", "golden"):
    _found = _find_spec(_name)
    _places = _found.submodule_search_locations if _found else None
    _ours = _Path(__file__).resolve().parents[1] / _name
    if _found is not None and _ours not in [_Path(place).resolve() for place in _places or ()]:
        _other = _found.origin or next(iter(_places or ()), None)
        raise ImportError(
            f"{str(_other)!r} hides Nearmem's package {_name!r}: rename it, or move it away from "
            "the program"
        )
