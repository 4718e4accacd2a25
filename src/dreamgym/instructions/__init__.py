"""What models that were never fitted are told to do: one file each, read as it stands."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def instructions(name: str) -> str:
    """The text of `NAME.md`."""
    return files(__name__).joinpath(f"{name}.md").read_text("utf-8").strip()
