"""Profiles as files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hw_tests.driver.system.memferry.profiles import FIGURE_6, layer, profile_of
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.system.memferry.profile import read_profile, write_profile

OPTIONAL = ("gap_backward_ns", "activation_bytes", "workspace_bytes")


def _read(path: Path, content: Any) -> Any:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_profile(path)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, FIGURE_6)
    assert read_profile(path) == FIGURE_6


def test_what_may_be_missing_is_0_and_whole_numbers_are_integers(tmp_path: Path) -> None:
    content = asdict(profile_of(layer("a", 10, (1, 2), (3, 4, 5))))
    del content["update_ns"]
    for name in OPTIONAL:
        del content["layers"][0][name]
    text = json.dumps(content).replace('"transfer_ns": 10', '"transfer_ns": 1e1')
    assert _read(tmp_path / "p", text) == profile_of(layer("a", 10, (1, 2), (3, 4, 5)))


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), True, "3", None, 10**16])
def test_a_time_that_cannot_be_names_layer_and_field(tmp_path: Path, value: Any) -> None:
    content: Any = asdict(FIGURE_6)
    content["layers"][1]["backward_ns"] = value
    message = r"p: layer '2': backward_ns is .*: expected an integer from 0 to 10+$"
    with pytest.raises(InvalidArgumentError, match=message):
        _read(tmp_path / "p", content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["layers"][2].pop("forward_ns"), "layer '3' has no forward_ns: expected"),
        (lambda p: p["layers"][0].pop("name"), "layer 0 has no name: expected"),
        (lambda p: p["layers"][0].update(name=""), "a layer's name is '': expected a text"),
        (lambda p: p["layers"][0].update(name="3"), "two layers are named '3': expected"),
        (
            lambda p: p["layers"][0].update(forward_sn=1),
            "a field of layer '1' is 'forward_sn': did you mean forward_ns",
        ),
        (lambda p: p["layers"].append(7), "layer 3 is 7: expected an object"),
        (lambda p: p["layers"].clear(), "the number of layers is 0: expected"),
        (lambda p: p.update(layers={}), "layers is {}: expected a list"),
        (lambda p: p.pop("device"), "the profile has no device: expected"),
        (lambda p: p.update(device=3), "device is 3: expected a text"),
        (lambda p: p.update(link_bytes_per_s=12), "link_bytes_per_s is 12: expected a number from"),
        (lambda p: p.update(update_ns=-1), "update_ns is -1: expected an integer from 0"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    content = json.loads(json.dumps(asdict(FIGURE_6)))
    change(content)
    with pytest.raises(InvalidArgumentError, match=f"p: {message}"):
        _read(tmp_path / "p", content)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="p: Expecting"):
        _read(tmp_path / "p", "{")
    with pytest.raises(InvalidArgumentError, match="p: maximum recursion depth"):
        _read(tmp_path / "p", "[" * 100_000)
    with pytest.raises(InvalidArgumentError, match=r"p: the profile is \[\]: expected an object"):
        _read(tmp_path / "p", [])


def test_a_record_is_checked_too() -> None:
    with pytest.raises(InvalidArgumentError, match="layer '1': nbytes is -1"):
        replace(FIGURE_6.layers[0], nbytes=-1)
