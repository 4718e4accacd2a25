"""What a household may contain: rooms, their places, what is kept where and what can be done to it.

`HOLDS` and the properties are facts of ALFWorld's format (which place accepts which thing), so that
a made game obeys the rules of an official one. The weights (how usual it is to find a thing
somewhere) are ours: the generator furnishes rooms by them and the expert searches by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _weights(text: str) -> dict[str, float]:
    """`"Desk 5 Shelf"` as a table; a name without a number weighs 1."""
    table: dict[str, float] = {}
    last = ""
    for word in text.split():
        if word[0].isdigit():
            table[last] = float(word)
        else:
            last = word
            table[last] = 1.0
    return table


OPENABLE = _names("Cabinet Drawer Fridge Microwave Safe")
FIXED = _names("DeskLamp HousePlant Television")  # seen, but never picked up
LAMP = "DeskLamp"
SLICEABLE = _names("Apple Bread Egg Lettuce Potato Tomato")
VESSELS = _names("Bowl Box Cup Mug Pan Plate Pot")  # "isReceptacleObject" in the problem text
HEATABLE = _names("Apple Bread Cup Egg Mug Plate Potato Tomato")
COOLABLE = _names("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle")
CLEANABLE = _names(
    "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate "
    "Pot Potato SoapBar Spatula Spoon Tomato"
)
CHANGES: Mapping[str, tuple[str, frozenset[str]]] = {  # state -> (the place that does it, to what)
    "clean": ("SinkBasin", CLEANABLE),
    "hot": ("Microwave", HEATABLE),
    "cool": ("Fridge", COOLABLE),
}

_CUTLERY = "ButterKnife Fork Knife Ladle Spatula Spoon"
_FOOD = "Apple Bread Egg Lettuce Potato Tomato"
_CROCKERY = "Bowl Cup Mug Plate"
_POCKET = "CellPhone CreditCard KeyChain"
_WRITING = "Book Newspaper Pen Pencil"
_WASHING = "Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle"
_SEAT = f"Book Box {_POCKET} Laptop Newspaper Pillow RemoteControl"
_TABLETOP = (
    f"AlarmClock Box Candle CD Cloth {_POCKET} {_WRITING} Laptop RemoteControl Statue TissueBox "
    f"Vase Watch WateringCan {_CROCKERY} {_CUTLERY} {_FOOD} DishSponge Kettle Pan PepperShaker Pot "
    "SaltShaker SoapBottle SprayBottle TennisRacket BaseballBat BasketBall WineBottle"
)
HOLDS: Mapping[str, frozenset[str]] = {
    "ArmChair": _names(f"{_SEAT} Cloth"),
    "BathtubBasin": _names("Cloth DishSponge HandTowel SoapBar"),
    "Bed": _names("BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket"),
    "Cabinet": _names(
        f"Book Box Candle CD {_CROCKERY} {_WASHING} Glassbottle Kettle Ladle Newspaper Pan "
        "PepperShaker Plunger Pot SaltShaker TissueBox ToiletPaper Vase WateringCan WineBottle"
    ),
    "Cart": _names(f"Candle {_WASHING} Plunger TissueBox ToiletPaper"),
    "CoffeeMachine": _names("Mug"),
    "CoffeeTable": _names(
        f"Bowl Box Candle {_POCKET} {_WRITING} Laptop Plate RemoteControl Statue TissueBox Vase "
        "Watch WateringCan"
    ),
    "CounterTop": _names(
        f"AlarmClock Book Candle CD {_POCKET} {_CROCKERY} {_CUTLERY} {_FOOD} {_WASHING} "
        "Glassbottle Kettle Laptop Pan Pen Pencil PepperShaker Pot RemoteControl SaltShaker Statue "
        "TissueBox ToiletPaper Vase WineBottle"
    ),
    "Desk": _names(
        f"AlarmClock BasketBall Book Bowl Box CD Cloth {_POCKET} Laptop Mug Pen Pencil "
        "RemoteControl Statue TennisRacket TissueBox Vase Watch WateringCan"
    ),
    "DiningTable": _names(f"{_TABLETOP} Glassbottle"),
    "Drawer": _names(
        f"Candle CD {_POCKET} {_WRITING} {_CUTLERY} {_WASHING} PepperShaker RemoteControl "
        "SaltShaker TissueBox ToiletPaper Watch WateringCan"
    ),
    "Dresser": _names(
        f"AlarmClock BasketBall Bowl Box Candle CD Cloth {_POCKET} {_WRITING} Laptop Mug Plate "
        "RemoteControl SprayBottle Statue TennisRacket TissueBox ToiletPaper Vase Watch "
        "WateringCan"
    ),
    "Fridge": _names(f"{_FOOD} {_CROCKERY} Glassbottle Pan Pot WineBottle"),
    "GarbageCan": _names(
        f"{_FOOD} CD Newspaper Pen Pencil {_WASHING} TissueBox ToiletPaper WineBottle"
    ),
    "HandTowelHolder": _names("HandTowel"),
    "LaundryHamper": _names("Cloth"),
    "Microwave": _names(f"Apple Bread Egg Potato Tomato {_CROCKERY} Glassbottle"),
    "Ottoman": _names(_SEAT),
    "Safe": _names(f"CD {_POCKET} Statue Vase"),
    "Shelf": _names(
        f"AlarmClock Bowl Box Candle CD Cup {_POCKET} {_WRITING} {_WASHING} Glassbottle Kettle Mug "
        "PepperShaker Plate Pot RemoteControl SaltShaker Statue TissueBox ToiletPaper Vase Watch "
        "WateringCan WineBottle"
    ),
    "SideTable": _names(f"{_TABLETOP} HandTowel SoapBar ToiletPaper") - {"Ladle"},
    "SinkBasin": _names(
        f"Apple Egg Lettuce Potato Tomato {_CROCKERY} {_CUTLERY} Cloth DishSponge Glassbottle "
        "HandTowel Kettle Pan Pot SoapBar"
    ),
    "Sofa": _names(_SEAT),
    "StoveBurner": _names("Kettle Pan Pot"),
    "Toaster": _names(""),
    "Toilet": _names(f"Candle {_WASHING} TissueBox ToiletPaper"),
    "ToiletPaperHanger": _names("ToiletPaper"),
    "TowelHolder": _names("Towel"),
    "TVStand": _names("TissueBox"),
}

_ON_TABLES = "CounterTop 4 DiningTable 3 SideTable"
_SHARP = _weights(f"{_ON_TABLES} Drawer 3 SinkBasin")
_SPICE = _weights(f"{_ON_TABLES} Cabinet 4 Drawer 2 Shelf")
_PLANT = _weights("CoffeeTable CounterTop Desk DiningTable Dresser Shelf SideTable TVStand")
_SMALL = "Drawer 3 Desk 2 SideTable 2 Dresser 2 Shelf 2 CoffeeTable DiningTable CounterTop"
USUAL: Mapping[str, Mapping[str, float]] = {
    "AlarmClock": _weights("SideTable 4 Desk 4 Shelf 3 Dresser 3 DiningTable CounterTop"),
    "Apple": _weights(f"{_ON_TABLES} Fridge 4 SinkBasin 2 GarbageCan 2 Microwave"),
    "BaseballBat": _weights("Bed 2 SideTable DiningTable"),
    "BasketBall": _weights("Bed 2 Desk Dresser SideTable DiningTable"),
    "Book": _weights(
        "Bed 4 Desk 3 Shelf 2 Drawer 2 SideTable 2 CoffeeTable Sofa ArmChair Dresser "
        "CounterTop DiningTable Cabinet"
    ),
    "Bowl": _weights(
        f"{_ON_TABLES} Cabinet 4 Fridge 3 Shelf Desk SinkBasin Microwave Dresser CoffeeTable"
    ),
    "Box": _weights(
        "CoffeeTable 3 Sofa 3 DiningTable 3 Shelf SideTable Desk ArmChair Cabinet Dresser Ottoman"
    ),
    "Bread": _weights(f"{_ON_TABLES} Fridge 2 GarbageCan 0.3 Microwave 0.3"),
    "ButterKnife": _SHARP,
    "CD": _weights(
        "Drawer 4 Desk 3 Shelf 2 SideTable 2 Dresser 2 GarbageCan DiningTable Cabinet Safe"
    ),
    "Candle": _weights(
        "CounterTop 4 Toilet 4 Cabinet 2 Drawer 2 Shelf 2 SideTable CoffeeTable "
        "Cart Dresser DiningTable"
    ),
    "CellPhone": _weights(f"{_SMALL} Bed 4 Sofa ArmChair Safe"),
    "Cloth": _weights(
        "BathtubBasin 4 CounterTop 2 Cabinet 3 Drawer 2 SinkBasin Shelf Toilet "
        "Dresser Cart LaundryHamper"
    ),
    "CreditCard": _weights(f"{_SMALL} Sofa 2 ArmChair 2 Ottoman Safe"),
    "Cup": _weights(f"{_ON_TABLES} Cabinet 4 Fridge 3 SinkBasin 2 Microwave 2 Shelf"),
    "DeskLamp": _weights("Desk 4 SideTable 4 Dresser 2 Shelf CoffeeTable DiningTable"),
    "DishSponge": _weights(
        f"{_ON_TABLES} Cabinet 3 Drawer 3 SinkBasin 2 GarbageCan Shelf Toilet BathtubBasin Cart"
    ),
    "Egg": _weights(f"{_ON_TABLES} Fridge 4 SinkBasin 2 GarbageCan 2 Microwave 2"),
    "Fork": _SHARP,
    "Glassbottle": _weights("CounterTop 4 DiningTable 3 Cabinet 3 Fridge SinkBasin Shelf"),
    "HandTowel": _weights("HandTowelHolder 6 CounterTop Shelf 0.5"),
    "HousePlant": _PLANT,
    "Kettle": _weights("StoveBurner 4 CounterTop 3 Cabinet 3 DiningTable SinkBasin 0.5 Shelf 0.3"),
    "KeyChain": _weights(f"{_SMALL} Sofa ArmChair Safe Ottoman"),
    "Knife": _SHARP,
    "Ladle": _weights("CounterTop 4 DiningTable 3 Cabinet 3 Drawer 2 SinkBasin"),
    "Laptop": _weights(
        "Bed 4 Desk 4 Sofa 2 CoffeeTable 2 DiningTable 2 Dresser ArmChair SideTable Ottoman"
    ),
    "Lettuce": _weights(f"{_ON_TABLES} Fridge 4 SinkBasin GarbageCan 0.5"),
    "Mug": _weights(
        f"{_ON_TABLES} CoffeeMachine 4 Cabinet 3 Fridge 2 Microwave 2 SinkBasin Desk 3 "
        "Shelf Dresser"
    ),
    "Newspaper": _weights(
        "Sofa 3 CoffeeTable 3 DiningTable 2 SideTable 2 Shelf ArmChair 2 Dresser Drawer Ottoman"
    ),
    "Pan": _weights("StoveBurner 6 CounterTop 3 Cabinet DiningTable Fridge"),
    "Pen": _weights(f"{_SMALL} Desk 4 GarbageCan"),
    "Pencil": _weights(f"{_SMALL} Desk 4 GarbageCan"),
    "PepperShaker": _SPICE,
    "Pillow": _weights("Bed 6 Sofa 4 ArmChair 2 Ottoman"),
    "Plate": _weights(f"{_ON_TABLES} Cabinet 4 Fridge 2 SinkBasin Shelf CoffeeTable Microwave 0.5"),
    "Plunger": _weights("Cabinet Cart"),
    "Pot": _weights("StoveBurner 6 CounterTop 2 Cabinet Fridge DiningTable SinkBasin 0.3"),
    "Potato": _weights(f"{_ON_TABLES} Fridge 4 SinkBasin 2 GarbageCan 2 Microwave 2"),
    "RemoteControl": _weights(
        "CoffeeTable 4 Sofa 4 SideTable 3 ArmChair 2 Drawer Dresser DiningTable Desk Shelf Ottoman"
    ),
    "SaltShaker": _SPICE,
    "SoapBar": _weights(
        "SinkBasin 3 CounterTop 3 Toilet 3 BathtubBasin 3 Cabinet 2 Drawer 2 GarbageCan Shelf Cart"
    ),
    "SoapBottle": _weights(f"{_ON_TABLES} Cabinet 4 Toilet 3 GarbageCan 2 Shelf Drawer Cart"),
    "Spatula": _SHARP,
    "Spoon": _SHARP,
    "SprayBottle": _weights(
        "CounterTop 4 Toilet 4 Cabinet 3 GarbageCan Shelf Cart SideTable "
        "Dresser Drawer 0.3 DiningTable"
    ),
    "Statue": _weights(
        "Shelf 4 CoffeeTable 3 SideTable 2 DiningTable 2 Dresser 2 CounterTop Desk Safe 0.5"
    ),
    "Television": _weights("TVStand 6 Dresser 2 SideTable CoffeeTable DiningTable"),
    "TennisRacket": _weights("Bed 2 Desk SideTable Dresser DiningTable"),
    "TissueBox": _weights(
        "Shelf 3 CoffeeTable 2 SideTable 2 CounterTop 2 Drawer 2 Desk DiningTable "
        "TVStand Dresser Cabinet Toilet Cart"
    ),
    "ToiletPaper": _weights(
        "ToiletPaperHanger 3 Toilet 4 CounterTop 3 Cabinet 2 Drawer 2 GarbageCan Shelf Cart"
    ),
    "Tomato": _weights(f"{_ON_TABLES} Fridge 4 SinkBasin 2 GarbageCan 2"),
    "Towel": _weights("TowelHolder"),
    "Vase": _weights(
        "Shelf 4 CoffeeTable 2 CounterTop 2 Cabinet DiningTable SideTable Dresser Desk 0.5 Safe 0.3"
    ),
    "Watch": _weights("Drawer 3 CoffeeTable 3 SideTable 3 Dresser 2 DiningTable Desk Shelf"),
    "WateringCan": _weights("CoffeeTable 2 Shelf 2 SideTable Desk Dresser Drawer"),
    "WineBottle": _weights(f"{_ON_TABLES} Cabinet 4 Fridge 2 GarbageCan Shelf"),
}


@dataclass(frozen=True, slots=True)
class RoomKind:
    """One kind of room: what it never lacks, what it may have (weight, most), what lies in it."""

    required: tuple[str, ...]
    optional: Mapping[str, tuple[float, int]]
    things: Mapping[str, float]
    lamp: bool = False  # whether people keep desk lamps there


ROOMS: Mapping[str, RoomKind] = {
    "kitchen": RoomKind(
        required=("SinkBasin", "Microwave", "Fridge", "CounterTop"),
        optional={
            "Cabinet": (5, 12),
            "Drawer": (4, 10),
            "CounterTop": (2, 2),
            "StoveBurner": (3, 4),
            "GarbageCan": (4, 1),
            "CoffeeMachine": (4, 1),
            "Toaster": (1, 1),
            "DiningTable": (3, 2),
            "SideTable": (1, 1),
            "Shelf": (1, 3),
            "Safe": (0.2, 1),
        },
        things=_weights(
            f"{_FOOD} {_CROCKERY} {_CUTLERY} Pan Pot Kettle PepperShaker SaltShaker DishSponge "
            "SoapBottle WineBottle 0.7 Glassbottle 0.5 SprayBottle 0.2 Vase 0.3 Statue 0.3 "
            "Book 0.2 CellPhone 0.2 CreditCard 0.2 Pen 0.2 Pencil 0.2 HousePlant 0.4"
        ),
    ),
    "bedroom": RoomKind(
        required=("Bed", "GarbageCan"),
        optional={
            "Drawer": (5, 12),
            "Desk": (4, 2),
            "SideTable": (4, 2),
            "Shelf": (4, 8),
            "Dresser": (3, 2),
            "Safe": (1, 1),
            "LaundryHamper": (1.5, 1),
            "ArmChair": (1, 2),
            "Cabinet": (1, 4),
            "DiningTable": (0.5, 1),
            "CounterTop": (0.2, 1),
        },
        things=_weights(
            f"AlarmClock 2 Book 2 CD 2 {_POCKET} Pen 2 Pencil 2 Laptop 2 Pillow 2 Mug Bowl Box "
            "BaseballBat 0.5 BasketBall 0.5 TennisRacket 0.5 TissueBox 0.5 Watch 0.5 "
            "Cloth 0.5 RemoteControl 0.5 Statue 0.5 Vase 0.3 HousePlant 0.4 Television 0.2"
        ),
        lamp=True,
    ),
    "bathroom": RoomKind(
        required=("SinkBasin", "Toilet", "CounterTop"),
        optional={
            "GarbageCan": (4, 1),
            "ToiletPaperHanger": (4, 1),
            "TowelHolder": (3, 2),
            "HandTowelHolder": (3, 2),
            "BathtubBasin": (3, 1),
            "Cabinet": (3, 6),
            "Drawer": (2, 6),
            "Shelf": (2, 3),
            "SinkBasin": (1, 1),
            "Cart": (0.7, 1),
            "SideTable": (0.5, 1),
            "Dresser": (0.3, 1),
        },
        things=_weights(
            "ToiletPaper 3 SoapBar 3 SoapBottle 3 SprayBottle 3 Candle 3 Cloth 3 HandTowel 2 "
            "Towel 2 DishSponge TissueBox Plunger 0.4"
        ),
    ),
    "livingroom": RoomKind(
        required=("Sofa", "GarbageCan"),
        optional={
            "CoffeeTable": (4, 2),
            "SideTable": (4, 4),
            "ArmChair": (3, 3),
            "DiningTable": (2, 2),
            "Drawer": (4, 10),
            "Shelf": (3, 8),
            "Cabinet": (1.5, 6),
            "Dresser": (1.5, 2),
            "TVStand": (2, 1),
            "Ottoman": (1, 1),
            "Desk": (1, 1),
            "Safe": (0.3, 1),
        },
        things=_weights(
            f"RemoteControl 3 Newspaper 2 {_POCKET} Laptop 2 Pillow 2 Statue 2 Vase 2 Watch 2 "
            "Box 2 WateringCan TissueBox 2 Book Pen 0.7 Pencil 0.7 Plate 0.5 Bowl 0.5 Candle 0.5 "
            "HousePlant Television"
        ),
        lamp=True,
    ),
}

TASK_ROOMS: Mapping[str, tuple[str, ...]] = {  # where people wish such things
    "pick_and_place_simple": ("kitchen", "bedroom", "bathroom", "livingroom"),
    "look_at_obj_in_light": ("bedroom", "livingroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "bedroom", "bathroom", "livingroom"),
}
