"""What a step gains from faster parts."""

from __future__ import annotations

from hw_tests.driver.system.memferry.profiles import layer, profile_of
from sw_driver.system.memferry.planners import step_ns_of_changes


def test_each_part_is_twice_as_good() -> None:
    """On the GPU: 100 to copy, 20 forward, 20 back, 100 to copy the gradient, 60 to update."""
    one = profile_of(layer("a", 100, (20, 1000), (20, 1000, 1000)), update_ns=60)
    assert [*step_ns_of_changes(one, "ours", 200, 1.0).items()] == [
        ("link", 50 + 40 + 50 + 60),
        ("update", 100 + 40 + 100 + 30),
        ("GPU", 100 + 20 + 100 + 60),
        ("GPU's memory", 100 + 40 + 100 + 60),
    ]
    # By DHA the link is what it waits for, or the GPU.
    assert step_ns_of_changes(one, "ours", 99, 1.0) == {
        "GPU's memory": 100 + 20 + 1000 + 60,
        "link": 500 + 500 + 60,
        "update": 1000 + 1000 + 30,
        "GPU": 1000 + 1000 + 60,
    }
    near = profile_of(layer("a", 100, (20, 30), (20, 30, 30)))
    assert step_ns_of_changes(near, "ours", None, 1.0)["link"] == 20 + 20
    small = profile_of(layer("a", 100, (20, 20), (20, 20, 20)))
    assert step_ns_of_changes(small, "ours", None, 1.0)["GPU"] == 20
