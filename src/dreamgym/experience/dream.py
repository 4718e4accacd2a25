"""The dream: an `Env` like any other, over the experience model."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Mapping

from dreamgym.experience.hidden import HiddenState
from dreamgym.experience.model import ExperienceModel
from dreamgym.experience.prompts import Answer, opening
from dreamgym.llm.base import Message
from dreamgym.types import DreamFault, Ending, StepResult, Task


class DreamWorld:
    """Makes dream environments. The attempts of one group start from one hidden state."""

    def __init__(self, model: ExperienceModel) -> None:
        self.model = model
        self._starts: dict[tuple[str, int], asyncio.Task[Mapping[str, str]]] = {}
        self._number = itertools.count()

    def make_env(self, task: Task, group: int) -> DreamEnv:
        """A `MakeEnv`: the group's number seeds its hidden state."""
        return DreamEnv(self, task, group, next(self._number))

    async def start_facts(self, task: Task, group: int) -> Mapping[str, str]:
        """The group's hidden state; whoever of the group asks first has it written."""
        key = (task.id, group)
        if key not in self._starts:
            seed = zlib.crc32(f"{task.id}/{group}".encode())
            self._starts[key] = asyncio.create_task(self.model.imagine(task, seed))
        return await self._starts[key]

    def forget(self) -> None:
        """Drop the hidden states of groups that are over."""
        self._starts.clear()


class DreamEnv:
    """One dreamt episode."""

    def __init__(self, world: DreamWorld, task: Task, group: int, number: int) -> None:
        self._world, self._model = world, world.model
        self._task, self._group = task, group
        self._session = f"dream/{number}"
        self._messages: list[Message] = []
        self._state = ""
        self._started = False
        self._over = False
        self.hidden = HiddenState()

    async def start(self, task: Task) -> str:
        """The first state, which a task brings along; raises DreamFault if no world can hold it."""
        if self._started or self._over:
            raise DreamFault("OVER", "start a second time, or after close")
        if not task.first_state:
            raise DreamFault("NO_FIRST_STATE", f"{task.id} has none: a dream cannot invent it")
        self.hidden = HiddenState(await self._world.start_facts(task, self._group))
        self._messages = [opening(task)]
        self._state, self._started = task.first_state, True
        return self._state

    async def step(self, action: str) -> StepResult:
        """Ask the experience model; an action outside the world's grammar fails without it."""
        if self._over or not self._started:
            raise DreamFault("OVER", "step before start, or after the end")
        if self._refused(action):
            self._model.refused += 1
            return StepResult(self._model.text.failure, 0.0, valid=False)
        asked = self._model.ask(self._state, action, self.hidden.about(action), self._task)
        messages = [*self._messages, *asked]
        seed = zlib.crc32(f"{self._task.id}/{self._group}/{len(messages)}".encode())
        answer, message = await self._model.answer(messages, self._session, seed, self._check)
        self._messages = [*messages, message]
        self.hidden.update(answer.facts)
        reward, done = self._judge(answer)
        self._state, self._over = answer.next_state, done
        return StepResult(
            answer.next_state,
            reward,
            Ending.DONE if done else None,
            valid=answer.next_state != self._model.text.failure,
        )

    def _refused(self, action: str) -> bool:
        text = self._model.text
        if not text.well_formed(action):
            return True
        return self._model.config.rules and text.refuses(action, self.hidden.facts)

    def _judge(self, answer: Answer) -> tuple[float, bool]:
        """The reward and whether the episode is over, by whoever is to judge."""
        if self._model.config.judge == "model":
            return answer.reward, answer.done
        met = self._model.text.met(self._task.instruction, self.hidden.facts)
        if met is None:
            return answer.reward, answer.done
        self._model.disagreed += met != (answer.reward > 0)
        return float(met), met

    def _check(self, answer: Answer) -> None:
        """A success that the model claims and decides must be supported by the dream's facts."""
        if self._model.config.judge != "model":
            return
        after = self.hidden.fork()
        after.update(answer.facts)
        met = self._model.text.met(self._task.instruction, after.facts)
        if answer.reward > 0 and met is False:
            raise DreamFault("SPURIOUS", "a success that the dream's own facts do not support")

    async def close(self) -> None:
        self._over = True
        await self._model.llm.release(self._session)
