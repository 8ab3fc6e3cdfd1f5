"""Functional unit of an update rule (AXDIMM paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping

from hw.dataflow.unit import FlowUnit
from hw.float.format import FP32, FloatFormat
from hw.rules.update_rule import UpdateRule

__all__ = ["RuleUnit"]


class RuleUnit(FlowUnit):
    """One step of ``rule`` for one parameter a cycle.

    The members are those of a :class:`~hw.dataflow.unit.UnitSignature` with the names of the rule.
    A sum is an output like the others: each parameter's share. There is no stall. The clock may
    stop at any time. The reset only clears the valid bits of everything in flight.

    Parameters
    ----------
    rule
        Update rule to compute.
    format
        Format of all numbers.
    depths
        Stages of operators that differ from their default, by operation.

    Examples
    --------
    >>> from hw.rules import rule
    >>> unit = RuleUnit(rule("adam"))
    >>> unit.latency, unit.module_name
    (110, 'adam_unit')
    >>> RuleUnit(rule("adam"), depths={"div": 11}).latency
    92
    """

    def __init__(
        self,
        rule: UpdateRule,
        *,
        format: FloatFormat = FP32,
        depths: Mapping[str, int] | None = None,
    ) -> None:
        self.rule = rule
        """Update rule of the unit."""
        super().__init__(
            rule.formula,
            inputs=rule.inputs,
            constants=tuple(rule.constants),
            outputs=(*rule.outputs, *rule.sums),
            format=format,
            depths=depths,
            name=rule.name,
        )
