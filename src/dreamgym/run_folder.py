"""The run folder: what a run leaves behind, and what makes it resume instead of starting again.

    config.toml     the resolved config, each value with its origin
    manifest.json   versions, commit, seed, config digest, hashes of files, every start of the run
    stages/*.json   one per finished stage, with what it found
    .lock           held by the one process that may write

Files appear whole or not at all: a run can be killed at any moment.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import dreamgym
from dreamgym.settings import Origin, Settings, config_digest, dump_toml, operational
from dreamgym.types import DreamGymError

STAGE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
DRAFT_NAME = re.compile(r"\..+\.\d+\.tmp")
BUSY = "wait for it, stop it, or use another folder"
HELD: set[Path] = set()
"""Run folders that this process writes: a POSIX lock keeps out other processes only."""


class RunFolder:
    """A run's files. Reading needs no lock; `open_run` gives the one that may write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifest(self) -> dict[str, Any]:
        """How this run was made."""
        return _read_json(self.path / "manifest.json")

    def stage_done(self, name: str) -> bool:
        """Whether this run, or an earlier start of it, finished a stage."""
        return self._stage_path(name).exists()

    def stage_data(self, name: str) -> dict[str, Any]:
        """What a finished stage found."""
        return _read_json(self._stage_path(name))

    def mark_stage(self, name: str, data: Mapping[str, Any]) -> None:
        """Declare a stage finished. Write its files before: a resumed run trusts this mark."""
        write_json(self._stage_path(name), data)

    def list_files(self, *names: str) -> None:
        """Put files (paths inside the folder) into the manifest, with their hashes."""
        manifest = self.manifest()
        for name in names:
            manifest["files"][name] = file_digest(self.path / name)
        write_json(self.path / "manifest.json", manifest)

    def damaged_files(self) -> list[str]:
        """Listed files that are gone, or are not what they were."""
        return [
            name
            for name, digest in self.manifest()["files"].items()
            if not (self.path / name).is_file() or file_digest(self.path / name) != digest
        ]

    def _stage_path(self, name: str) -> Path:
        if not STAGE_NAME.fullmatch(name):
            raise ValueError(f"stage name {name!r} is not a lower-case word")
        return self.path / "stages" / f"{name}.json"


@contextmanager
def open_run(
    path: Path,
    settings: Settings,
    origins: Mapping[str, Origin],
    *,
    seed: int = 0,
    fresh: bool = False,
) -> Iterator[RunFolder]:
    """Create a run folder, or open it again with an equal config; nobody else may meanwhile.

    `fresh` moves what is there aside and never deletes it.
    """
    path = path.resolve()  # where a link leads: the link stays when its folder is moved aside
    _refuse_foreign(path)
    if path in HELD:
        raise DreamGymError(f"{path} is in use by this very process: {BUSY}")
    lock = _lock(path)
    HELD.add(path)
    try:
        if fresh and (path / "manifest.json").exists():
            _move_aside(path)
            aside, lock = lock, _lock(path)  # the new one first: nobody gets in between
            os.close(aside)
        for draft in path.rglob(".*.tmp"):
            if DRAFT_NAME.fullmatch(draft.name):  # its writer was killed
                draft.unlink()
        folder = RunFolder(path)
        _start(folder, settings, origins, seed)
        yield folder
    finally:
        HELD.discard(path)
        os.close(lock)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all, even if the power goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the file's name is data of the folder
    finally:
        os.close(folder)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON atomically. NaN is refused: it is not JSON, and other readers stop at it."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text.encode() + b"\n")


