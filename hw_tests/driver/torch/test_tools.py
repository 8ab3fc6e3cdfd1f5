"""Training by the tools that people use: under each policy two of a script's lines are others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)
accelerate: Any = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: pip install -e '.[tools]'"
)
transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[tools]'"
)

from torch import nn

from hw_tests.driver.torch.policies import POLICIES, Begin
from sw_driver.torch import ModuleOptimizer
from sw_driver.torch.training import train_in

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]  # of the tools

WORDS = 64


def gpt2() -> nn.Module:
    names = {"bos_token_id": None, "eos_token_id": None, "loss_type": "ForCausalLM"}
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **sizes, **names))


def bert() -> nn.Module:
    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 32, "num_labels": 3,
    }  # fmt: skip
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=WORDS, **sizes)
    )


def samples(make: Any, count: int) -> list[dict[str, Any]]:
    words = torch.randint(WORDS, (count, 16), generator=torch.Generator().manual_seed(3))
    return [{"input_ids": each, "labels": each if make is gpt2 else each[0] % 3} for each in words]


def by_trainer(begin: Begin, make: Any, folder: Path) -> dict[str, Any]:
    """Clips, accumulates, evaluates, saves, and goes on from what was saved."""
    found: Any = {}
    for steps in (1, 2):
        transformers.set_seed(steps)
        model = make()
        with ExitStack() as stack:
            optimizer = begin(stack, model, folder)  # these two lines
            args = transformers.TrainingArguments(
                str(folder), max_steps=steps, per_device_train_batch_size=4, use_cpu=True,
                gradient_accumulation_steps=2, lr_scheduler_type="linear", warmup_steps=1,
                max_grad_norm=0 if isinstance(optimizer, ModuleOptimizer) else 0.5,
                eval_strategy="steps", eval_steps=1, save_steps=1, save_strategy="steps",
                logging_strategy="no", report_to=[], disable_tqdm=True,
            )  # fmt: skip
            trainer = transformers.Trainer(
                model, args, train_dataset=samples(make, 16), eval_dataset=samples(make, 8),
                optimizers=(optimizer, None),
            )  # fmt: skip
            trainer.train(resume_from_checkpoint=steps > 1)
            losses = [each["eval_loss"] for each in trainer.state.log_history[:-1]]
            found = {name: each.clone() for name, each in model.state_dict().items()}
    return {"losses": torch.tensor(losses), **found}


def by_accelerate(begin: Begin, make: Any, folder: Path) -> dict[str, Any]:
    accelerate.utils.set_seed(1)
    model = make()
    with ExitStack() as stack:
        optimizer = begin(stack, model, folder)  # these two lines
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        loader = torch.utils.data.DataLoader(samples(make, 24), batch_size=4, shuffle=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        clips = not isinstance(optimizer, ModuleOptimizer)
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients and clips:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return {name: each.clone() for name, each in accelerator.get_state_dict(model).items()}


@pytest.mark.parametrize("make", [gpt2, bert])
@pytest.mark.parametrize("train", [by_trainer, by_accelerate])
@pytest.mark.parametrize("name", POLICIES)
def test_bits_are_those_of_training_without(
    name: str, train: Any, make: Any, tmp_path: Path
) -> None:
    found, wanted = (
        train(begin, make, tmp_path / str(at)) for at, begin in enumerate(POLICIES[name])
    )
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[each], wanted[each]) for each in wanted)


@pytest.mark.parametrize("name", POLICIES)
def test_accelerates_checkpoints_are_those_of_plain_training(name: str, tmp_path: Path) -> None:
    """Which has what tensors share once."""
    found: list[Any] = []
    for saves, loads in POLICIES[name], POLICIES[name][::-1]:
        for number, begin in enumerate((saves, loads)):
            torch.manual_seed(number)
            model = gpt2()
            with ExitStack() as stack:
                optimizer = begin(stack, model, tmp_path)
                accelerator = accelerate.Accelerator(cpu=True)
                model, optimizer = accelerator.prepare(model, optimizer)
                if number:
                    accelerator.load_state(str(tmp_path / "saved"))
                batch = torch.utils.data.default_collate(samples(gpt2, 4))
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if not number:
                    accelerator.save_state(str(tmp_path / "saved"))
                found.append([each.clone() for each in model.state_dict().values()])
    for at in 0, 1:
        assert all(map(torch.equal, found[at], found[at + 2]))


BUDGETS = {"sentinel": "80%", "memferry": "40KiB", "offload": "64MiB"}


@pytest.mark.parametrize("policy", BUDGETS)
def test_two_lines_around_a_trainer(policy: str, tmp_path: Path) -> None:
    """It makes the optimizer itself; the policy is closed before the model is saved."""
    found: list[Any] = []
    for at, under in enumerate((policy, "" if policy != "offload" else policy)):
        transformers.set_seed(1)
        model = gpt2()
        args = transformers.TrainingArguments(
            str(tmp_path / str(at)), max_steps=4, per_device_train_batch_size=4, use_cpu=True,
            gradient_accumulation_steps=2, max_grad_norm=0.5, save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, args, train_dataset=samples(gpt2, 16))
        with ExitStack() as stack:
            if under:
                options = {"least_bytes": 1 << 10} if policy == "sentinel" else {}
                optimizer = trainer.create_optimizer()
                budget = BUDGETS[policy] if not at else "1GiB"
                made = train_in(model, optimizer, budget=budget, policy=policy, **options)
                stack.enter_context(made)
            trainer.train()
            if under:
                assert made.report()["back_bytes"] > 0
        found.append([each.clone() for each in model.state_dict().values()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("policy", BUDGETS)
def test_two_lines_after_accelerates_prepare(policy: str) -> None:
    """The optimizer is in accelerate's wrapper then."""
    found: list[Any] = []
    for at in range(2):
        torch.manual_seed(1)
        model = gpt2()
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        loader = torch.utils.data.DataLoader(samples(gpt2, 24), batch_size=4)
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        with ExitStack() as stack:
            if not at or policy == "offload":
                options = {"least_bytes": 1 << 10} if policy == "sentinel" else {}
                budget = BUDGETS[policy] if not at else "1GiB"
                stack.enter_context(
                    train_in(model, optimizer, budget=budget, policy=policy, **options)
                )
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch).loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
        found.append([each.clone() for each in model.state_dict().values()])
    assert all(map(torch.equal, *found))
