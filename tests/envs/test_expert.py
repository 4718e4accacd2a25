import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dreamgym.envs.alfworld.demonstrate import collect_offline, demonstrate
from dreamgym.envs.alfworld.expert import Expert
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.furnish import RoomSpec
from dreamgym.envs.alfworld.games import Game, load_games
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.mistakes import mistake
from dreamgym.envs.alfworld.planner import plan
from dreamgym.types import DreamGymError, Ending

DATA = Path(os.environ.get("DREAMGYM_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
NOTHING = "Nothing happens."


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return generate_games(120, seed=21)


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> tuple[Game, ...]:
    if not (DATA / "alfworld" / "games_valid_unseen.jsonl.xz").is_file():
        pytest.skip(f"the official games are not under {DATA}: set DREAMGYM_DATA")
    monkeypatch.setenv("DREAMGYM_DATA", str(DATA))
    return load_games("official", "valid_unseen")


def play_on(game: Game, opening: list[str], *, max_turns: int = 50) -> list[str]:
    """Someone else begins, the expert watches and goes on; its actions, if it wins."""
    play = FastGame(game)
    expert = Expert(game.goal, play.reset(), seed=1)
    for action in opening:
        state, _, done, valid = play.step(action)
        assert valid, action
        assert not done, action
        expert.observe(action, state)
    actions = []
    for _ in range(max_turns):
        actions.append(expert.act())
        state, _, done, _ = play.step(actions[-1])
        if done:
            return actions
        expert.observe(actions[-1], state)
    raise AssertionError(f"not won after {opening}: {actions}")


def test_expert_wins_in_made_games_without_a_single_refused_command(games: list[Game]) -> None:
    episodes = [demonstrate(game, "expert", seed=0) for game in games]
    assert sum(episode.success for episode in episodes) >= 0.98 * len(games)
    assert all(turn.valid for episode in episodes for turn in episode.turns)


def test_expert_wins_where_places_share_a_spot() -> None:
    games = generate_games(60, seed=22, spec=RoomSpec(shared_locations=0.5))
    episodes = [demonstrate(game, "expert", seed=0) for game in games]
    assert sum(episode.success for episode in episodes) >= 0.95 * len(games)
    assert not all(turn.valid for e in episodes for turn in e.turns)  # it learns who shares by noes


def test_expert_wins_in_large_rooms() -> None:
    games = generate_games(40, seed=23, spec=RoomSpec(receptacles=(20, 27), things=(30, 40)))
    assert sum(demonstrate(game, "expert", seed=0).success for game in games) >= 38


def test_noise_does_not_stop_the_expert(games: list[Game]) -> None:
    episodes = [demonstrate(game, "noisy", seed=0) for game in games]
    assert sum(episode.success for episode in episodes) >= 0.95 * len(games)
    refused = sum(not turn.valid for e in episodes for turn in e.turns)
    assert refused > 0.02 * sum(len(e.turns) for e in episodes)


def test_expert_wins_in_the_official_unseen_games(official: tuple[Game, ...]) -> None:
    episodes = [demonstrate(game, "expert", seed=0) for game in official]
    assert sum(episode.success for episode in episodes) >= 0.95 * len(official)


def test_planner_wins_every_official_unseen_game(official: tuple[Game, ...]) -> None:
    for game in official:
        play = FastGame(game)
        play.reset()
        answers = [play.step(command) for command in plan(game)]
        assert all(valid for *_, valid in answers), game.id
        assert answers[-1][2], game.id


def test_no_lucky_expert_is_faster_than_the_plan(games: list[Game]) -> None:
    equal = 0
    for game in games:
        best = min(len(demonstrate(game, "expert", seed=seed).turns) for seed in range(6))
        assert len(plan(game)) <= best, game.id
        equal += len(plan(game)) == best
    assert equal > 60


def test_planner_refuses_what_cannot_be_won(games: list[Game]) -> None:
    game = next(g for g in games if g.task_type == "pick_and_place_simple")
    thing = game.id.split("-")[1]
    locked = game.pddl_problem.replace("(pickupable " + thing, "(cleanable " + thing)
    with pytest.raises(DreamGymError, match="cannot win"):
        plan(replace(game, pddl_problem=locked))


def test_expert_does_not_see_into_places_before_it_looks(games: list[Game]) -> None:
    """Move a thing between two places that an episode never showed: nothing may change in it."""
    compared = 0
    for game in games:
        episode = demonstrate(game, "expert", seed=3)
        play = FastGame(game)
        shown = " ".join(turn.next_state for turn in episode.turns)
        names = play.problem.names
        hidden = [r for r in play.receptacles if f"the {names[r]}, you see" not in shown]
        hidden = [r for r in hidden if f"open the {names[r]}" not in shown]
        full = next((r for r in hidden if play.problem.contents.get(r)), None)
        target = play.problem.goal.receptacle_type  # a thing put there could end the game
        other = next(
            (r for r in hidden if r != full and play.problem.receptacle_types[r] != target), None
        )
        if full is None or other is None:
            continue
        thing = min(play.problem.contents[full])
        swapped = _moved(game, thing, full, other)
        assert FastGame(swapped).problem != play.problem
        assert demonstrate(swapped, "expert", seed=3) == episode
        compared += 1
    assert compared > 50


def _moved(game: Game, thing: str, source: str, target: str) -> Game:
    lines = game.pddl_problem.splitlines(keepends=True)
    old = f"(inreceptacle {thing} {source})"
    ids = {word.strip("()").lower(): word.strip("()") for line in lines for word in line.split()}
    new = f"        (inReceptacle {ids[thing]} {ids[target]})\n"
    text = "".join(new if line.strip().lower() == old else line for line in lines)
    return replace(game, pddl_problem=text)


def test_expert_puts_a_wrong_thing_down_and_goes_on(games: list[Game]) -> None:
    recovered = 0
    for game in games:
        play = FastGame(game)
        play.reset()
        wanted = game.id.split("-")[1].lower()
        for place in play.receptacles:
            name = play.problem.names[place]
            play.reset()
            play.step(f"go to {name}")
            wrong = [c for c in play.admissible() if c.startswith("take") and wanted not in c]
            if wrong:
                actions = play_on(game, [f"go to {name}", wrong[0]])
                assert any(a.startswith("move " + wrong[0].split(" from ")[0][5:]) for a in actions)
                recovered += 1
                break
    assert recovered > 60


def test_expert_finds_a_thing_that_was_carried_off_and_opens_a_door_that_was_shut() -> None:
    spec = RoomSpec(rooms=("kitchen",), task_types={"pick_cool_then_place_in_recep": 1.0})
    for game in generate_games(20, seed=5, spec=spec):
        *fetch, _ = plan(game)
        cooled = next(i for i, command in enumerate(fetch) if command.startswith("cool"))
        thing = fetch[cooled].split(" with ")[0].removeprefix("cool ")
        fridge = fetch[cooled].split(" with ")[1]
        opening = fetch[:cooled]
        if f"open {fridge}" not in opening:
            opening.append(f"open {fridge}")
        play_on(game, [*opening, f"move {thing} to {fridge}", f"close {fridge}"])


def test_demonstrations_vary_with_the_seed_and_with_nothing_else(games: list[Game]) -> None:
    runs = [[demonstrate(g, "expert", seed=s) for g in games[:40]] for s in (1, 2, 1)]
    assert runs[0] == runs[2]
    same = sum(a == b for a, b in zip(runs[0], runs[1], strict=True))
    assert same < 25


def test_expert_refuses_an_instruction_it_cannot_read() -> None:
    with pytest.raises(DreamGymError, match="cannot read"):
        Expert("make me happy", "You are in the middle of a room.")


def test_an_episode_is_what_the_world_said(games: list[Game]) -> None:
    for agent in ("expert", "noisy", "random"):
        for game in games[:20]:
            episode = demonstrate(game, agent, seed=4)
            play = FastGame(game)
            state = play.reset()
            assert episode.task.first_state == state
            assert episode.world == "real"
            done = False
            for turn in episode.turns:
                assert not done
                assert turn.state == state
                state, reward, done, valid = play.step(turn.action)
                assert (turn.next_state, turn.reward, turn.valid) == (state, reward, valid)
            assert episode.ending is (Ending.DONE if done else Ending.TURN_LIMIT)
            assert episode.reward == float(done)


def test_random_agent_does_a_bit_of_everything_and_about_six_percent_in_vain(
    games: list[Game],
) -> None:
    turns = [turn for game in games for turn in demonstrate(game, "random", seed=0).turns]
    refused = [turn for turn in turns if not turn.valid]
    assert 0.04 < len(refused) / len(turns) < 0.08
    assert {turn.next_state for turn in refused} == {NOTHING}
    verbs = Counter(turn.action.split()[0] for turn in turns if turn.valid)
    assert {"go", "take", "move", "open", "close", "examine", "look", "inventory"} <= set(verbs)
    assert 0 < verbs["help"] < 0.005 * len(turns)
    wrong = Counter(turn.action.split()[0] for turn in refused)
    assert {"go", "take", "move", "open", "use", "clean"} <= set(wrong)
    assert "put" in wrong or "pick" in wrong or "think:" in wrong  # rarely not a command at all


def test_a_mistake_is_always_refused(games: list[Game]) -> None:
    seen: Counter[str] = Counter()
    for number, game in enumerate(games[:40]):
        rng = random.Random(number)
        play = FastGame(game)
        play.reset()
        for _ in range(60):
            command = mistake(play, rng)
            closed = any(not play.state.accessible(place) for place in play.here())
            if command.startswith("take"):
                seen["hands full"] += play.state.held is not None
                seen["closed"] += closed
            state, _, _, valid = play.step(command)
            assert (state, valid) == (NOTHING, False), command
            play.step(rng.choice(play.admissible()))
    assert seen["hands full"] > 20
    assert seen["closed"] > 20


def test_turn_limit_is_kept(games: list[Game]) -> None:
    episode = demonstrate(games[0], "random", seed=0, max_turns=3)
    assert len(episode.turns) == 3
    assert episode.ending is Ending.TURN_LIMIT


def test_collect_offline_keeps_the_mix_and_goes_round_the_games(games: list[Game]) -> None:
    few = games[:4]
    episodes = list(collect_offline(few, {"expert": 6, "random": 5}, seed=0))
    assert Counter(e.task.id for e in episodes[:6]) == {
        few[0].id: 2, few[1].id: 2, few[2].id: 1, few[3].id: 1
    }  # fmt: skip
    assert len(episodes) == 11
    randoms = [e for e in episodes[6:] if e.task.id == few[0].id]
    assert randoms[0] != randoms[1]  # the second round is another attempt
    assert list(collect_offline(few, {"expert": 6, "random": 5}, seed=0)) == episodes


@pytest.mark.parametrize(
    "mix, says", [({"hero": 1}, "no agent 'hero'"), ({"expert": -1}, "0 or more")]
)
def test_collect_offline_refuses_a_wrong_mix(
    games: list[Game], mix: dict[str, int], says: str
) -> None:
    with pytest.raises(DreamGymError, match=says):
        list(collect_offline(games, mix, seed=0))


def test_collect_offline_refuses_no_games() -> None:
    with pytest.raises(DreamGymError, match="no game"):
        list(collect_offline([], {"expert": 1}, seed=0))
