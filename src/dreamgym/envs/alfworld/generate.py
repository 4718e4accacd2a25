"""Makes new household games of ALFWorld's six task types: unseen rooms, without a download.

A game depends only on (seed, split, spec, its number): same arguments, same bytes. Which split may
use a room is decided by what the room holds, so no two splits share one, whatever the seeds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.furnish import Draft, RoomSpec, draw_room, stand
from dreamgym.envs.alfworld.games import SPLITS, Game
from dreamgym.envs.alfworld.planner import solve
from dreamgym.envs.alfworld.problem_text import Aim, write_problem
from dreamgym.types import DreamGymError

GOALS: Mapping[str, tuple[str, ...]] = {  # the official games' own phrases
    "pick_and_place_simple": ("put a {thing} in {target}", "put some {thing} on {target}"),
    "look_at_obj_in_light": (
        "look at {thing} under the {target}",
        "examine the {thing} with the {target}",
    ),
    "pick_clean_then_place_in_recep": (
        "put a clean {thing} in {target}",
        "clean some {thing} and put it in {target}",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {thing} in {target}",
        "heat some {thing} and put it in {target}",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {thing} in {target}",
        "cool some {thing} and put it in {target}",
    ),
    "pick_two_obj_and_place": (
        "put two {thing} in {target}",
        "find two {thing} and put them in {target}",
    ),
}
_SPLIT_OF_BUCKET = ("train", "train", "valid_seen", "valid_unseen")
_ATTEMPTS = 400

DEFAULT_SPEC = RoomSpec()


def generate_games(
    count: int,
    *,
    seed: int,
    split: str = "train",
    spec: RoomSpec = DEFAULT_SPEC,
    tasks_per_room: int = 1,
) -> list[Game]:
    """Make `count` solvable games; the first n of a longer list are the list of n."""
    if split not in SPLITS:
        raise DreamGymError(f"there is no split {split!r}. Use one of {', '.join(SPLITS)}.")
    if count < 0 or tasks_per_room < 1:
        raise DreamGymError(
            f"{count} games with {tasks_per_room} tasks a room cannot be made: "
            "give a count of 0 or more and at least 1 task a room."
        )
    games: list[Game] = []
    while len(games) < count:
        stream = f"{split}_{seed}_{len(games) // tasks_per_room}"
        games += _games_of_one_room(stream, split, spec, tasks_per_room)
    return games[:count]


def _games_of_one_room(stream: str, split: str, spec: RoomSpec, num_tasks: int) -> list[Game]:
    for attempt in range(_ATTEMPTS):
        rng = random.Random(f"{stream}/{attempt}")
        draft = draw_room(rng, spec, num_tasks)
        if draft is None or _split_of(draft) != split:
            continue
        room = stand(rng, draft, spec.shared_locations)
        floor = f"{draft.kind}-{draft.digest()[:12]}"
        names = [f"made_{stream}_{number}" for number in range(num_tasks)]
        games = [
            Game(
                id=f"{aim.task_type}-{aim.thing}-None-{aim.target}-{floor}/{name}",
                split=split,
                task_type=aim.task_type,
                goal=_phrase(rng, aim),
                pddl_problem=write_problem(name, room, aim),
                floor=floor,
            )
            for name, aim in zip(names, draft.aims, strict=True)
        ]
        if all(map(_plays_to_the_end, games)):
            return games
    raise DreamGymError(
        f"no room for {num_tasks} different tasks was found in {_ATTEMPTS} attempts. "
        "Ask for fewer tasks a room, or for more receptacles and things."
    )


def _split_of(draft: Draft) -> str:
    return _SPLIT_OF_BUCKET[int(draft.digest()[:8], 16) % len(_SPLIT_OF_BUCKET)]


def _phrase(rng: random.Random, aim: Aim) -> str:
    phrase = rng.choice(GOALS[aim.task_type])
    return phrase.format(thing=aim.thing.lower(), target=aim.target.lower())


def _plays_to_the_end(game: Game) -> bool:
    """Play the planner's commands: each accepted, and only the last one ends the game."""
    play = FastGame(game)
    play.reset()
    if play.state.goal_met():
        return False
    commands = solve(play.problem)
    if not commands:
        return False
    for number, command in enumerate(commands, start=1):
        _, reward, done, valid = play.step(command)
        if not valid or done != (number == len(commands)):
            return False
    return done and reward == 1.0
