"""The state of one household game: what an action can change, and whether the goal is met."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dreamgym.envs.alfworld.pddl import Problem


@dataclass(slots=True)
class House:
    """Everything that can change in a game, by PDDL id; the rest stands in `problem`."""

    problem: Problem
    location: str
    held: str | None  # the object in the agent's hand
    contents: dict[str, set[str]]  # receptacle -> objects
    object_locations: dict[str, set[str]]  # location -> objects; also of those hidden in places
    opened: set[str]
    clean: set[str]
    hot: set[str]
    cool: set[str]
    sliced: set[str]
    toggled: set[str]  # once used, never off again
    taken_from: set[tuple[str, str]]  # (object, receptacle): taken out, and not put back since

    @classmethod
    def at_start(cls, problem: Problem) -> House:
        """A fresh house: nothing in hand, everything where the problem puts it."""
        properties = problem.properties
        return cls(
            problem=problem,
            location=problem.start,
            held=None,
            contents={r: set(problem.contents.get(r, ())) for r in problem.receptacle_types},
            object_locations=defaultdict(
                set, {place: set(objects) for place, objects in problem.object_locations.items()}
            ),
            opened=set(properties["opened"]),
            clean=set(properties["isclean"]),
            hot=set(properties["ishot"]),
            cool=set(properties["iscool"]),
            sliced=set(properties["issliced"]),
            toggled=set(properties["istoggled"]),
            taken_from=set(),
        )

    def accessible(self, receptacle: str) -> bool:
        """Whether a hand can reach in: it is open, or has no door."""
        return receptacle in self.opened or not self.problem.has("openable", receptacle)

    def where(self, entity: str) -> list[str]:
        """The receptacles the object is in; empty while only the hand holds it."""
        return [r for r, objects in self.contents.items() if entity in objects]

    def goal_met(self) -> bool:
        """Whether the task is done now."""
        goal = self.problem.goal
        types = self.problem.object_types
        if goal.lamp_type:
            return (
                self.held is not None
                and types[self.held] == goal.object_type
                and self._has_goal_properties(self.held)
                and self._in_lamp_light(goal.lamp_type)
            )
        for receptacle, kind in self.problem.receptacle_types.items():
            if kind == goal.receptacle_type:
                fitting = [
                    entity
                    for entity in self.contents[receptacle]
                    if types[entity] == goal.object_type and self._has_goal_properties(entity)
                ]
                if len(fitting) >= goal.count:
                    return True
        return False

    def _in_lamp_light(self, lamp_type: str) -> bool:
        return any(
            self.problem.object_types[lamp] == lamp_type
            and self.problem.has("toggleable", lamp)
            and any(self._is_here(receptacle) for receptacle in self.where(lamp))
            for lamp in self.toggled
        )

    def _is_here(self, receptacle: str) -> bool:
        return self.problem.receptacle_locations[receptacle] == self.location

    def _has_goal_properties(self, entity: str) -> bool:
        now = {
            "isclean": self.clean,
            "ishot": self.hot,
            "iscool": self.cool,
            "issliced": self.sliced,
        }
        able = {"isclean": "cleanable", "ishot": "heatable", "iscool": "coolable"}
        return all(
            entity in now[prop] and (prop not in able or self.problem.has(able[prop], entity))
            for prop in self.problem.goal.properties
        )
