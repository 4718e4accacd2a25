"""LoRA: the sampler sees it, the reference is what training began with, a killed run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from episodes import group_of, same_bits, small_model, small_tokenizer, weights
from transformers import AutoModelForCausalLM

from dreamgym.algos.adapter import keep_reference, with_adapter
from dreamgym.algos.batch import make_batch
from dreamgym.algos.canary import WeightsDiffer, check_same_weights
from dreamgym.algos.credit import grpo_lesson
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.learner import Learner
from dreamgym.algos.settings import AdapterConfig, LearnerConfig
from dreamgym.llm.local import LocalLLM
from dreamgym.types import DreamGymError

GROUP = group_of([1.0, 0.0, 0.0, 1.0], seed=3)


def learner(model: Any = None, **settings: Any) -> Learner:
    plain = {"optimizer": "adamw", "learning_rate": 1e-2, "warmup_steps": 0, "epochs": 1}
    plain |= {"negative": 1.0, "credit_refused": True, "adapter": {"rank": 4}}
    config = LearnerConfig.model_validate(plain | settings)
    return Learner(small_model() if model is None else model, small_tokenizer(), config)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_adapter_alone_is_trained_and_reaches_the_sampler(optimizer: str) -> None:  # P052
    subject = learner(optimizer=optimizer)
    before = weights(subject.model)
    for _ in range(3):
        subject.update([GROUP])
    moved = {n for n, p in weights(subject.model).items() if not torch.equal(p, before[n])}
    assert moved and all("lora_" in name for name in moved)
    assert check_same_weights(subject.policy(), subject.model) < 1e-4


def test_a_sampler_that_never_got_the_adapter_is_found_out() -> None:  # P052
    subject = learner()
    stale = LocalLLM(subject.model, small_tokenizer())
    for _ in range(3):
        subject.update([GROUP])
    with pytest.raises(WeightsDiffer, match="other weights"):
        check_same_weights(stale, subject.model)


def untied_model() -> Any:
    """With a head of its own, which starts as a copy of the embeddings."""
    model = small_model()
    head = torch.nn.Linear(32, len(small_tokenizer()), bias=False)
    head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.set_output_embeddings(head)
    model.config.tie_word_embeddings = False
    return model


@pytest.mark.parametrize(
    ("modules", "reason"),
    [("qproj", "no layer 'qproj'"), ("q_proj,lm_head", "shares"), ("embed_tokens", "not sampled")],
)
def test_an_adapter_that_would_go_wrong_is_refused(modules: str, reason: str) -> None:
    with pytest.raises(DreamGymError, match=reason):
        with_adapter(small_model(), AdapterConfig(rank=4, modules=modules))


def test_an_adapter_on_the_head_has_its_part_in_what_is_trained() -> None:  # engines.md rule 20
    torch.manual_seed(1)
    config = AdapterConfig(rank=4, modules="q_proj, lm_head")
    model = with_adapter(untied_model(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name and "lm_head" in name:
                parameter.normal_()
    batch = make_batch(grpo_lesson([GROUP], LearnerConfig()).rows)
    plain = model(input_ids=batch.ids).logits[:, :-1].log_softmax(-1)
    want = plain.gather(2, batch.ids[:, 1:, None])[..., 0] * batch.mask[:, 1:]
    assert (token_logprobs(model, batch)[:, 1:] - want).abs().max() < 1e-5
    without = token_logprobs(untied_model(), batch)[:, 1:]
    assert (without - want).abs().max() > 1e-2
    assert check_same_weights(LocalLLM(model, small_tokenizer()), model) < 1e-4


def test_the_reference_of_a_warm_started_adapter_is_that_adapter() -> None:  # engines.md rule 20
    warm = learner()
    for _ in range(3):
        warm.update([GROUP])
    batch = make_batch(grpo_lesson([GROUP], LearnerConfig()).rows)
    with torch.no_grad():
        began = token_logprobs(warm.model, batch)
    subject = learner(warm.model, objective={"kl": 0.1})
    assert (subject._held(batch) - began).abs().max() < 1e-6
    first = subject.update([GROUP])
    for _ in range(3):
        last = subject.update([GROUP])
    assert first["policy/kl_to_reference"] == pytest.approx(0.0, abs=1e-7)
    assert last["policy/kl_to_reference"] > 1e-6
    assert (subject._held(batch) - began).abs().max() < 1e-6, "the reference must not move"
    trained = [name for name, p in subject.model.named_parameters() if p.requires_grad]
    assert trained and not any("reference" in name for name in trained)


def test_a_frozen_copy_of_the_adapter_changes_nothing_by_itself() -> None:
    model = with_adapter(small_model(), AdapterConfig(rank=4))
    batch = make_batch(grpo_lesson([GROUP], LearnerConfig()).rows)
    before = token_logprobs(model, batch)
    keep_reference(model)
    assert torch.equal(token_logprobs(model, batch), before)


def test_dropout_of_an_adapter_is_off_while_it_trains() -> None:  # engines.md rule 19
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(small_model(), lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    subject = learner(model, checkpointing=True)  # which needs training mode
    assert subject.model.training
    batch = make_batch(grpo_lesson([GROUP], LearnerConfig()).rows)
    with torch.no_grad():
        assert torch.equal(
            token_logprobs(subject.model, batch), token_logprobs(subject.model, batch)
        )


def test_a_saved_adapter_goes_on_to_the_same_bits_and_stands_merged_for_everybody_else(
    tmp_path: Path,
) -> None:
    subject = learner(objective={"kl": 0.1})
    subject.update([GROUP])
    subject.save(tmp_path)
    again = learner(objective={"kl": 0.1})
    again.load_optimizer(tmp_path)
    for each in (subject, again):
        each.update([group_of([0.0, 1.0], seed=8)])
    assert same_bits(weights(again.model), weights(subject.model))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert not any("lora" in name for name, _ in plain.named_parameters())
    fresh = learner()
    fresh.load_optimizer(tmp_path)
    assert check_same_weights(LocalLLM(plain, small_tokenizer()), fresh.model) < 1e-4


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_a_critic_of_an_adapted_policy_learns_and_leaves_it_alone(kind: str) -> None:
    subject = learner(algorithm="ppo", ppo={"critic": kind, "critic_warmup": 1})
    before = weights(subject.model)
    assert subject.update([GROUP])["critic/loss"] > 0
    assert same_bits(weights(subject.model), before)
    subject.update([GROUP])
    moved = {n for n, p in weights(subject.model).items() if not torch.equal(p, before[n])}
    assert moved and all("lora_" in name for name in moved)


def test_a_policy_is_compared_with_the_learner_before_it_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # P052: hard fail, not a flat curve
    subject = learner()
    for _ in range(3):
        subject.update([GROUP])
    monkeypatch.setattr("dreamgym.llm.decoder._adapters", lambda module: [])
    with pytest.raises(WeightsDiffer):
        subject.policy()


def test_a_policy_of_no_numbers_is_not_handed_out() -> None:
    subject = learner()
    with torch.no_grad():
        next(subject.model.parameters()).fill_(torch.nan)
    with pytest.raises(WeightsDiffer):
        subject.policy()


def test_a_small_difference_of_weights_is_found_out_in_full_precision() -> None:  # rule 15
    model = small_model()
    sampler = LocalLLM(model, small_tokenizer())
    with torch.no_grad():
        model.model.norm.weight.mul_(1.01)
    with pytest.raises(WeightsDiffer):
        check_same_weights(sampler, model)


def test_a_reference_that_is_given_is_the_one_also_of_an_adapted_policy() -> None:  # rule 20
    other = small_model(1)
    batch = make_batch(grpo_lesson([group_of([1.0, 0.0])], LearnerConfig()).rows)
    want = token_logprobs(other, batch).detach()
    adapted = with_adapter(small_model(), AdapterConfig(rank=4))
    subject = Learner(
        adapted,
        small_tokenizer(),
        LearnerConfig.model_validate({"objective": {"kl": 0.1}}),
        reference=other,
    )
    assert (subject._held(batch) - want).abs().max() < 1e-6
