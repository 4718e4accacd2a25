"""ALFWorld in plain Python: the engine's rules and its sentences, word for word, at full speed.

The rules are those of ALFWorld's PDDL domain; the sentences those of its grammar. Lists follow
the order of PDDL ids, not of names. `differential.py` plays this beside the engine itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.house import House
from dreamgym.envs.alfworld.pddl import parse_problem
from dreamgym.types import Ending, EnvFault, StepResult, Task

NOTHING_HAPPENS = "Nothing happens."
BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_HELP = (
    ("look", "look around your current location"),
    ("inventory", "check your current inventory"),
    ("go to (receptacle)", "move to a receptacle"),
    ("open (receptacle)", "open a receptacle"),
    ("close (receptacle)", "close a receptacle"),
    ("take (object) from (receptacle)", "take an object from a receptacle"),
    ("move (object) to (receptacle)", "place an object in or on a receptacle"),
    ("examine (something)", "examine a receptacle or an object"),
    ("use (object)", "use an object"),
    ("heat (object) with (receptacle)", "heat an object using a receptacle"),
    ("clean (object) with (receptacle)", "clean an object using a receptacle"),
    ("cool (object) with (receptacle)", "cool an object using a receptacle"),
    ("slice (object) with (object)", "slice an object using a sharp object"),
)
_KNIVES = ("knifetype", "butterknifetype")
_TREATMENTS = {  # verb -> (receptacle's type, what the object must be)
    "clean": ("sinkbasintype", "cleanable"),
    "heat": ("microwavetype", "heatable"),
    "cool": ("fridgetype", "coolable"),
}
_JOINS = {"take": " from ", "move": " to ", "slice": " with "} | dict.fromkeys(
    _TREATMENTS, " with "
)


_parsed = lru_cache(maxsize=512)(parse_problem)  # the attempts of a group share one reading


def help_text() -> str:
    """What `help` prints, in the engine's own columns: one of its lines stands crooked."""
    lines = [f"  {command + ':':<34}{does}" for command, does in _HELP]
    lines = [line.replace(":    place an", ":  place an") for line in lines]
    return "\n".join(["Available commands:", *lines, ""])


def spoken_list(names: Iterable[str]) -> str:
    """`a`, `a, and b`, `a, b, and c`, or `nothing`."""
    names = list(names)
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