def file_digest(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DreamGymError(f"{path} does not exist: is this a run folder?") from None
    except ValueError as error:
        raise DreamGymError(f"{path} is damaged ({error}): use --fresh or another folder") from None
    if not isinstance(data, dict):
        raise DreamGymError(f"{path} is not one of ours: use another folder")
    return data


def _refuse_foreign(path: Path) -> None:
    """Nothing that is not ours is ever written into, let alone moved aside."""
    if not path.exists():
        return
    if not path.is_dir():
        raise DreamGymError(f"{path} is a file: a run needs a folder of its own")
    names = [entry.name for entry in path.iterdir() if not DRAFT_NAME.fullmatch(entry.name)]
    ours = "manifest.json" in names and "dreamgym" in _read_json(path / "manifest.json")
    if not ours and set(names) - {".lock"}:
        raise DreamGymError(f"{path} holds other files and is no run folder: use another folder")


def _lock(path: Path) -> int:
    """Take a run folder for this process. The lock goes with the process, however it ends.

    A POSIX lock and not `flock`: worker processes that outlive a killed run must not keep it.
    """
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DreamGymError(f"cannot write in {path}: {error.strerror}") from None
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(handle, 32).decode()
            os.close(handle)
            raise DreamGymError(f"{path} is in use by process {pid}: {BUSY}") from None
        if _still_there(handle, path / ".lock"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            return handle
        os.close(handle)  # its folder was moved aside in between: look again


def _still_there(handle: int, path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(handle), path.stat())


def _move_aside(path: Path) -> None:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target = path.with_name(f"{path.name}.old-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.old-{stamp}-{number}")
    try:
        path.rename(target)
    except OSError as error:
        raise DreamGymError(f"cannot move {path} aside: {error.strerror}") from None


def _start(folder: RunFolder, settings: Settings, origins: Mapping[str, Origin], seed: int) -> None:
    """Write what a run is, or check that it is the same one and note that it was resumed."""
    path, toml = folder.path, dump_toml(settings, origins)
    start = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **_versions()}
    if not (path / "manifest.json").exists():
        facts = {"seed": seed, "config_digest": config_digest(settings), "files": {}}
        write_json(path / "manifest.json", {**start, **facts, "resumed": []})
    else:
        manifest = folder.manifest()
        same = manifest["config_digest"] == config_digest(settings)
        changes = _changes(path / "config.toml", toml, operational(type(settings)))
        if manifest["seed"] != seed:
            changes.insert(0, f"seed was {manifest['seed']}, is {seed}")
        elif same:
            changes = []
        if changes:
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise DreamGymError(
                f"{path} holds a run with another config ({'; '.join(changes[:3])}{more}): "
                "use --fresh to move it aside and start again, or another folder"
            )
        manifest["resumed"].append(start)
        write_json(path / "manifest.json", manifest)
        if same and _read_flat(path / "config.toml") != _flat(tomllib.loads(toml)):
            write_atomic(path / "config.toml", toml.encode())  # asked of another server, say
    if not (path / "config.toml").exists():  # new, or killed right after its manifest
        write_atomic(path / "config.toml", toml.encode())


def _changes(path: Path, toml: str, apart: Iterable[str]) -> list[str]:
    """What is said otherwise now, `apart` from sections that a resumed run may change."""
    old, new = _read_flat(path), _flat(tomllib.loads(toml))
    if old is None:
        return ["its config.toml is gone or damaged"]
    named = tuple(f"{section}." for section in apart)
    keys = [k for k in {**new, **old} if old.get(k) != new.get(k) and not k.startswith(named)]
    lines = [f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys]
    return lines or ["its config.toml was edited"]


def _read_flat(path: Path) -> dict[str, Any] | None:
    try:
        return _flat(tomllib.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            rows |= _flat(value, f"{prefix}{name}.")
        else:
            rows[prefix + name] = value
    return rows


def _versions() -> dict[str, str | None]:
    return {
        "dreamgym": dreamgym.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _installed("torch"),
    }


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of a source checkout, with "-dirty" where files differ; None when installed."""
    root = Path(dreamgym.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (FileNotFoundError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def swap_folder(fresh: Path, folder: Path) -> None:
    """Put a finished folder in the place of an older one; see `settled` for a kill in between."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def settled(folder: Path) -> Path | None:
    """The folder that `swap_folder` left, brought back if it was killed halfway; or nothing."""
    old = folder.with_name(folder.name + ".old")
    if not folder.exists() and old.exists():
        old.rename(folder)
    return folder if folder.exists() else None
