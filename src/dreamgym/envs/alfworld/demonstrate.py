"""Plays whole episodes in the fast engine: the offline experience to learn from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from dreamgym.envs.alfworld.expert import Expert
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.mistakes import misreading, mistake, slip
from dreamgym.types import DreamGymError, Ending, Episode, Turn

AGENTS = ("expert", "random", "noisy")
_MISTAKE_SHARE = 0.06  # of the random agent's actions: commands the world refuses
_NOISE_SHARE = 0.25  # of the noisy expert's actions
_NOISE_MISTAKE_SHARE = 0.3  # of that noise: commands the world refuses
_SLIP_SHARE = 0.5  # of that noise: near misses of what the expert meant to do
_MISREAD_SHARE = 0.4  # of the noisy expert's episodes begin with another task in mind
_MISREAD_TURNS = 12
_HELP_SHARE = 0.002  # `help` is long and says the same every time
"""How often a random agent that could ask for help does."""


def demonstrate(game: Game, agent: str, *, seed: int, max_turns: int = 50) -> Episode:
    """Play one episode of a game as one of AGENTS; the same seed plays the same episode."""
    if agent not in AGENTS:
        raise DreamGymError(f"there is no agent {agent!r}. Use one of {', '.join(AGENTS)}.")
    if max_turns < 1:
        raise DreamGymError(f"max_turns is {max_turns}: an episode needs at least one turn.")
    return _play(FastGame(game), agent, random.Random(f"{game.id}/{agent}/{seed}"), max_turns)


def collect_offline(
    games: Sequence[Game], mix: Mapping[str, int], seed: int, *, max_turns: int = 50
) -> Iterator[Episode]:
    """Play `mix[agent]` episodes of each agent, going round the games again and again."""
    for agent, number in mix.items():
        if agent not in AGENTS:
            raise DreamGymError(f"there is no agent {agent!r}. Use some of {', '.join(AGENTS)}.")
        if number < 0:
            raise DreamGymError(f"the mix asks for {number} {agent} episodes: give 0 or more.")
    if not games and any(mix.values()):
        raise DreamGymError("there is no game to play. Generate some or load the official ones.")
    for agent, number in mix.items():
        for index, game in zip(range(number), cycle(games)):
            yield demonstrate(game, agent, seed=seed + index // len(games), max_turns=max_turns)


def _play(play: FastGame, agent: str, rng: random.Random, max_turns: int) -> Episode:
    state = play.reset()
    task = replace(play.game.task(), first_state=state)
    expert = None
    if agent != "random":
        expert = Expert(task.instruction, state, seed=rng.randrange(2**32))
    misled = None
    if expert is not None and agent == "noisy" and rng.random() < _MISREAD_SHARE:
        misled = Expert(misreading(expert.goal, play, rng), state, seed=rng.randrange(2**32))
    turns: list[Turn] = []
    for number in range(max_turns):
        if number == _MISREAD_TURNS:
            misled = None
        action = _choose(play, misled or expert, agent, rng)
        next_state, reward, done, valid = play.step(action)
        turns.append(Turn(state, action, reward, next_state, valid))
        if done:
            return Episode(task, tuple(turns), Ending.DONE, "real")
        if expert is not None:
            expert.observe(action, next_state)
        if misled is not None:
            misled.observe(action, next_state)
            if valid and action.startswith("move "):
                misled = None  # it is done, and looks at the task again
        state = next_state
    return Episode(task, tuple(turns), Ending.TURN_LIMIT, "real")


def _choose(play: FastGame, expert: Expert | None, agent: str, rng: random.Random) -> str:
    if expert is None:
        return _random_action(play, rng, _MISTAKE_SHARE)
    if agent == "noisy" and rng.random() < _NOISE_SHARE:
        if rng.random() < _SLIP_SHARE:
            return slip(play, expert.goal, expert.act(), rng)
        return _random_action(play, rng, _NOISE_MISTAKE_SHARE)
    return expert.act()


def _random_action(play: FastGame, rng: random.Random, mistake_share: float) -> str:
    if rng.random() < mistake_share:
        return mistake(play, rng)
    if rng.random() < _HELP_SHARE:
        return "help"
    return rng.choice([command for command in play.admissible() if command != "help"])