class FastGame:
    """One game, synchronous. `reset()` begins it and can begin it again."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.problem = _parsed(game.pddl_problem)
        problem = self.problem
        self.receptacles = sorted(problem.receptacle_types)  # the order of every list
        self.ids = {  # what an action says -> id
            problem.names[entity]: entity
            for entity in (*problem.object_types, *problem.receptacle_types)
        }
        self._at: dict[str, list[str]] = defaultdict(list)
        for receptacle in self.receptacles:
            self._at[problem.receptacle_locations[receptacle]].append(receptacle)
        self.state = House.at_start(problem)

    def reset(self) -> str:
        """Put everything back and return the first state."""
        self.state = House.at_start(self.problem)
        scene = self._facing() if self.here() else self._room(self.receptacles)
        return f"{BANNER}\n\n{scene}\n\nYour task is to: {self.game.goal}."

    def step(self, action: str) -> tuple[str, float, bool, bool]:
        """(state, reward, done, valid) of one action, whatever it says."""
        text = self._apply(action.strip())
        done = self.state.goal_met()
        return text or NOTHING_HAPPENS, float(done), done, text is not None

    def here(self) -> list[str]:
        """The receptacles the agent stands at: often one, sometimes several, at the start none."""
        return self._at.get(self.state.location, [])

    def _apply(self, action: str) -> str | None:
        """Do it and tell it, or None where the engine would not accept it."""
        if action == "look":
            # only the first state describes the room: a later look from nowhere sees nothing
            return self._facing() if self.here() else self._room([])
        if action == "inventory":
            held = self.state.held
            return (
                f"You are carrying: {self._a(held)}." if held else "You are not carrying anything."
            )
        if action == "help":
            return help_text()
        if action.startswith("go to "):
            return self._go(action.removeprefix("go to "))
        verb, _, rest = action.partition(" ")
        if verb == "examine":
            return self._examine(rest)
        if verb == "use":
            return self._use(rest)
        if verb in ("open", "close"):
            return self._door(verb, rest)
        if verb not in _JOINS:
            return None
        first, _, second = rest.partition(_JOINS[verb])
        subject, target = self.ids.get(first), self.ids.get(second)
        if subject is None or target is None or not self._can(verb, subject, target):
            return None
        return self._handle(verb, subject, target)

    def _go(self, name: str) -> str | None:
        receptacle = self.ids.get(name)
        location = self.problem.receptacle_locations.get(receptacle or "")
        if receptacle is None or location is None or location == self.state.location:
            return None
        self.state.location = location
        return f"You arrive at {name}. {self._inside(receptacle)}"

    def _door(self, verb: str, name: str) -> str | None:
        receptacle = self.ids.get(name)
        if receptacle not in self.here() or not self.problem.has("openable", receptacle):
            return None
        opened = self.state.opened
        if (verb == "open") == (receptacle in opened):
            return None
        if verb == "close":
            opened.discard(receptacle)
            return f"You close the {name}."
        opened.add(receptacle)
        return f"You open the {name}. {self._inside(receptacle)}"

    def _examine(self, name: str) -> str | None:
        entity = self.ids.get(name)
        if entity is None:
            return None
        if entity in self.here():
            return self._inside(entity)
        return self._object(entity) if entity == self.state.held else None

    def _use(self, name: str) -> str | None:
        entity = self.ids.get(name)
        if entity is None or not self.problem.has("toggleable", entity):
            return None
        if not any(entity in self.state.contents[receptacle] for receptacle in self.here()):
            return None
        self.state.toggled.add(entity)
        return f"You turn on the {name}."  # the engine says so every time

    def _can(self, verb: str, subject: str, target: str) -> bool:
        state, problem = self.state, self.problem
        if verb == "slice":
            return (
                target == state.held
                and problem.object_types[target] in _KNIVES
                and problem.has("sliceable", subject)
                and subject in state.object_locations[state.location]
            )
        if target not in self.here():
            return False
        if verb == "take":
            return (
                state.held is None
                and subject in state.contents[target]
                and problem.has("pickupable", subject)
                and state.accessible(target)
            )
        if subject != state.held:
            return False
        receptacle_type = problem.receptacle_types[target]
        if verb == "move":
            pair = (receptacle_type, problem.object_types[subject])
            return pair in problem.can_contain and state.accessible(target)
        wanted, ability = _TREATMENTS[verb]  # clean, heat, cool: through a closed door too
        return receptacle_type == wanted and problem.has(ability, subject)

    def _handle(self, verb: str, subject: str, target: str) -> str:
        state = self.state
        one, two = self.problem.names[subject], self.problem.names[target]
        if verb == "take":
            state.held = subject
            state.contents[target].discard(subject)
            state.object_locations[state.location].discard(subject)
            state.taken_from.add((subject, target))
            return f"You pick up the {one} from the {two}."
        if verb == "move":
            state.held = None
            state.contents[target].add(subject)
            state.object_locations[state.location].add(subject)
            state.taken_from.discard((subject, target))
            return f"You move the {one} to the {two}."
        if verb == "slice":
            state.sliced.add(subject)
            return f"You sliced the {one} with the {two}."
        if verb == "clean":
            state.clean.add(subject)
        elif verb == "heat":
            state.hot.add(subject)
            state.cool.discard(subject)
        else:
            state.cool.add(subject)
            state.hot.discard(subject)
        return f"You {verb} the {one} using the {two}."

    def _a(self, entity: str) -> str:
        return f"a {self.problem.names[entity]}"

    def _room(self, receptacles: list[str]) -> str:
        seen = spoken_list(self._a(receptacle) for receptacle in receptacles)
        return f"You are in the middle of a room. Looking quickly around you, you see {seen}."

    def _facing(self) -> str:
        here = self.here()
        # "next to it" is what was taken out of a receptacle here and put into another one here
        around = self.state.object_locations[self.state.location]
        beside = [
            self._a(entity)
            for entity in sorted(around)
            for receptacle in here
            if (entity, receptacle) in self.state.taken_from
        ]
        facing = spoken_list(self.problem.names[receptacle] for receptacle in here)
        return f"You are facing the {facing}. Next to it, you see {spoken_list(beside)}."

    def _inside(self, receptacle: str) -> str:
        name = self.problem.names[receptacle]
        openable = self.problem.has("openable", receptacle)
        if openable and receptacle not in self.state.opened:
            return f"The {name} is closed."
        seen = spoken_list(map(self._a, sorted(self.state.contents[receptacle])))
        if openable:
            return f"The {name} is open. In it, you see {seen}."
        return f"On the {name}, you see {seen}."

    def _object(self, entity: str) -> str:
        state, name = self.state, self.problem.names[entity]
        if self.problem.has("isreceptacleobject", entity):
            inner = sorted(self.problem.inner_objects.get(entity, ()))
            return f"This is a normal {name}. In it, you see {spoken_list(map(self._a, inner))}."
        clean, hot = entity in state.clean, entity in state.hot
        cool, sliced = entity in state.cool, entity in state.sliced
        if clean and (hot or cool):
            words = "hot and clean " if hot else "cool and clean "
        elif sliced:
            words = "clean " if clean else "hot " if hot else "cool " if cool else ""
        else:
            words = "hot " if hot else "clean " if clean else "cold " if cool else ""
        if words:
            return f"This is a {words}{'sliced ' if sliced else ''}{name}."
        if self.problem.has("toggleable", entity) and entity in state.toggled:
            return f"This {name} is on."
        if sliced and self.problem.has("sliceable", entity):
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    def admissible(self) -> list[str]:
        """Every command that is not answered with "Nothing happens.", sorted."""
        names, state = self.problem.names, self.state
        commands = {"look", "inventory", "help"}
        for receptacle in self.receptacles:
            if self.problem.receptacle_locations[receptacle] != state.location:
                commands.add(f"go to {names[receptacle]}")
        for receptacle in self.here():
            commands.update(self._commands_at(receptacle))
        if state.held is not None:
            held = names[state.held]
            commands.add(f"examine {held}")
            commands.update(
                f"slice {names[entity]} with {held}"
                for entity in state.object_locations[state.location]
                if self._can("slice", entity, state.held)
            )
        return sorted(commands)

    def _commands_at(self, receptacle: str) -> Iterable[str]:
        names, state = self.problem.names, self.state
        name = names[receptacle]
        yield f"examine {name}"
        if self.problem.has("openable", receptacle):
            yield f"{'close' if receptacle in state.opened else 'open'} {name}"
        for entity in state.contents[receptacle]:
            if self._can("take", entity, receptacle):
                yield f"take {names[entity]} from {name}"
            if self.problem.has("toggleable", entity):
                yield f"use {names[entity]}"
        if state.held is None:
            return
        for verb, join in _JOINS.items():
            if verb not in ("take", "slice") and self._can(verb, state.held, receptacle):
                yield f"{verb} {names[state.held]}{join}{name}"


class FastEnv:
    """`FastGame` as an Env: one episode of one game."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._play: FastGame | None = None
        self._over = ""  # why no further action is taken

    async def start(self, task: Task) -> str:
        """Begin the game that the task names."""
        if self._play is not None or self._over:
            raise EnvFault("misuse", "start() a second time, or after close()")
        if task.id != self._game.id:
            raise EnvFault("misuse", f"task {task.id} is not this env's game {self._game.id}")
        self._play = FastGame(self._game)
        return self._play.reset()

    async def step(self, action: str) -> StepResult:
        """Take one action; after the ending there is none to take."""
        if self._play is None or self._over:
            raise EnvFault("misuse", f"step() {self._over or 'before start()'}")
        state, reward, done, valid = self._play.step(action)
        if done:
            self._over = "after the ending"
        return StepResult(state, reward, Ending.DONE if done else None, valid)

    async def admissible(self) -> list[str]:
        """The commands the world would accept now."""
        if self._play is None or self._over:
            raise EnvFault("misuse", f"admissible() {self._over or 'before start()'}")
        return self._play.admissible()

    async def close(self) -> None:
        """Nothing can be played any more."""
        self._over = "after close()"
