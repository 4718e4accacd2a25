"""Household policies of known strength, as `LLM`s that read nothing but their prompt.

They play in a dream as in the real world, and measure how far the two agree.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from dreamgym.envs.alfworld.expert import Expert
from dreamgym.envs.alfworld.facts import ENTITY
from dreamgym.llm.base import LLM, Message, Sampling
from dreamgym.types import Completion, DreamGymError

_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$", re.DOTALL)
_TASK_AGAIN = re.compile(r"\nTask: [^\n]*$")


class RandomPolicy:
    """Any well-formed action about what has been seen; mostly it walks about."""

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        rng = random.Random(f"{session}/{sampling.seed}")
        return Completion(random_action([m.text for m in prompt if m.role == "user"], rng))

    async def release(self, session: str) -> None:
        return None


def random_action(states: Sequence[str], rng: random.Random) -> str:
    """Something to do with the places of the first state and the things of all of them."""
    places = list(dict.fromkeys(ENTITY.findall(_TASK.sub("", states[0])))) or ["drawer 1"]
    seen = dict.fromkeys(name for state in states[1:] for name in ENTITY.findall(state))
    things = [name for name in seen if name not in places] or places
    place, thing = rng.choice(places), rng.choice(things)
    here = next((n for s in reversed(states[1:]) for n in ENTITY.findall(s) if n in places), place)
    return rng.choice(
        [
            *[f"go to {place}"] * 4,
            *[f"open {here}", f"take {thing} from {here}", f"move {thing} to {here}"] * 2,
            *[f"close {here}", f"examine {here}", f"use {thing}", "look", "inventory"],
            *(f"{verb} {thing} with {here}" for verb in ("clean", "heat", "cool")),
        ]
    )


class ExpertPolicy:
    """The searching expert; a share of its actions may be random ones."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self._games: dict[str, tuple[Expert, int]] = {}  # with the number of states it has seen

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        states = [_TASK_AGAIN.sub("", m.text) for m in prompt if m.role == "user"]
        actions = [m.text for m in prompt if m.role == "assistant"]
        expert, seen = self._games.get(session) or (_expert(states[0], session), 1)
        for action, state in zip(actions[seen - 1 :], states[seen:], strict=True):
            expert.observe(action, state)
        self._games[session] = expert, len(states)
        rng = random.Random(f"{session}/{sampling.seed}")
        if rng.random() < self.noise:
            return Completion(random_action(states, rng))
        return Completion(expert.act())

    async def release(self, session: str) -> None:
        self._games.pop(session, None)


def _expert(first_state: str, session: str) -> Expert:
    told = _TASK.search(first_state)
    if told is None:
        raise DreamGymError("the expert found no task in the first state it was shown")
    return Expert(told[1], first_state, seed=random.Random(session).randrange(2**32))


class Always:
    """Says the same at every turn: the probe that must not be paid."""

    def __init__(self, action: str) -> None:
        self.action = action

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        return Completion(self.action)

    async def release(self, session: str) -> None:
        return None


class Repeating(RandomPolicy):
    """One random action, then the same one for ever."""

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        first = [Message("user", next(m.text for m in prompt if m.role == "user"))]
        same = Sampling(sampling.temperature, sampling.max_tokens, 0)
        return await super().complete(first, same, session=session)


PROBES: dict[str, LLM] = {
    "no-op": Always("look"),
    "random": RandomPolicy(),
    "repeat": Repeating(),
    "claims to be done": Always("I have completed the task."),
}
"""Agents that solve nothing: a dream that pays them can be cheated."""
