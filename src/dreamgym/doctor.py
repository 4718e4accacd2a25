"""What this machine has and lacks, each lack with the command that mends it."""

from __future__ import annotations

import asyncio
import lzma
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import dreamgym
from dreamgym.types import DreamGymError

CORE = ("cyclopts", "httpx2", "matplotlib", "numpy", "pydantic", "rich", "tenacity")
TRAIN = ("torch", "transformers", "tokenizers", "safetensors")
EXTRAS = ("train", "alfworld", "data")
DISK_GB = 1.0
"""Room for a quickstart's models, episodes and figures."""


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about this machine."""

    part: str  # "core", or the extra that needs it
    name: str
    ok: bool
    detail: str
    fix: str = ""  # what to run or to do, where not ok
    required: bool = False


def examine(extras: Sequence[str] = ()) -> list[Check]:
    """Check everything; the core and the extras that are named here are what must be right."""
    for extra in extras:
        if extra not in EXTRAS:
            raise DreamGymError(f"no extra {extra!r}: there are {', '.join(EXTRAS)}")
    found = [*_core(), *_train(), *_alfworld(), *_data()]
    return [replace(check, required=check.part in ("core", *extras)) for check in found]


def examine_server(url: str, model: str = "") -> dict[str, Any]:
    """Ask a model server what it can do and keep the answer; raises DreamGymError where it answers
    nothing."""
    from dreamgym.llm.profile import probe_server, profile_path
    from dreamgym.llm.transport import ServerConfig

    # nobody waits an hour for a check, and a small model on a processor takes its time
    config = ServerConfig(url=url, connect_s=10.0, attempt_s=120.0, deadline_s=150.0)
    model, profile, findings = asyncio.run(probe_server(config, model))
    path = str(profile_path(config, model))
    return {
        "url": url,
        "model": model,
        "profile": profile.model_dump(),
        "findings": findings,
        "path": path,
    }


def report(checks: Sequence[Check]) -> None:
    """Print a line per check: green, red where something required is missing, else yellow."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for check in checks:
        word, style = ("ok", "green") if check.ok else ("no", "red" if check.required else "yellow")
        console.print(Text(word, style), Text(f" {check.part:<9}{check.name:<14}{check.detail}"))
        if check.fix:
            console.print(Text(f"             fix: {check.fix}", style))
    broken = sum(check.required and not check.ok for check in checks)
    optional = sum(not check.required and not check.ok for check in checks)
    console.print(f"{broken} required and {optional} optional things are missing")


def _core() -> Iterator[Check]:
    enough = sys.version_info >= (3, 11)
    fix = "" if enough else "install Python 3.11 or newer"
    yield Check("core", "python", enough, f"{platform.python_version()} ({sys.executable})", fix)
    for package in CORE:
        yield _package("core", package, f"{sys.executable} -m pip install {_source()}")
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    detail = f"{free:.1f} GB free in {Path.cwd()}"
    fix = "" if free >= DISK_GB else f"free at least {DISK_GB:.0f} GB, or work in another folder"
    yield Check("core", "disk", free >= DISK_GB, detail, fix)


def _train() -> Iterator[Check]:
    pip = f"{sys.executable} -m pip install"
    for package in TRAIN:
        yield _package("train", package, f"{pip} {_source('train')}")


def _alfworld() -> Iterator[Check]:
    """The extra itself, and what compiling it takes where it is not installed yet."""
    # CMake 4 refuses the planner's old build file unless told to read it as an old one
    pip = f"CMAKE_POLICY_VERSION_MINIMUM=3.5 {sys.executable} -m pip install {_source('alfworld')}"
    installed = [_package("alfworld", name, pip) for name in ("alfworld", "textworld")]
    yield from installed
    if not all(check.ok for check in installed):
        yield from build_tools()


def build_tools() -> Iterator[Check]:
    """What compiling the planner of ALFWorld's own engine takes."""
    for name, programs, package in (
        ("cmake", ("cmake",), "cmake"),
        ("make", ("make",), "make"),
        ("C++ compiler", ("g++", "clang++", "c++"), "g++"),
    ):
        path = next((path for program in programs if (path := shutil.which(program))), None)
        fix = "" if path else f"apt-get install {package}"
        yield Check("alfworld", name, path is not None, path or "not found", fix)


def _data() -> Iterator[Check]:
    """Optional: generated games need no data at all."""
    root = os.environ.get("DREAMGYM_DATA")
    if root is None:
        fix = "set DREAMGYM_DATA to a folder that holds alfworld/games_*.jsonl.xz"
        yield Check("data", "DREAMGYM_DATA", False, "not set: generated games only", fix)
    else:
        files = sorted(Path(root).glob("alfworld/games_*.jsonl.xz"))
        games = [_games(file) for file in files]
        detail = f"{root}: {', '.join(text for text, _ in games) or 'no alfworld/games_*.jsonl.xz'}"
        fix = "point it at a folder that holds whole alfworld/games_*.jsonl.xz files"
        good = bool(files) and all(whole for _, whole in games)
        yield Check("data", "DREAMGYM_DATA", good, detail, "" if good else fix)
    own = os.environ.get("ALFWORLD_DATA")
    if own is not None:
        count = sum(1 for _ in Path(own).glob("json_2.1.1/*/*/*/game.tw-pddl"))
        fix = "" if count else "point it at the folder above json_2.1.1 (see alfworld-download)"
        yield Check("data", "ALFWORLD_DATA", count > 0, f"{own}: {count} games", fix)


def _package(part: str, name: str, fix: str) -> Check:
    """Installed is not enough: a missing system library shows only on import."""
    try:
        version = metadata.version(name)
        if part != "alfworld":  # its import takes seconds and needs its data
            import_module(name)
    except metadata.PackageNotFoundError:
        return Check(part, name, False, "not installed", fix)
    except (ImportError, OSError) as error:
        return Check(part, name, False, f"installed but broken: {error}", fix)
    return Check(part, name, True, version)


def _source(extra: str = "") -> str:
    """What to give to pip: this checkout, or the published package."""
    root = Path(dreamgym.__file__).resolve().parents[2]
    suffix = f"[{extra}]" if extra else ""
    checkout = (root / "pyproject.toml").exists() and (root / "src" / "dreamgym").exists()
    return f"-e '{root}{suffix}'" if checkout else f"'dreamgym{suffix}'"


def _games(path: Path) -> tuple[str, bool]:
    """How many games a file holds, and whether it is whole."""
    split = path.name.removeprefix("games_").partition(".")[0]
    try:
        with lzma.open(path, "rb") as file:
            return f"{sum(1 for _ in file)} {split}", True
    except (lzma.LZMAError, EOFError):
        return f"{split} is damaged", False
