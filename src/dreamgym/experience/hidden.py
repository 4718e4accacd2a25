"""The hidden state: an episode's facts, a sentence per entity, looked up by the action's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

ENTITY = re.compile(r"\b[a-z]+ \d+\b")
AGENT = "you"


def subject(fact: str) -> str:
    """The entity a fact is about: the agent, or the first one the sentence names."""
    if fact.startswith("You "):
        return AGENT
    found = ENTITY.search(fact)
    return found[0] if found else ""


class HiddenState:
    """Facts by subject. A newer sentence about the same entity replaces the older one."""

    def __init__(self, facts: Mapping[str, str] | None = None) -> None:
        self._facts = dict(facts or {})

    @property
    def facts(self) -> Mapping[str, str]:
        return self._facts

    def fork(self) -> HiddenState:
        """A copy of its own: attempts of one group start from one hidden state and then diverge."""
        return HiddenState(self._facts)

    def update(self, facts: Iterable[str]) -> None:
        for fact in facts:
            if key := subject(fact):
                self._facts[key] = fact

    def about(self, action: str) -> list[str]:
        """Facts on the action's entities and on the agent; on what it stands before if those lack.

        Looked up after the action and never rewritten, so that prompts only ever grow.
        """
        named = [key for key in dict.fromkeys(ENTITY.findall(action)) if key in self._facts]
        agent = self._facts.get(AGENT, "")
        near = [] if named else [key for key in ENTITY.findall(agent) if key in self._facts]
        return (
            [self._facts[key] for key in named]
            + [agent] * bool(agent)
            + [self._facts[key] for key in near]
        )
