"""A public fake: answers from a list or a function, so that tests and users can drive real code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dreamgym.llm.base import Message, Sampling
from dreamgym.types import Completion


class ScriptExhausted(AssertionError):
    """The code asked more often than the script answers."""


class ScriptedLLM:
    """Answers in order, or by a function of the prompt; keeps every prompt it was asked with.

    An answer may be a whole `Completion`, to script a cut-off (`finish_reason="length"`) or ids.
    """

    def __init__(
        self, answers: Iterable[str | Completion] | Callable[[Sequence[Message]], str | Completion]
    ) -> None:
        self._answer = answers if callable(answers) else None
        self._script = iter(() if callable(answers) else answers)
        self.prompts: list[tuple[Message, ...]] = []

    async def complete(
        self, prompt: Sequence[Message], sampling: Sampling, *, session: str = ""
    ) -> Completion:
        self.prompts.append(tuple(prompt))
        answer = self._answer(prompt) if self._answer else next(self._script, None)
        if answer is None:
            raise ScriptExhausted(f"no answer is left for call {len(self.prompts)}")
        return answer if isinstance(answer, Completion) else Completion(answer)

    async def release(self, session: str) -> None:
        return None
