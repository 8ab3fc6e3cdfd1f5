"""Networks by name, by file and by function, and what is refused of each."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from sw_driver.workload import TraceError, load_trace
from sw_driver.workload.loading import load_workload
from sw_driver.workload.trace import SHIPPED

HELPER = "WIDTH = 4\n"
USERS = """\
from __future__ import annotations
import os
from dataclasses import dataclass
import torch
from torch import nn
from sizes import WIDTH

@dataclass
class Config:
    width: int = WIDTH

print("printed")
BATCH = torch.zeros(8, Config().width)

class Gate(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.first, self.gate = nn.Linear(WIDTH, WIDTH), gate

    def forward(self, values):
        return self.gate(self.first(values))

class Decides(nn.Module):
    def forward(self, values):
        return values if values.sum() > 0 else -values

class Masks(nn.Module):
    def forward(self, values):
        return values[values > 0]

class Slips(nn.Module):
    def forward(self, values):
        return values.missing

class Factors(nn.Module):
    def forward(self, values):
        return torch.linalg.svd(values)[1]

def total(model, batch):
    return model(batch).sum()

def net():
    from sizes import WIDTH as again
    return nn.Linear(again, 2), BATCH, total

def elsewhere():
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    return nn.Linear(WIDTH, 2), BATCH.double(), total

def calls_backward():
    def step(model, batch):
        total(model, batch).backward()
    return nn.Linear(WIDTH, 2), [BATCH], step

def huge():
    layers = (nn.Linear(1 << 20, 1 << 20) for _ in range(9))
    return nn.Sequential(*layers), torch.zeros(1, 1 << 20), total

def decides(): return Gate(Decides()), BATCH, total
def masks(): return Gate(Masks()), BATCH, total
def factors(): return Gate(Factors()), BATCH, total
def slips(): return Gate(Slips()), BATCH, total
def misfit(): return Gate(nn.Linear(3, 3)), BATCH, total
def sparse(): return nn.Sequential(nn.Embedding(9, 4, sparse=True)), BATCH.long(), total
def frozen(): return nn.Linear(WIDTH, 2).requires_grad_(False), BATCH, total
def vector(): return nn.Linear(WIDTH, 2), BATCH, lambda model, batch: model(batch)
def nothing(): pass
def keyed(): return nn.Linear(WIDTH, 2), {"x": BATCH}, total
def raises(): raise KeyError("width")
def ends(): raise SystemExit(3)
"""


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(USERS.splitlines(), 1) if text in line)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    (tmp_path / "sizes.py").write_text(HELPER)
    (tmp_path / "users.py").write_text(USERS)
    return tmp_path / "users.py"


def torch_or_skip() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")


def test_a_network_is_found_by_name_and_by_file(tmp_path: Path) -> None:
    trace = load_trace("gpt-tiny")
    trace.save(tmp_path / "mine.json.gz")
    assert load_workload("gpt-tiny") == load_workload(str(tmp_path / "mine.json.gz")) == trace


def test_a_function_is_captured_and_leaves_nothing_behind(
    users: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch_or_skip()
    path = list(sys.path)
    trace = load_workload(f"{users}:net", "sgd")
    assert sys.path == path
    assert not {"sizes", "nearmem_workload"} & set(sys.modules)
    assert capsys.readouterr() == ("", "printed\n")
    assert trace.name == "users.net"
    assert [op.flops for op in trace.ops if op.kind in ("addmm", "mm")] == [2 * 8 * 4 * 2] * 2
    assert [op.kind for op in trace.ops][-2:] == ["sgd", "sgd"]
    assert load_workload(f"{users}:calls_backward").ops[:-2] == trace.ops[:-2]
    sizes = [each.nbytes for each in load_workload(f"{users}:huge").tensors]
    assert sizes.count(4 << 40) == 9 * 4  # weight, gradient and two states


def test_a_function_that_goes_elsewhere_does_so_for_itself(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_or_skip()
    monkeypatch.chdir(users.parent)
    trace = load_workload("users.py:elsewhere", "sgd")
    assert [each.element_bytes for each in trace.tensors if each.kind == "parameter"] == [8, 8]
    assert Path.cwd() == users.parent
    assert load_workload("users.py:net", "sgd").tensors[0].element_bytes == 4


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("decides", ["values.sum() > 0", "aten._local_scalar_dense", "'gate'"]),
        ("masks", ["values[values > 0]", "aten.nonzero", "shapes", "'gate'"]),
        ("factors", ["torch.linalg.svd", "_linalg_svd", "register_flop", "'gate'"]),
        ("misfit", ["self.gate(self.first", "RuntimeError", "[8, 4]", "'gate'"]),
        ("sparse", ["", "sparse=False", "'0'"]),
        ("frozen", ["", "step returns FakeTensor", "depends on a parameter"]),
        ("vector", ["", "size=(8, 2)", "one number"]),
        ("nothing", ["", "returns NoneType", "(model, batch, step)"]),
        ("keyed", ["", "returns Linear, dict, function", "(model, batch, step)"]),
        ("slips", ["values.missing", "AttributeError", "'gate'"]),
        ("raises", ['KeyError("width")', "KeyError: 'width'"]),
        ("ends", ["SystemExit(3)", "SystemExit: 3"]),
        ("nets", ["", "no function 'nets'"]),
    ],
)
def test_what_cannot_be_captured_says_where_and_why(
    function: str, said: list[str], users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch_or_skip()
    with pytest.raises(TraceError) as refused:
        load_workload(f"{users}:{function}")
    line, *words = said
    where = f"{users}:{line_of(line)}: " if line else ""
    assert str(refused.value).startswith(f"{users}:{function} cannot be captured: {where}")
    for each in words:
        assert each in str(refused.value)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", ":1: SyntaxError: invalid"),
        ("def f(): \0", ":1: SyntaxError: source code"),
        ("\n1/0", ":2: ZeroDivisionError"),
        ("def f(x: Missing): ...", ":1: NameError"),
        ("import nowhere", ":1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_does_not_run_says_where(text: str, said: str, tmp_path: Path) -> None:
    torch_or_skip()
    (tmp_path / "users.py").write_text(text)
    with pytest.raises(TraceError, match=f"{tmp_path}/users.py{said}"):
        load_workload(f"{tmp_path}/users.py:f")


def test_a_function_needs_pytorch(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sw_driver.workload.capture", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"not installed: pip install -e '\.\[torch\]'"):
        load_workload(f"{users}:net")


@pytest.mark.parametrize(
    ("what", "rule", "said"),
    [
        ("alexnt", None, "'alexnt': did you mean alexnet"),
        ("nowhere.json.gz", None, "expected one of .*, a file of a trace, FILE.py:FUNCTION"),
        ("users.py", None, "expected a function of it: users.py:FUNCTION"),
        ("gpt-tiny", "sgd", "the rule is 'sgd', but 'gpt-tiny' is captured already, with 'adam'"),
        ("old.json.gz", None, "its format is 0"),
        ("text.json.gz", None, "is damaged or no trace"),
    ],
)
def test_what_is_no_workload_is_refused(
    what: str, rule: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = json.loads(gzip.decompress((SHIPPED / "gpt-tiny.json.gz").read_bytes()))
    Path("old.json.gz").write_bytes(gzip.compress(json.dumps(content | {"format": 0}).encode()))
    Path("text.json.gz").write_text("a trace")
    with pytest.raises(TraceError, match=said):
        load_workload(what, rule)


def test_a_rule_that_there_is_not_is_refused_before_anything_runs(users: Path) -> None:
    torch_or_skip()
    with pytest.raises(TraceError, match="the rule is 'adamm': did you mean adam"):
        load_workload(f"{users}:raises", "adamm")
    with pytest.raises(FileNotFoundError):
        load_workload("nowhere.py:net")
