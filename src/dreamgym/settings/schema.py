"""The base class of every section, and walks over the tree that the sections make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

Origin = Literal["default", "recipe file", "flag"]


class Settings(BaseModel):
    """A frozen section of the config: unknown keys are refused, a bool is never a number."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Operational(Settings):
    """A section that says how a run is carried out, not what it is: a resumed run may change it."""


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """One leaf of the schema, in words and in values that JSON can hold."""

    path: str
    type: str
    default: Any  # None too where `required`
    doc: str
    required: bool = False


def describe(model: type[Settings]) -> list[FieldDoc]:
    """The whole schema, leaf by leaf, in the order of the code."""
    return [
        FieldDoc(
            path,
            type_text(field),
            to_jsonable_python(_default_at(model, path.split("."))),
            field.description or "",
            field.is_required(),
        )
        for path, field in leaves(model)
    ]


def _default_at(model: type[Settings], path: list[str]) -> Any:
    """A leaf's default where it stands: a section's own default goes before its class's."""
    name, *rest = path
    field = model.model_fields[name]
    default, section = default_of(field), section_of(field)
    if section is not None and not isinstance(default, Settings):
        return _default_at(section, rest)
    return reduce(getattr, rest, default)


def default_of(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def leaves(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every value that can be set, with its dotted path. A section is not a leaf."""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None:
            yield prefix + name, field
        else:
            yield from leaves(section, f"{prefix}{name}.")


def section_of(field: FieldInfo | None) -> type[Settings] | None:
    """The section that a field opens; None for a leaf, and for no field at all."""
    kind = field.annotation if field is not None else None
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def operational(model: type[Settings], prefix: str = "") -> Iterator[str]:
    """The dotted paths of the sections that a resumed run may change."""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is not None and issubclass(section, Operational):
            yield prefix + name
        elif section is not None:
            yield from operational(section, f"{prefix}{name}.")


def config_digest(settings: Settings) -> str:
    """Name a config by its content: equal digests, equal runs."""
    tree = settings.model_dump(mode="json")
    for path in operational(type(settings)):
        *sections, last = path.split(".")
        del reduce(dict.__getitem__, sections, tree)[last]
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, each of them alone otherwise; a Literal counts as its values' types.

    `float | None` gives (float, NoneType), `Literal["a", "b"]` gives (str,).
    """
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in kinds_of(part))
    if origin is Annotated:
        return kinds_of(get_args(annotation)[0])
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(annotation)))
    return (annotation,)


def type_text(field: FieldInfo) -> str:
    """A field's type as a person reads it, with its bounds: `int >= 1`, `"a" | "b"`."""
    bounds = " and ".join(text for rule in field.metadata if (text := _bound_text(rule)))
    return f"{_kind_text(field.annotation)} {bounds}".strip()


def _bound_text(rule: object) -> str:
    match rule:
        case Gt(gt=bound):
            return f"> {bound}"
        case Ge(ge=bound):
            return f">= {bound}"
        case Lt(lt=bound):
            return f"< {bound}"
        case Le(le=bound):
            return f"<= {bound}"
    return ""


def _kind_text(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "none"
    if origin in (Union, UnionType):
        return " | ".join(_kind_text(part) for part in args)
    if origin is Annotated:
        bounds = " and ".join(text for rule in args[1:] if (text := _bound_text(rule)))
        return f"{_kind_text(args[0])} {bounds}".strip()
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in args)
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else _kind_text(part) for part in args)
        return f"{origin.__name__}[{inner}]"
    return str(annotation.__name__) if isinstance(annotation, type) else str(annotation)
