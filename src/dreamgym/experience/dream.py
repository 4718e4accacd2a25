"""The dream: an `Env` like any other, over the experience model."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dreamgym.experience.hidden import HiddenState
from dreamgym.experience.model import ExperienceModel
from dreamgym.experience.prompts import Answer, beginning
from dreamgym.llm.base import Message
from dreamgym.types import DreamFault, Ending, StepResult, Task


class DreamWorld:
    """Makes dream environments. The attempts of one group start from one hidden state."""

    def __init__(self, model: ExperienceModel) -> None:
        self.model = model
        self._starts: dict[tuple[str, int], asyncio.Task[Mapping[str, str]]] = {}
        self._number = itertools.count()

    def make_env(self, task: Task, group: int, noise: int = 0) -> DreamEnv:
        """A `MakeEnv`: the group's number seeds its hidden state; `noise` what is sampled."""
        return DreamEnv(self, task, group, next(self._number), noise)

    def fork(self, snapshot: Snapshot) -> DreamEnv:
        """A dream that goes on from a snapshot, and of which nothing comes back to it."""
        env = self.make_env(snapshot.task, snapshot.group)
        env.resume(snapshot)
        return env

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dream at one moment; `DreamWorld.fork` goes on from it as often as one likes."""

    task: Task
    group: int
    state: str
    facts: Mapping[str, str]
    past: tuple[Message, ...]


class DreamEnv:
    """One dreamt episode."""

    def __init__(
        self, world: DreamWorld, task: Task, group: int, number: int, noise: int = 0
    ) -> None:
        self._world, self._model = world, world.model
        self._task, self._group = task, group
        self._session = f"dream/{number}"
        self._noise = noise
        self._past: list[Message] = []
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
        facts = await self._world.start_facts(task, self._group)
        past = tuple(beginning(self._model.config, task))
        self.resume(Snapshot(task, self._group, task.first_state, facts, past))
        return self._state

    def resume(self, snapshot: Snapshot) -> None:
        """Stand where a snapshot was taken."""
        self._task, self._group, self._state = snapshot.task, snapshot.group, snapshot.state
        self.hidden, self._past = HiddenState(snapshot.facts), list(snapshot.past)
        self._started = True

    def snapshot(self) -> Snapshot:
        """This moment, to fork from; raises DreamFault before the start and after the end."""
        self._require_running()
        facts = dict(self.hidden.facts)
        return Snapshot(self._task, self._group, self._state, facts, tuple(self._past))

    async def step(self, action: str) -> StepResult:
        """Ask the experience model, unless a rule of the world is certain that the action fails."""
        self._require_running()
        if self._refused(action):
            self._model.tally["refused"] += 1
            return StepResult(self._model.text.failure, 0.0, valid=False, by="rule")
        facts = self.hidden.about(action)
        asked = self._model.ask(self._past, self._state, action, facts, self._task)
        told = f"{self._task.id}/{self._group}/{self._noise}/{len(self._past)}/{self._state}"
        seed = zlib.crc32(told.encode())
        answer, message = await self._model.answer(
            asked, self._session, seed, lambda answer: self._check(action, answer)
        )
        self._past = [*asked, message] if self._model.config.history else self._past
        self.hidden.update(self._changes(action, answer))
        reward, done = self._judge(answer)
        self._state, self._over = answer.next_state, done
        return StepResult(
            answer.next_state,
            reward,
            Ending.DONE if done else None,
            valid=answer.next_state != self._model.text.failure,
            by="model",
        )

    def _require_running(self) -> None:
        if self._over or not self._started:
            raise DreamFault("OVER", "this dream has not begun, or has ended")

    def _refused(self, action: str) -> bool:
        text = self._model.text
        if not text.well_formed(action):
            return True
        return self._model.config.rules and text.refuses(action, self.hidden.facts)

    def _changes(self, action: str, answer: Answer) -> Sequence[str]:
        if not self._model.config.hidden:
            return ()
        return self._model.text.changes(self.hidden.facts, action, answer.next_state)

    def _judge(self, answer: Answer) -> tuple[float, bool]:
        """The reward and whether the episode is over, by whoever is to judge."""
        if self._model.config.judge == "model":
            return answer.reward, answer.done
        met = self._model.text.met(self._task.instruction, self.hidden.facts)
        if met is None:
            return answer.reward, answer.done
        self._model.tally["disagreed"] += met != (answer.reward > 0)
        return float(met), met

    def _check(self, action: str, answer: Answer) -> None:
        """Refuse what the dream's own past rules out, and a success that no fact supports."""
        config, text = self._model.config, self._model.text
        if config.guard:
            amiss = text.contradiction(self.hidden.facts, action, answer.next_state)
            if amiss:
                raise DreamFault("INCONSISTENT", amiss)
        if config.judge == "model" and config.hidden and answer.reward > 0:
            after = self.hidden.fork()
            after.update(self._changes(action, answer))
            if text.met(self._task.instruction, after.facts) is False:
                raise DreamFault("SPURIOUS", "a success that the dream's own facts do not support")

    async def close(self) -> None:
        self._over = True
        await self._model.llm.release(self._session)
