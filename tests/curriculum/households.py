"""A dream of one generated room that is as good as the room itself, and writes what it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dreamgym.build import first_states, true_facts
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.prompts import VARIANT_REQUEST, Answer, answer_text
from dreamgym.llm.base import Message, Sampling
from dreamgym.types import Completion, Task

GAME: Game = generate_games(6, seed=11, tasks_per_room=2)[5]
"""Put some cloth on sidetable. Three cloths lie about: on the countertop, the shelf, the toilet."""
SEED: Task = first_states([GAME])[0]

Respond = Callable[[FastGame, str], str]


def by_the_engine(play: FastGame, action: str) -> str:
    return play.step(action)[0]


class HouseLLM:
    """Answers by a game's engine, one game a session; knows nothing of hidden states."""

    def __init__(self, variants: Iterable[str], respond: Respond = by_the_engine) -> None:
        self._left = iter(variants)
        self._respond = respond
        self._plays: dict[str, FastGame] = {}

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        if prompt[-1].text == VARIANT_REQUEST:
            return Completion(next(self._left, ""))
        action = prompt[-2].text
        if session not in self._plays:
            self._plays[session] = FastGame(GAME)
            self._plays[session].reset()
        answer = Answer(self._respond(self._plays[session], action), 0.0, False)
        return Completion(answer_text(answer))

    async def release(self, session: str) -> None:
        self._plays.pop(session, None)


def house_dream(*variants: str, respond: Respond = by_the_engine) -> DreamWorld:
    """Of `GAME`, whose hidden state is known in full to its own task alone."""
    known = {SEED.id: true_facts(GAME)}
    llm = HouseLLM(variants, respond)
    return DreamWorld(ExperienceModel(llm, AlfworldText(), ExperienceConfig(k=0), known=known))
