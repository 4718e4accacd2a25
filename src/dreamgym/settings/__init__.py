"""One frozen, typed tree of settings: read from TOML and flags, checked, described, written back.

Every leaf of the tree subclasses `Settings` beside the code that reads it. The schema of the tree
is the one source of the recipe format, the flags, the printed help and the resolved config.
"""

from dreamgym.settings.load import load_config
from dreamgym.settings.schema import (
    FieldDoc,
    Operational,
    Origin,
    Settings,
    config_digest,
    describe,
    leaves,
    operational,
)
from dreamgym.settings.write import dump_toml

__all__ = [
    "FieldDoc",
    "Operational",
    "Origin",
    "Settings",
    "config_digest",
    "describe",
    "dump_toml",
    "leaves",
    "load_config",
    "operational",
]
