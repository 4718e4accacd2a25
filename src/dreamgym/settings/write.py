"""A config as TOML text, each value with its origin; `load_config` reads it back to an equal one.

The standard library reads TOML but does not write it, and a comment per value is not something
that libraries offer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from dreamgym.settings.schema import Origin, Settings

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dump_toml(settings: Settings, origins: Mapping[str, Origin]) -> str:
    """Write the whole tree; a trailing comment says who set each value."""
    return "\n".join(_lines(settings, origins, "")).strip() + "\n"


def _lines(settings: Settings, origins: Mapping[str, Origin], prefix: str) -> Iterator[str]:
    sections: list[tuple[str, Settings]] = []
    for name in type(settings).model_fields:
        value = settings.__dict__[name]
        if isinstance(value, Settings):
            sections.append((name, value))  # TOML wants a table's own values before its tables
        else:
            origin = origins[prefix + name]
            yield f"{_key(name)} = {_value(to_jsonable_python(value))}  # {origin}"
    for name, section in sections:
        yield f"\n[{prefix}{name}]"
        yield from _lines(section, origins, f"{prefix}{name}.")


def _value(value: Any) -> str:
    match value:
        case None:
            return '"none"'  # TOML has no null; `load_config` reads this word back as one
        case bool() | int() | float() | str():
            # JSON's scalars are TOML's, but for one control character that JSON leaves raw
            return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007F")
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            pairs = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
            return f"{{{pairs}}}"
    raise TypeError(f"a setting of type {type(value).__name__} has no TOML form")


def _key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _value(name)
