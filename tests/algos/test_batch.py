"""What was sampled is what is trained, and only where the policy wrote."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from episodes import TASK, encoder, group_of, play_at_random, small_model, small_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from dreamgym.agents.prompt import policy_messages
from dreamgym.algos.batch import (
    Batch,
    Row,
    conversation_row,
    episode_rows,
    make_batch,
    split_rows,
)
from dreamgym.algos.credit import grpo_lesson
from dreamgym.algos.forward import token_logprobs
from dreamgym.algos.objective import policy_loss
from dreamgym.algos.settings import LearnerConfig
from dreamgym.llm.base import Message
from dreamgym.types import Completion, Ending, Episode, Group, Turn


def trained(row: Row) -> tuple[int, ...]:
    return tuple(id for id, on in zip(row.ids, row.mask, strict=True) if on)


def test_trained_ids_are_the_sampled_ids_for_a_thousand_random_episodes() -> None:  # P027
    rng = random.Random(0)
    drifted = 0
    for _ in range(1000):
        episode = play_at_random(rng, num_turns=rng.randint(1, 4))
        (row,), _ = episode_rows(episode)
        completions = [turn.completion for turn in episode.turns if turn.completion]
        assert trained(row) == tuple(id for c in completions for id in c.ids)
        kept = [p for p, on in zip(row.logprobs, row.mask, strict=True) if on]
        assert kept == [p for c in completions for p in c.logprobs]
        drifted += any(encoder().text_ids(c.text) != c.ids[:-1] for c in completions)
    assert drifted > 500, "encoding the text again must give other ids, or this shows nothing"


def test_a_tag_sampled_in_pieces_stays_in_pieces() -> None:  # P028
    pieces = [id for part in ("<th", "ink", ">") for id in encoder().text_ids(part)]
    assert encoder().decode(pieces) == "<think>"
    assert tuple(pieces) != encoder().text_ids("<think>")
    first = Completion("<think>", (*pieces, encoder().end), (-1.0,) * (len(pieces) + 1))
    first = replace(first, prompt_ids=tuple(encoder().prompt([Message("user", "look")])))
    turns = [Turn("look", "", 0.0, "again", True, first)]
    prompt = tuple(encoder().prompt(policy_messages("look", turns, "again")))
    second = Completion("x", (*encoder().text_ids("x"), encoder().end), (-1.0, -1.0), prompt)
    turns.append(Turn("again", "x", 0.0, "end", True, second))
    (row,), _ = episode_rows(Episode(TASK, tuple(turns), Ending.DONE, "dream"))
    assert trained(row) == (*first.ids, *second.ids)


def test_an_episode_whose_prompts_did_not_only_grow_forks_and_trains_each_token_once() -> None:
    episode = play_at_random(random.Random(1), num_turns=3)
    first = episode.turns[0]
    assert first.completion is not None
    ids = (9,) * len(first.completion.ids)
    other = replace(first.completion, ids=ids)
    broken = replace(episode, turns=(replace(first, completion=other), *episode.turns[1:]))
    rows, places = episode_rows(broken)  # rule 1: CLEAN or FORK, never silently realigned
    assert [place.row for place in places] == [0, 1, 1]
    completions = [turn.completion for turn in broken.turns if turn.completion]
    for place, completion in zip(places, completions, strict=True):
        assert rows[place.row].ids[place.start : place.stop] == completion.ids
        assert rows[place.row].ids[: place.start] == completion.prompt_ids
    assert sum(row.num_trained for row in rows) == sum(len(c.ids) for c in completions)
    lesson = grpo_lesson(
        [Group(TASK, (broken, play_at_random(random.Random(2), num_turns=1, reward=1.0)))],
        LearnerConfig(negative=1.0),
    )
    assert lesson.metrics == {"train/forked_episodes": 1.0}
    assert {a for row in lesson.rows[:2] for a in row.advantages if a} == {-1.0}  # P040


def test_an_episode_that_no_language_model_played_is_refused() -> None:
    human = Episode(TASK, (Turn("a", "b", 1.0, "c"),), Ending.DONE, "real")
    llm = play_at_random(random.Random(1), num_turns=2)
    mixed = replace(llm, turns=(replace(llm.turns[0], completion=None), llm.turns[1]))
    for episode in (human, mixed, replace(human, turns=())):
        with pytest.raises(ValueError, match="cannot be trained on"):
            episode_rows(episode)


def head_gradient(batch: Batch) -> torch.Tensor:
    """Where the loss reaches the language-model head: one number per position."""
    model = small_model()
    seen: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: object, output: object) -> None:
        hidden = output.last_hidden_state  # type: ignore[attr-defined]
        hidden.retain_grad()
        seen.append(hidden)

    handle = model.model.register_forward_hook(keep)
    loss, _ = policy_loss(
        token_logprobs(model, batch), batch, clip=(0.2, 0.28), num_tokens=int(batch.mask.sum())
    )
    loss.backward()
    handle.remove()
    assert seen[0].grad is not None
    return seen[0].grad.abs().sum(dim=-1)


def test_no_gradient_comes_from_what_the_world_wrote() -> None:  # P034
    rng = random.Random(2)
    (row,), _ = episode_rows(play_at_random(rng, num_turns=4))
    row = replace(row, logprobs=(0.0,) * len(row.ids))
    noise = tuple(
        id if on else rng.randrange(5, len(small_tokenizer()))
        for id, on in zip(row.ids, row.mask, strict=True)
    )
    assert noise != row.ids
    # the hidden state at t predicts the token at t + 1
    predicts = torch.tensor([*row.mask[1:], False])
    for ids in (row.ids, noise):
        gradient = head_gradient(make_batch([replace(row, ids=ids, advantages=(1.0,) * len(ids))]))[
            0
        ]
        assert (gradient[~predicts] == 0).all()
        assert (gradient[predicts] > 0).all()


def test_the_loss_does_not_see_the_model_where_it_did_not_write() -> None:  # engines.md rule 4
    batch = make_batch(
        [Row((5, 6, 7, 8), (False, True, False, True), (0.0, -1.0, 0.0, -2.0), (1.5,) * 4)]
    )
    logprobs = torch.tensor([[0.0, -0.5, -9.0, -2.5]])
    got, metrics = policy_loss(logprobs, batch, clip=(0.2, 0.28), num_tokens=2)
    logprobs[0, 2] = -0.001
    again, metrics_again = policy_loss(logprobs, batch, clip=(0.2, 0.28), num_tokens=2)
    assert got.item() == again.item() and metrics == metrics_again


def test_a_conversation_trains_what_the_assistant_says_and_its_end() -> None:
    said = [Message("user", "look"), Message("assistant", "open box 1"), Message("system", "hm")]
    row = conversation_row(said, encoder())
    assert trained(row) == (*encoder().text_ids("open box 1"), encoder().end)
    assert row.ids == tuple(id for message in said for id in encoder().message(message))


def test_log_probabilities_are_those_of_a_plain_forward_pass_and_ignore_padding() -> None:
    """engines.md rule 18: alone or padded beside longer rows, the same."""
    model = small_model()
    rows = [row for e in group_of([0.0] * 4, seed=3).episodes for row in episode_rows(e)[0]]
    assert len({len(row.ids) for row in rows}) > 1
    with torch.no_grad():
        together = token_logprobs(model, make_batch(rows), temperature=0.7)
        for row, got in zip(rows, together, strict=True):
            logits = model(input_ids=torch.tensor([row.ids])).logits[0].double() / 0.7
            want = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(row.ids[1:])[:, None])[:, 0]
            want = torch.cat([torch.zeros(1), want]) * torch.tensor(row.mask)
            assert_close(got[: len(row.ids)].double(), want, atol=1e-5, rtol=0)
            assert (got[len(row.ids) :] == 0).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_every_row_is_in_one_part_and_no_part_is_too_large(sizes: list[int], most: int) -> None:
    rows = [Row((number,) * size, (False,) * size) for number, size in enumerate(sizes)]
    parts = split_rows(rows, most)
    assert sorted(row.ids for part in parts for row in part) == sorted(row.ids for row in rows)
    for part in parts:
        assert len(part) == 1 or len(part) * max(len(row.ids) for row in part) <= most


def test_rows_and_batches_with_parts_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 ids, and"):
        Row((1, 2), (True,))
    with pytest.raises(ValueError, match="2 ids, and"):
        Row((1, 2), (True, True), (0.5,))
    a, b = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="shapes differ"):
        Batch(a, a, b, a, a)
