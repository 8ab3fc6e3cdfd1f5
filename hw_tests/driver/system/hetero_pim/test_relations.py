"""The table of relations, again."""

from __future__ import annotations

import pytest

from sw_driver.system.hetero_pim import relations, runs


def test_relations_are_counted_by_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relations, "NETWORKS", ("alexnet-32",))
    monkeypatch.setattr(runs, "calibrated_rate", lambda *_: 48)
    monkeypatch.setattr(relations, "RATES", (0, 16))
    monkeypatch.setattr(relations, "BESIDE", ())
    made = relations.relations({}, lambda _: None)
    counts = {
        row["the paper has"]: [each.ours for each in row.values() if not isinstance(each, str)]
        for row in made.rows
    }
    assert counts["VI-A: Hetero PIM before CPU"] == [1, 1, 1]
    assert counts["VI-A: Progr PIM before CPU"] == [0, 0, 0]
    assert counts["VI-A: Fixed PIM before CPU"] == [0, 1, 1]
    # At 16 a step takes 74 ms, at 48 it takes 49, and the GPU's 61.
    assert counts["VI-D: Hetero PIM at 2x before GPU"] == [0, 1, 1]
    assert counts["VI-B: Hetero PIM takes less energy than GPU"] == [0, 1, 1]
    holds = {row["the paper has"]: row["holds at"] for row in made.rows}
    assert holds["VI-D: Hetero PIM at 2x before GPU"] == "16, 48"
    assert holds["VI-A: Progr PIM before CPU"] == "none of these"
    judged = made.claims["Hetero PIM at 4x before GPU"]
    assert (judged.verdict, judged.mark, judged.section) == ("met", "calibrated", "VI-D")
    assert made.claims["Progr PIM before CPU"].verdict == "missed"
    assert "a unit has to do 49 operations a cycle" in made.notes[0]
    assert made.claims["use of the GPU, alexnet-32"].value == 30
