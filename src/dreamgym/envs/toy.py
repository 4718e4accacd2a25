"""A tiny world of three boxes, each with one thing inside: for tests and first runs.

The instruction names the thing to take; which box holds it must be found out. Taking the right
thing pays 1, taking a wrong one ends the episode with nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dreamgym.types import DreamGymError, Ending, EnvFault, Episode, StepResult, Task, Turn

THINGS = ("key", "coin", "ring")
NOTHING_HAPPENS = "Nothing happens."
_INSTRUCTION = re.compile(r"take the (\w+)")
_SEEN = re.compile(r"You open box (\d)\. In it, you see a (\w+)\.")


def toy_tasks(num_tasks: int, seed: int = 0) -> list[Task]:
    """Tasks whose things lie in boxes by chance; the same for the same seed."""
    rng = random.Random(seed)
    return [
        Task(
            id=f"toy/{seed}-{index}",
            instruction=f"take the {rng.choice(THINGS)}",
            first_state=_room(),
            kind="toy",
        )
        for index in range(num_tasks)
    ]


def contents_of(task: Task) -> dict[str, str]:
    """What lies in which box: a matter of the task's id alone."""
    things = list(THINGS)
    random.Random(task.id).shuffle(things)
    return {f"box {index}": thing for index, thing in enumerate(things, start=1)}


def wanted_by(task: Task) -> str:
    """The thing the instruction asks for."""
    match = _INSTRUCTION.fullmatch(task.instruction.strip().rstrip("."))
    if match is None or match[1] not in THINGS:
        raise DreamGymError(
            f"the toy world cannot serve {task.instruction!r}. Say 'take the X', with X one of "
            f"{', '.join(THINGS)}."
        )
    return match[1]


def make_toy_env(task: Task, group: int) -> ToyEnv:
    """A `MakeEnv`: a task is the same for every group."""
    return ToyEnv(task)


def _room() -> str:
    return "You are in a room. You see a box 1, a box 2, and a box 3. All of them are closed."


@dataclass(slots=True)
class ToyEnv:
    """One episode. `look`, `open box 2`, `take key`; anything else: nothing happens."""

    task: Task
    opened: set[str] = field(default_factory=set)
    _started: bool = False
    _over: str = ""  # why no further action is taken

    async def start(self, task: Task) -> str:
        """Begin with all boxes closed."""
        if self._started or self._over:
            raise EnvFault("misuse", "start() a second time, or after close()")
        if task != self.task:
            raise EnvFault("misuse", f"task {task.id} is not this env's task {self.task.id}")
        wanted_by(task)
        self._started = True
        return _room()

    async def step(self, action: str) -> StepResult:
        """Take one action; after the ending there is none to take."""
        if not self._started or self._over:
            raise EnvFault("misuse", f"step() {self._over or 'before start()'}")
        action = action.strip()
        if action not in self.admissible():
            return StepResult(NOTHING_HAPPENS, 0.0, valid=False)
        verb, _, name = action.partition(" ")
        if verb == "look":
            return StepResult(self._look(), 0.0)
        if verb == "open":
            self.opened.add(name)
            return StepResult(f"You open {name}. {self._inside(name)}", 0.0)
        self._over = "after the ending"
        reward = float(name == wanted_by(self.task))
        return StepResult(f"You take the {name}.", reward, Ending.DONE)

    def admissible(self) -> list[str]:
        """The commands the world would accept now, sorted."""
        commands = ["look"]
        for box, thing in contents_of(self.task).items():
            commands.append(f"take {thing}" if box in self.opened else f"open {box}")
        return sorted(commands)

    async def close(self) -> None:
        """Nothing can be played any more."""
        self._over = "after close()"

    def _inside(self, box: str) -> str:
        return f"In it, you see a {contents_of(self.task)[box]}."

    def _look(self) -> str:
        if not self.opened:
            return _room()
        seen = [f"Box {box[-1]} is open. {self._inside(box)}" for box in sorted(self.opened)]
        return " ".join(["You are in a room with three boxes.", *seen])


def toy_expert(task: Task, states: Sequence[str]) -> str:
    """The next action: open the boxes in order until the thing is seen, then take it."""
    seen = {box: thing for state in states for box, thing in _SEEN.findall(state)}
    wanted = wanted_by(task)
    if wanted in seen.values():
        return f"take {wanted}"
    return f"open box {min({'1', '2', '3'} - seen.keys())}"


def clumsy_episode(task: Task, rng: random.Random) -> Episode:
    """By one who opens some boxes and then takes any of the things it saw, wanted or not."""
    turns: list[Turn] = []
    state, inside = task.first_state, contents_of(task)
    opened = rng.sample(sorted(inside), rng.randint(1, len(inside)))
    for box in opened:
        told = f"You open {box}. In it, you see a {inside[box]}."
        turns.append(Turn(state, f"open {box}", 0.0, told))
        state = told
    taken = inside[rng.choice(opened)]
    paid = float(taken == wanted_by(task))
    turns.append(Turn(state, f"take {taken}", paid, f"You take the {taken}."))
    return Episode(task, tuple(turns), Ending.DONE, "real")
