"""Probes of timing rules, played to a trace checker of ``golden``."""

from __future__ import annotations

from collections.abc import Callable

from golden.command_trace import RuleChecker
from hw_tests.dram.probes import Command, Probe

__all__ = ["broken_rules", "check_edge", "play"]


def play(checker: RuleChecker, *commands: Command) -> None:
    for each in commands:
        row = each.address if each.name == "ACT" else None
        column = each.address if each.name[:2] in ("RD", "WR") else None
        checker.command(each.tck, each.name, each.group, each.bank, row, column)


def broken_rules(checker: RuleChecker) -> list[str]:
    return [violation.rule for violation in checker.violations]


def check_edge(probe: Probe, make: Callable[[], RuleChecker]) -> None:
    """A fresh checker accepts ``probe``, and refuses it for its rule one clock too early."""
    for commands, accepted in probe.variants():
        checker = make()
        play(checker, *commands)
        if accepted:
            assert checker.violations == []
        else:
            first = [(each.rule, each.tck) for each in checker.violations[:1]]
            assert first == [(probe.rule, commands[-1].tck)]
        assert sum(checker.counts.values()) == len(commands)
