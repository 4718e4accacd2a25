"""How a policy is prompted and how its action is read: one grammar for dream and real worlds."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from dreamgym.llm.base import Message, within_budget
from dreamgym.types import Completion, Episode, Turn

_ZERO_WIDTH = re.compile("[\u200b-\u200d\u2060\ufeff]")
_THINK = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_MAX_CHARS = 200


def policy_messages(instruction: str, turns: Sequence[Turn], state: str) -> list[Message]:
    """The whole episode so far: what the agent saw as `user`, what it wrote as `assistant`.

    Every state after the first, which tells the task itself, is followed by the task again: a small
    model that has to look back for it forgets it.
    """
    messages: list[Message] = []
    for turn in turns:
        ids = turn.completion.ids if turn.completion else ()
        seen = _with_task(turn.state, instruction)
        messages += [Message("user", seen), Message("assistant", turn.action, ids)]
    return [*messages, Message("user", _with_task(state, instruction))]


def _with_task(state: str, instruction: str) -> str:
    seen = within_budget(state)
    return seen if instruction in seen else f"{seen}\nTask: {instruction}."


def acting_conversation(episode: Episode) -> list[Message]:
    """A whole episode as its agent saw and wrote it: what behaviour cloning imitates."""
    last = episode.turns[-1]
    ids = last.completion.ids if last.completion else ()
    written = Message("assistant", last.action, ids)
    return [*policy_messages(episode.task.instruction, episode.turns[:-1], last.state), written]


def read_action(completion: Completion) -> str | None:
    """The one action a completion states, or nothing. Prose and a second action are no action.

    Compared in normal form (NFKC, no zero-width characters, one line); the completion keeps what
    was really written, and that is what is trained on.
    """
    text = _THINK.sub("", completion.text)
    text = unicodedata.normalize("NFKC", _ZERO_WIDTH.sub("", text)).strip()
    if len(text.splitlines()) != 1 or len(text) > _MAX_CHARS or "<think>" in text:
        return None
    return text
