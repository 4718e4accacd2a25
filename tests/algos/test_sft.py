"""Eq. 5's loss by hand, and a fit that a kill does not change."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from episodes import TEXTS, encoder, same_bits, small_model, weights
from safetensors import SafetensorError
from torch.testing import assert_close

from dreamgym.algos.batch import Row, conversation_row, make_batch
from dreamgym.algos.settings import SFTConfig
from dreamgym.algos.sft import fit, sft_loss
from dreamgym.llm.base import Message

CONFIG = SFTConfig(
    num_tokens=1200, tokens_per_step=100, learning_rate=1e-2, warmup_steps=2, save_every=150
)


def corpus() -> list[Row]:
    rng = random.Random(0)
    talks = [
        [
            message
            for _ in range(rng.randint(1, 3))
            for message in (
                Message("user", rng.choice(TEXTS)),
                Message("assistant", rng.choice(TEXTS)),
            )
        ]
        for _ in range(12)
    ]
    return [conversation_row(talk, encoder()) for talk in talks]


def test_the_loss_is_a_sum_over_the_trained_tokens_by_one_number_for_every_step() -> None:
    rows = [Row((1, 2, 3, 4), (False, True, False, True)), Row((1, 2), (False, True))]
    logprobs = torch.tensor([[0.0, -1.0, -9.0, -2.0], [0.0, -6.0, 0.0, 0.0]], requires_grad=True)
    loss = sft_loss(logprobs, make_batch(rows), num_tokens=4.0)
    # (1 + 2 + 6) / 4; a mean of the rows' means would be (1.5 + 6) / 2
    assert loss.item() == pytest.approx(2.25, abs=1e-6)
    loss.backward()
    each = -0.25
    assert_close(logprobs.grad, torch.tensor([[0.0, each, 0.0, each], [0.0, each, 0.0, 0.0]]))
    # two steps of half the rows add up to one of all
    parts = [
        sft_loss(logprobs[i : i + 1, :n], make_batch(rows[i : i + 1]), 4.0)
        for i, n in enumerate((4, 2))
    ]
    assert sum(part.item() for part in parts) == pytest.approx(2.25, abs=1e-6)


def test_a_fit_learns_its_corpus() -> None:
    config = CONFIG.model_copy(update={"num_tokens": 6000})
    losses: list[float] = []
    last = fit(small_model(), corpus(), config, seed=0, on_step=lambda _, loss: losses.append(loss))
    assert losses[0] > 5.0  # ln 400 at the start
    assert last < 3.0


def test_a_fit_is_the_same_for_its_seed_and_another_for_another() -> None:
    models = [small_model() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        fit(model, corpus(), CONFIG, seed=seed)
    a, b, c = map(weights, models)
    assert same_bits(a, b) and not same_bits(a, c)


class Killed(BaseException):
    """A signal's stand-in: no handler of errors catches it, and pytest goes on after it."""


def kill_at(step: int) -> Callable[[int, float], None]:
    """An `on_step` that ends the fit as a signal would."""
    taken = 0

    def on_step(tokens: int, loss: float) -> None:
        nonlocal taken
        taken += 1
        if taken == step:
            raise Killed

    return on_step


@pytest.mark.parametrize("killed", [[1], [4], [9], [4, 3, 2]])
def test_a_killed_fit_ends_at_the_same_weights(killed: list[int], tmp_path: Path) -> None:
    straight = small_model()
    loss = fit(straight, corpus(), CONFIG, seed=3)
    folder = tmp_path / "fit"
    for step in killed:
        with pytest.raises(Killed):
            fit(small_model(), corpus(), CONFIG, seed=3, checkpoint=folder, on_step=kill_at(step))
    assert folder.exists() is (killed != [1])
    # where there is a checkpoint its weights count, not those of the model it is loaded into
    resumed = small_model(seed=0 if killed == [1] else 99)
    steps: list[float] = []
    again = fit(
        resumed,
        corpus(),
        CONFIG,
        seed=3,
        checkpoint=folder,
        on_step=lambda _, loss: steps.append(loss),
    )
    assert again == loss
    assert same_bits(weights(resumed), weights(straight))
    assert steps, "the resumed fit must have had something left to do"


def test_a_fit_killed_while_it_swaps_its_checkpoint_goes_on(tmp_path: Path) -> None:
    straight, resumed = small_model(), small_model(seed=99)
    fit(straight, corpus(), CONFIG, seed=3)
    folder = tmp_path / "fit"
    with pytest.raises(Killed):
        fit(small_model(), corpus(), CONFIG, seed=3, checkpoint=folder, on_step=kill_at(8))
    folder.rename(tmp_path / "fit.old")
    (tmp_path / "fit.new").mkdir()
    (tmp_path / "fit.new" / "model.safetensors").write_bytes(b"half a file")
    fit(resumed, corpus(), CONFIG, seed=3, checkpoint=folder)
    assert same_bits(weights(resumed), weights(straight))


def test_a_finished_fit_trains_no_further(tmp_path: Path) -> None:
    folder = tmp_path / "fit"
    often = CONFIG.model_copy(update={"save_every": 1})
    first, second = small_model(), small_model(seed=99)
    loss = fit(first, corpus(), often, seed=3, checkpoint=folder)
    again = fit(second, corpus(), often, seed=3, checkpoint=folder, on_step=kill_at(1))
    assert again == loss and same_bits(weights(first), weights(second))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_pickle_in_a_checkpoint_is_refused_unread(name: str, tmp_path: Path) -> None:  # P100
    folder = tmp_path / "fit"
    with pytest.raises(Killed):
        fit(small_model(), corpus(), CONFIG, seed=3, checkpoint=folder, on_step=kill_at(8))
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "harmed")))
    with pytest.raises(SafetensorError):
        fit(small_model(), corpus(), CONFIG, seed=3, checkpoint=folder)
    assert not (tmp_path / "harmed").exists()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (self.path,)


def test_a_fit_without_a_trained_token_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to train on"):
        fit(small_model(), [Row((1, 2), (False, False))], CONFIG, seed=0)


def test_a_fit_without_warm_up_begins_at_its_peak() -> None:
    rows = [Row((5, 6, 7), (False, True, True))]
    config = SFTConfig(num_tokens=12, tokens_per_step=3, warmup_steps=0, learning_rate=1e-3)
    assert fit(small_model(), rows, config, seed=0, first=[Row((5, 6), (False, False))]) > 0
