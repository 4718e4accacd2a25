"""The planner: it knows the whole house, and proves that a game can be won."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

from dreamgym.envs.alfworld import rooms
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.pddl import Problem, parse_problem
from dreamgym.types import DreamGymError

_VERBS = {"clean": "clean", "hot": "heat", "cool": "cool"}
_STATES = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}  # a goal's property -> our word
_ABLE = {"isclean": "cleanable", "ishot": "heatable", "iscool": "coolable"}


def plan(game: Game) -> list[str]:
    """The shortest command list that wins among the straightforward ones, knowing everything."""
    commands = solve(parse_problem(game.pddl_problem))
    if commands is None:
        raise DreamGymError(
            f"the planner cannot win game {game.id}: no object, place or tool in it fits its goal, "
            "or something must be sliced. Leave the game out."
        )
    return commands


def solve(problem: Problem) -> list[str] | None:
    """`plan` for a problem already read; None where there is no plan."""
    plans = _lamp_plans(problem) if problem.goal.lamp_type else _put_plans(problem)
    return min(plans, key=len, default=None)


@dataclass
class _Walk:
    """Commands so far, and where they have led."""

    problem: Problem
    location: str
    opened: set[str]
    commands: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, problem: Problem) -> _Walk:
        return cls(problem, problem.start, set(problem.properties["opened"]))

    def go(self, receptacle: str) -> None:
        target = self.problem.receptacle_locations[receptacle]
        if target != self.location:
            self.commands.append(f"go to {self.problem.names[receptacle]}")
            self.location = target

    def reach_in(self, receptacle: str) -> None:
        self.go(receptacle)
        if self.problem.has("openable", receptacle) and receptacle not in self.opened:
            self.commands.append(f"open {self.problem.names[receptacle]}")
            self.opened.add(receptacle)

    def take(self, entity: str, receptacle: str) -> None:
        self.reach_in(receptacle)
        names = self.problem.names
        self.commands.append(f"take {names[entity]} from {names[receptacle]}")

    def change(self, entity: str, state: str, tool: str) -> None:
        self.go(tool)
        names = self.problem.names
        self.commands.append(f"{_VERBS[state]} {names[entity]} with {names[tool]}")

    def put(self, entity: str, receptacle: str) -> None:
        self.reach_in(receptacle)
        names = self.problem.names
        self.commands.append(f"move {names[entity]} to {names[receptacle]}")


def _lamp_plans(problem: Problem) -> Iterator[list[str]]:
    for lamp, lamp_place in _lying(problem, problem.goal.lamp_type):
        if not problem.has("toggleable", lamp):
            continue
        for entity, place in _takeable(problem):
            walk = _Walk.begin(problem)
            walk.take(entity, place)
            walk.go(lamp_place)
            walk.commands.append(f"use {problem.names[lamp]}")
            yield walk.commands


def _put_plans(problem: Problem) -> Iterator[list[str]]:
    goal = problem.goal
    if (goal.receptacle_type, goal.object_type) not in problem.can_contain:
        return
    targets = [r for r, kind in problem.receptacle_types.items() if kind == goal.receptacle_type]
    for target in sorted(targets):
        there = {
            entity
            for entity in problem.contents.get(target, ())
            if problem.object_types[entity] == goal.object_type and not _lacking(problem, entity)
        }
        candidates = [(e, place) for e, place in _takeable(problem) if e not in there]
        missing = goal.count - len(there)
        for chosen in permutations(candidates, max(missing, 0)):
            if len({entity for entity, _ in chosen}) == len(chosen):
                yield from _deliveries(problem, chosen, target)


def _deliveries(
    problem: Problem, chosen: tuple[tuple[str, str], ...], target: str
) -> Iterator[list[str]]:
    """Fetch, change and put one after the other; one plan for each tool that would do."""
    lacking = {state for entity, _ in chosen for state in _lacking(problem, entity)}
    if len(lacking) > 1:
        return
    tools: list[str] = [""]
    if lacking:
        kind = f"{rooms.CHANGES[min(lacking)][0].lower()}type"
        tools = sorted(r for r, k in problem.receptacle_types.items() if k == kind)
    for tool in tools:
        walk = _Walk.begin(problem)
        for entity, place in chosen:
            walk.take(entity, place)
            for state in _lacking(problem, entity):
                walk.change(entity, state, tool)
            walk.put(entity, target)
        yield walk.commands


def _lying(problem: Problem, kind: str) -> Iterator[tuple[str, str]]:
    """(object, the receptacle it is in) for all objects of a type, in a fixed order."""
    for receptacle in sorted(problem.contents):
        for entity in sorted(problem.contents[receptacle]):
            if problem.object_types[entity] == kind:
                yield entity, receptacle


def _takeable(problem: Problem) -> list[tuple[str, str]]:
    goal = problem.goal
    return [
        (entity, place)
        for entity, place in _lying(problem, goal.object_type)
        if problem.has("pickupable", entity) and _can_be_made(problem, entity)
    ]


def _can_be_made(problem: Problem, entity: str) -> bool:
    """Whether the planner knows how to give it what the goal asks for; slicing it does not."""
    return all(
        prop in _ABLE and problem.has(_ABLE[prop], entity) for prop in problem.goal.properties
    )


def _lacking(problem: Problem, entity: str) -> list[str]:
    """The states the goal asks for that the object is not in at the start."""
    wanted = problem.goal.properties
    return [_STATES[prop] for prop in sorted(wanted) if not problem.has(prop, entity)]
