"""A house of our own for tests: small, with every kind of action in it."""

from __future__ import annotations

from dreamgym.envs.alfworld.games import Game

HOUSE = """
(define (problem kitchen)
 (:domain alfred)
 (:objects agent1 - agent
   Apple_bar_1 - object Apple_bar_2 - object Knife_bar_1 - object Lamp_bar_1 - object
   Bowl_bar_1 - object Mug_bar_1 - object
   AppleType - otype KnifeType - otype DeskLampType - otype BowlType - otype MugType - otype
   Table_bar_1 - receptacle Shelf_bar_1 - receptacle Fridge_bar_1 - receptacle
   Microwave_bar_1 - receptacle Sink_bar_1_bar_SinkBasin - receptacle
   TableType - rtype ShelfType - rtype FridgeType - rtype MicrowaveType - rtype
   SinkBasinType - rtype
   loc_bar_1 - location loc_bar_2 - location loc_bar_3 - location loc_bar_4 - location
   loc_bar_0 - location)
 (:init
   (atLocation agent1 loc_bar_0)
   (receptacleType Table_bar_1 TableType) (receptacleAtLocation Table_bar_1 loc_bar_1)
   (receptacleType Shelf_bar_1 ShelfType) (receptacleAtLocation Shelf_bar_1 loc_bar_1)
   (receptacleType Fridge_bar_1 FridgeType) (receptacleAtLocation Fridge_bar_1 loc_bar_2)
   (receptacleType Microwave_bar_1 MicrowaveType)
   (receptacleAtLocation Microwave_bar_1 loc_bar_3)
   (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
   (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_4)
   (openable Fridge_bar_1) (openable Microwave_bar_1)
   (objectType Apple_bar_1 AppleType) (objectType Apple_bar_2 AppleType)
   (objectType Knife_bar_1 KnifeType) (objectType Lamp_bar_1 DeskLampType)
   (objectType Bowl_bar_1 BowlType) (objectType Mug_bar_1 MugType)
   (inReceptacle Apple_bar_1 Table_bar_1) (objectAtLocation Apple_bar_1 loc_bar_1)
   (inReceptacle Apple_bar_2 Fridge_bar_1) (objectAtLocation Apple_bar_2 loc_bar_2)
   (inReceptacle Knife_bar_1 Table_bar_1) (objectAtLocation Knife_bar_1 loc_bar_1)
   (inReceptacle Lamp_bar_1 Shelf_bar_1) (objectAtLocation Lamp_bar_1 loc_bar_1)
   (inReceptacle Bowl_bar_1 Table_bar_1) (objectAtLocation Bowl_bar_1 loc_bar_1)
   (inReceptacle Mug_bar_1 Table_bar_1) (objectAtLocation Mug_bar_1 loc_bar_1)
   (inReceptacleObject Mug_bar_1 Bowl_bar_1) (isReceptacleObject Bowl_bar_1)
   (pickupable Apple_bar_1) (pickupable Apple_bar_2) (pickupable Knife_bar_1)
   (pickupable Bowl_bar_1) (pickupable Mug_bar_1)
   (cleanable Apple_bar_1) (heatable Apple_bar_1) (coolable Apple_bar_1) (sliceable Apple_bar_1)
   (cleanable Apple_bar_2) (heatable Apple_bar_2) (coolable Apple_bar_2) (sliceable Apple_bar_2)
   (isCool Apple_bar_2) (cleanable Mug_bar_1) (toggleable Lamp_bar_1)
   (canContain TableType AppleType) (canContain ShelfType AppleType)
   (canContain FridgeType AppleType) (canContain MicrowaveType AppleType)
   (canContain SinkBasinType AppleType) (canContain TableType KnifeType)
   (canContain TableType MugType) (canContain TableType BowlType)
   (= (distance loc_bar_1 loc_bar_2) 3))
 (:goal (and GOAL)))
"""

PUT_CLEAN_APPLE = """(exists (?r - receptacle) (exists (?o - object)
    (and (cleanable ?o) (objectType ?o AppleType) (receptacleType ?r FridgeType)
         (isClean ?o) (inReceptacle ?o ?r))))"""
PUT_TWO_APPLES = """(exists (?r - receptacle) (exists (?o1 - object)
    (and (objectType ?o1 AppleType) (receptacleType ?r TableType) (inReceptacle ?o1 ?r)
         (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 AppleType)
            (receptacleType ?r TableType) (inReceptacle ?o2 ?r))))))"""
MUG_IN_LIGHT = """(exists (?ot - object ?r - receptacle ?a - agent ?l - location)
    (and (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot)
         (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
  (exists (?o - object ?a - agent) (and (objectType ?o MugType) (holds ?a ?o)))"""


def house(goal: str = PUT_CLEAN_APPLE, sentence: str = "put a clean apple in fridge") -> Game:
    """The house with one of the goals above."""
    return Game(
        id="pick_clean_then_place_in_recep-Apple-None-Fridge-1/trial_1",
        split="train",
        task_type="pick_clean_then_place_in_recep",
        goal=sentence,
        pddl_problem=HOUSE.replace("GOAL", goal),
    )


CLEAN_APPLE_SOLUTION = (
    "go to table 1",
    "take apple 2 from table 1",
    "go to sinkbasin 1",
    "clean apple 2 with sinkbasin 1",
    "go to fridge 1",
    "open fridge 1",
    "move apple 2 to fridge 1",
)
