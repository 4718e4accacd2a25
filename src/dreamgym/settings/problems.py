"""What is wrong with a config, in lines that name the place, the value and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import dropwhile

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dreamgym.settings.schema import Origin, Settings, leaves, section_of

RULES = {
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "path_type": "should be a path",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "extra_forbidden": "is an unknown key",
}
"""pydantic's kinds of error, where its own words speak of Python and not of a config."""


def unknown_key(root: type[Settings], parts: Sequence[str]) -> str:
    """Say why there is no value at a path of the tree, and what was probably meant."""
    model = root
    for index, name in enumerate(parts):
        here = ".".join(parts[:index])
        field = model.model_fields.get(name)
        section = section_of(field)
        if field is None:
            place = f"in section {here!r}" if here else "at the top level"
            return f"unknown key {name!r} {place}; {_hint(root, model, parts, index)}"
        if section is None:
            return f"{'.'.join(parts[: index + 1])} is a value and has no keys of its own"
        model = section
    path = ".".join(parts)
    inner = ", ".join(f"{path}.{name}" for name in model.model_fields)
    return f"{path} is a section, not a value: set {inner}"


def _hint(root: type[Settings], model: type[Settings], parts: Sequence[str], index: int) -> str:
    """Near misses in the same section, else the same word elsewhere, else a path like it."""
    name, leaf = (part.replace("-", "_").lower() for part in (parts[index], parts[-1]))
    here = "".join(f"{part}." for part in parts[:index])
    tail = "".join(f".{part}" for part in parts[index + 1 :])
    paths = [path for path, _ in leaves(root)]
    words = get_close_matches(leaf, {path.rpartition(".")[2] for path in paths})
    near = (
        [f"{here}{match}{tail}" for match in get_close_matches(name, model.model_fields)]
        or [path for word in words for path in paths if path.rpartition(".")[2] == word]
        or get_close_matches(".".join(parts), paths)
    )
    if near:
        return f"did you mean {' or '.join(near[:3])}?"
    return f"keys here: {', '.join(model.model_fields)}"


def validation_lines(error: ValidationError, origins: Mapping[str, Origin]) -> list[str]:
    """One line per place: dotted path, value, who set it, and what is allowed there."""
    lines: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        leaf, place = _place(detail["loc"], origins)
        rule = _rule(detail)
        if place in lines:  # one place, refused by each member of a union
            lines[place] += f", or {rule.removeprefix('should be ')}"
        elif detail["type"] == "missing":
            flag = place.replace("_", "-")
            lines[place] = f"{place} is required: set it in the recipe or with --{flag} VALUE"
        elif leaf in origins and detail["type"] != "extra_forbidden":
            lines[place] = f"{place} = {_shown(detail['input'])} ({origins[leaf]}) {rule}"
        else:  # a check of a whole section, or a key whose value may be a secret
            lines[place] = f"{place} {rule}".strip()
    return list(lines.values())


def _place(loc: tuple[int | str, ...], origins: Mapping[str, Origin]) -> tuple[str, str]:
    """The leaf of an error, and the place inside it.

    A word right after a leaf is no place but pydantic's tag for a member of a union.
    """
    path = ""
    for index, part in enumerate(loc):
        path = f"{path}.{part}".lstrip(".")
        if path in origins:
            rest = list(dropwhile(lambda part: isinstance(part, str), loc[index + 1 :]))
            inside = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest]
            return path, path + "".join(inside)
    return path, path


def _rule(detail: ErrorDetails) -> str:
    known = RULES.get(detail["type"])
    message = detail["msg"].removeprefix("Value error, ")
    return known or message.replace("Input should", "should", 1)


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
