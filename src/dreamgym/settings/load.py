"""A recipe and flags in, a checked config out, with the origin of every value."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from dreamgym.settings.problems import unknown_key, validation_lines
from dreamgym.settings.schema import Origin, Settings, default_of, kinds_of, leaves, section_of
from dreamgym.types import DreamGymError

S = TypeVar("S", bound=Settings)
Tree = dict[str, Any]


def load_config(
    model: type[S], recipes: Path | Sequence[Path] | None = None, overrides: Sequence[str] = ()
) -> tuple[S, dict[str, Origin]]:
    """Read recipes, each over those before it, let flags (`--a.b value`) override them, and say
    where each value came from."""
    paths = [recipes] if isinstance(recipes, Path) else list(recipes or ())
    tree: Tree = reduce(_over, map(read_toml, paths), {})
    schema = dict(leaves(model))
    origins: dict[str, Origin] = dict.fromkeys(schema, "default")
    problems = _unknown_keys(model, model, tree)
    for key, value in _leaf_values(model, tree):
        _put(tree, key, _none_if_asked(schema[key], value))
        origins[key] = "recipe file"
    for key, text in _flags(overrides, schema):
        if key not in schema:
            problems.append(unknown_key(model, key.split(".")))
        elif text is None:
            problems.append(f"--{key} needs a value: --{key} VALUE")
        elif not problems:  # an unknown key may stand where a section should
            _put(tree, key, _typed(schema[key], text))
            origins[key] = "flag"
    if not problems:
        _fill_sections(model, tree)
        try:
            # JSON is read strictly but knows lists from tuples and text from paths only by the
            # schema, which is what TOML needs; Python callers stay strict
            return model.model_validate_json(json.dumps(tree, default=str)), origins
        except ValidationError as error:
            problems = validation_lines(error, origins)
    where = f" ({', '.join(map(str, paths))})" if paths else ""
    raise DreamGymError("\n  ".join([f"the config is refused{where}:", *problems]))


def read_toml(path: Path) -> Tree:
    """Parse a TOML file; every way in which that fails becomes one readable line."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise DreamGymError(f"no recipe at {path}: check the path, or leave it out") from None
    except OSError as error:
        raise DreamGymError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DreamGymError(f"{path} is not UTF-8 text: recipes are TOML files") from None
    except tomllib.TOMLDecodeError as error:
        raise DreamGymError(f"{path} is not valid TOML: {error}") from None


def _unknown_keys(
    root: type[Settings], model: type[Settings], tree: Tree, parents: tuple[str, ...] = ()
) -> list[str]:
    problems = []
    for name, value in tree.items():
        field = model.model_fields.get(name)
        section = section_of(field)
        path = (*parents, name)
        if field is None or (section is not None and not isinstance(value, dict)):
            problems.append(unknown_key(root, path))
        elif section is not None:
            problems += _unknown_keys(root, section, value, path)
    return problems


def _fill_sections(model: type[Settings], tree: Tree) -> None:
    """A section that is named in part keeps the rest of its own defaults, not of its class's.

    One class can stand in two places with other defaults, as SFTConfig does for fit and clone.
    """
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None or name not in tree:
            continue
        default = default_of(field)
        if isinstance(default, Settings):
            tree[name] = _over(default.model_dump(mode="json"), tree[name])
        _fill_sections(section, tree[name])


def _over(below: Tree, above: Tree) -> Tree:
    both = {
        key: _over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return below | both


def _leaf_values(
    model: type[Settings], tree: Tree, prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        field = model.model_fields.get(name)
        section = section_of(field)
        if section is not None and isinstance(value, dict):
            yield from _leaf_values(section, value, f"{prefix}{name}.")
        elif field is not None and section is None:
            yield prefix + name, value


def _flags(tokens: Sequence[str], schema: dict[str, FieldInfo]) -> Iterator[tuple[str, str | None]]:
    """Split `--a.b value`, `--a.b=value` and a bare `--switch`; dashes stand for underscores."""
    rest = list(tokens)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise DreamGymError(f"unexpected {flag!r}: settings are given as --section.key VALUE")
        name, equals, text = flag[2:].partition("=")
        key = name.replace("-", "_")
        if equals:
            yield key, text
        elif rest and not rest[0].startswith("--"):
            yield key, rest.pop(0)
        else:
            is_switch = key in schema and bool in kinds_of(schema[key].annotation)
            yield key, "true" if is_switch else None


def _put(tree: Tree, key: str, value: object) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[name] = value


def _none_if_asked(field: FieldInfo, value: object) -> object:
    """TOML has no null: the word "none" stands for it, where a value may be absent."""
    return None if value == "none" and NoneType in kinds_of(field.annotation) else value


def _typed(field: FieldInfo, text: str) -> object:
    """Read a flag's text by the schema. What does not fit stays text, for the checks to refuse."""
    if _none_if_asked(field, text) is None:
        return None
    kinds = kinds_of(field.annotation)
    holder = next((kind for kind in kinds if get_origin(kind) in (tuple, list, dict)), None)
    if holder is None:
        return _scalar(kinds, text)
    if text.startswith(("[", "{")):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    items = kinds_of(get_args(holder)[0])
    return [_scalar(items, part.strip()) for part in text.split(",")] if text else []


def _scalar(kinds: tuple[Any, ...], text: str) -> object:
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if int in kinds or (kind is float and float in kinds):
            try:
                return kind(text)
            except ValueError:
                continue
    return text
