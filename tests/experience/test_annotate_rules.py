"""Reasons by the household's own reader: a cause for every refusal, and no answer given away."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dreamgym.envs.alfworld.demonstrate import demonstrate
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.experience.annotate import (
    MAX_REASON,
    RULES,
    annotate_by_rules,
    read_logs,
    restates,
)
from dreamgym.replay.checks import Provenance
from dreamgym.replay.rows import Where
from dreamgym.replay.store import ReplayStore
from dreamgym.types import Turn

TEXT = AlfworldText()
GAMES = 40


@pytest.fixture(scope="module", params=["expert", "noisy", "random"])
def household(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplayStore]:
    games = generate_games(GAMES, seed=5)
    episodes = [demonstrate(game, request.param, seed=i) for i, game in enumerate(games)]
    with ReplayStore(tmp_path_factory.mktemp(request.param) / "replay.sqlite") as store:
        store.add_episodes(episodes, provenance=Provenance("offline", request.param, "train"))
        assert annotate_by_rules(store, TEXT) == {"OK": GAMES}
        yield store


def explained(store: ReplayStore) -> list[tuple[Turn, str]]:
    """Every turn of a store with the reason that was kept for it."""
    return [
        (turn, note.reason)
        for episode, annotation in read_logs(store, TEXT, RULES)
        for turn, note in zip(episode.turns, annotation.notes, strict=True)
    ]


def test_the_rules_annotate_every_episode_once_and_for_nothing(household: ReplayStore) -> None:
    kept = household.annotations(RULES)
    logs = read_logs(household, TEXT)
    assert len(kept) == len(logs) == GAMES
    assert sorted(kept.values()) == sorted(tuple(n.reason for n in a.notes) for _, a in logs)
    assert all(len(a.notes) == len(e.turns) for e, a in logs)
    assert annotate_by_rules(household, TEXT) == {}
    assert household.ledger(RULES)["calls"] == 0


def test_no_rule_gives_the_answer_away(household: ReplayStore) -> None:
    turns = explained(household)
    assert [(reason, turn) for turn, reason in turns if restates(reason, turn.next_state)] == []
    assert [turn.action for turn, reason in turns if not reason] == []
    assert sum(len(turn.next_state) >= 20 for turn, _ in turns) > 0.8 * len(turns)
    assert [reason for _, reason in turns if "think>" in reason or len(reason) > MAX_REASON] == []


def test_what_changes_the_world_has_a_reason_of_its_own(household: ReplayStore) -> None:
    acting = [
        (turn.action, reason)
        for turn, reason in explained(household)
        if turn.action.split()[0] in ("go", "take", "move", "open")
        and TEXT.well_formed(turn.action)
    ]
    assert len(acting) > 5 * GAMES
    for action, reason in acting:
        place = " ".join(action.split()[-2:])
        assert place in reason, (action, reason)


def names_a_cause(action: str, reason: str) -> bool:
    """Whether a condition of the action is named as unmet."""
    verb, *_ = action.split()
    thing = re.findall(r"[a-z]+ \d+", action)[0]
    there = re.search(r"there: ([^.]*)", reason)
    return {
        "go": reason.startswith("You are at") or "no place" in reason,
        "open": "it is open" in reason,
        "close": "it is closed" in reason,
        "take": "you carry nothing" not in reason
        or "it is closed" in reason
        or (there is not None and thing not in there[1])
        or "nobody has seen into it" in reason,
        "move": "you carry it" not in reason or "it is closed" in reason,
        "examine": False,
        "use": False,
    }.get(verb, "you carry it" not in reason) or any(
        unmet in reason for unmet in ("not at", "not before", "do not", "without a door", "cannot")
    )


@pytest.mark.parametrize("household", ["noisy", "random"], indirect=True)  # experts are not refused
def test_what_the_world_refuses_has_a_cause(household: ReplayStore) -> None:
    refused = [
        (turn.action, reason)
        for turn, reason in explained(household)
        if not turn.valid and TEXT.well_formed(turn.action)
    ]
    unexplained = [told for told in refused if not names_a_cause(*told)]
    assert len(refused) > 20
    assert unexplained == []


def test_what_is_no_action_is_told_so_and_nothing_else(household: ReplayStore) -> None:
    told = {
        (TEXT.well_formed(turn.action), reason == "This is no action.")
        for turn, reason in explained(household)
    }
    assert told <= {(True, False), (False, True)}


def test_hardly_any_action_that_works_is_told_a_cause_to_fail(household: ReplayStore) -> None:
    """So the causes above are findings, not words that always stand there."""
    worked = [
        (turn.action, reason)
        for turn, reason in explained(household)
        if turn.valid and turn.action.split()[0] in ("take", "move", "open", "close")
    ]
    wrong = [told for told in worked if names_a_cause(*told)]
    assert worked and len(wrong) <= 0.02 * len(worked), wrong[:5]


def test_the_rules_give_every_log_with_the_readers_notes(household: ReplayStore) -> None:
    logs = read_logs(household, TEXT)
    assert [episode for episode, _ in logs] == list(household.episodes())
    assert all(annotation == TEXT.annotate(episode) for episode, annotation in logs)


def test_a_teacher_gives_its_own_reasons_beside_the_readers_facts(household: ReplayStore) -> None:
    named = list(household.named_episodes(Where()))[::10]
    for episode_id, episode in named:
        reasons = [f"Cause {i} in {episode.task.id}." for i in range(len(episode.turns))]
        household.add_annotation(episode_id, "teacher", reasons, {})
    logs = read_logs(household, TEXT, "teacher")
    assert [episode for episode, _ in logs] == [episode for _, episode in named]
    for episode, annotation in logs:
        read = TEXT.annotate(episode)
        assert annotation.start == read.start
        assert [note.facts for note in annotation.notes] == [note.facts for note in read.notes]
        reasons = [note.reason for note in annotation.notes]
        assert reasons == [f"Cause {i} in {episode.task.id}." for i in range(len(episode.turns))]
