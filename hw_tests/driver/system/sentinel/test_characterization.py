"""What is in a step of ResNet-32, and the arithmetic on the paper's numbers."""

from __future__ import annotations

import pytest

from sw_driver.system.reproduction import Claim, Experiment
from sw_driver.system.sentinel import characterization
from sw_driver.system.sentinel.profiling import profile_of
from sw_driver.workload.trace import LASTING, load_trace


@pytest.fixture(autouse=True)
def _one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characterization, "NETWORKS", ["resnet32"])


def made(name: str) -> Experiment:
    return getattr(characterization, name)({}, lambda _: None)


def ours(row: object, *columns: str) -> list[float]:
    assert isinstance(row, dict)
    return [row[each].ours for each in columns]


def test_shares_and_sizes_are_of_all_objects() -> None:
    profile = profile_of(load_trace("resnet32"), 30 << 20)
    sizes = [each.nbytes for each in profile.step.tensors]
    for name, groups in (("figure1", characterization.LIVES), ("figure2", characterization.TIMES)):
        row = made(name).rows[0]
        if name == "figure1":
            assert sum(ours(row, *(f"{each}, %" for each in groups))) == pytest.approx(100)
            short = 100 * len(profile.short_lived) / len(sizes)
            lasting = 100 * sum(each.kind in LASTING for each in profile.step.tensors) / len(sizes)
            assert ours(row, "1 layer, %", "outlives the step, %") == pytest.approx(
                [short, lasting]
            )
            (small,) = ours(row, "small of 1 layer, %")
            count = sum(sizes[each] < 4096 for each in profile.short_lived)
            assert small == pytest.approx(100 * count / len(profile.short_lived))
        assert sum(ours(row, *(f"{each}, MB" for each in groups))) * 1e6 == pytest.approx(
            sum(sizes)
        )
    small = [each for each in sizes if each < 4096]
    columns = ("all, MB", "small, MB", "small, one a page, MB")
    found = ours(made("table1").rows[0], *columns)
    assert found == pytest.approx([sum(sizes) / 1e6, sum(small) / 1e6, len(small) * 4096 / 1e6])


def test_claims_are_those_of_the_paper() -> None:
    claims: dict[str, Claim] = {}
    for name in characterization.__all__:
        claims |= {f"{name}: {claim}": each for claim, each in made(name).quoted.items()}
    found = {name: (each.value, each.verdict) for name, each in claims.items()}
    assert found == {
        "figure1: layers, taken apart": (64, "met"),
        "figure1: 1 layer, %, taken apart": (92, "met"),
        "figure1: small of 1 layer, %, taken apart": (98, "met"),
        "figure1: 1 layer, %, captured": (92, "excluded"),
        "figure1: small of 1 layer, %, captured": (98, "excluded"),
        "figure2: up to 10 lines, %, taken apart": (52.3, "met"),
        "figure2: up to 10 times, MB, captured": (907, "excluded"),
        "figure2: more than 100 times, MB, captured": (4, "excluded"),
        "figure3: small of up to 10 lines, %, captured": (98, "excluded"),
        "figure3: up to 10 lines, small, KB, captured": (3900, "excluded"),
        "figure4: up to 10 times, pages, MB, captured": (763, "excluded"),
        "figure4: objects over pages, up to 10 times, captured": (907 / 763, "excluded"),
        "table1: all, MB, taken apart": (1570, "met"),
        "table1: all, one a page, MB, captured": (1970, "excluded"),
        "table1: small, MB, captured": (0.45, "excluded"),
        "table1: small, one a page, MB, captured": (152, "excluded"),
    }


def test_the_arithmetic_on_the_papers_numbers_is_right() -> None:
    small = 152e6 / 4096
    assert round(small) == 37_109
    assert round(small / len(load_trace("resnet32").ops)) == 95
    assert round(0.45e6 / small) == 12
    assert (1970 - 1570 - (152 - 0.45)) * 1e6 / 4095 > 60_000
    assert [round(907e6 / 64 / 1e6), 10 * 64] == [14, 640]
    assert [round(907 / 0.54, -1), 4 / 0.002] == [1680, 2000]
    assert round(100 * (1970 / 1570 - 1), 1) == 25.5
    kinds = ("parameter", "optimizer_state")
    lasting = [each.nbytes for each in load_trace("resnet32").tensors if each.kind in kinds]
    assert round(sum(lasting) / 1e6, 1) == 3.7
