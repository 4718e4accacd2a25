"""One run's dream, judged: against held-out real transitions, and awake in the real engine.

Every part leaves its numbers in the run folder once it is done, so that a killed audit goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dreamgym import audit_parts as parts
from dreamgym import build
from dreamgym.audit.bound import return_bound
from dreamgym.audit_parts import NUM_TOLD, Audit, AuditConfig, Part, Tick
from dreamgym.envs.alfworld.policies import PROBES
from dreamgym.job import Progress, read_config, with_cache
from dreamgym.ledger import Ledger
from dreamgym.llms import limits_of, open_llm
from dreamgym.replay.store import ReplayStore
from dreamgym.run_folder import write_json
from dreamgym.types import DreamGymError


def run_audit(audit: Audit) -> dict[str, Any]:
    """Every part, each once; returns all numbers and leaves them in `audit/`, and nothing else."""
    folder = audit.run / "audit"
    key = _fingerprint(audit)
    results: dict[str, Any] = {"config": asdict(audit.config), "run": audit.run.name}
    for name, (part, total) in _parts(audit).items():
        path = folder / f"{name}.json"
        known = _finished(path, key)
        if known is None:
            with audit.progress.bar(f"audit: {name}", total) as show:
                known = asyncio.run(part(audit, _counting(show)))
            folder.mkdir(exist_ok=True)
            write_json(path, {"key": key, "data": known})
        results[name] = known
    results["bound"] = _bound(results["transitions"])
    write_json(folder / "audit.json", results)
    return results


def _counting(show: Callable[[int, str], None]) -> Tick:
    done = itertools.count(1)
    return lambda: show(next(done), "")


VERSION = 2
"""Of what the parts measure: raised with it, so that no report is made of two kinds of numbers."""


def _fingerprint(audit: Audit) -> str:
    told = json.dumps([VERSION, asdict(audit.config), audit.judge_name])
    digest = hashlib.sha256(told.encode())
    for name in ("experience", "cloned", "policy"):
        for path in sorted((audit.run / name).glob("*.*")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _finished(path: Path, key: str) -> dict[str, Any] | None:
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # not there, or half of it: measured anew
    return saved["data"] if saved.get("key") == key else None


def _parts(audit: Audit) -> dict[str, tuple[Part, int]]:
    c, tasks = audit.config, len(audit.games)
    played = 2 * tasks * len(audit.policies)
    return {
        "transitions": (parts.transitions, 1),
        "episodes": (parts.episodes, 2 * played),
        "probes": (parts.probes, tasks * len(PROBES)),
        "luck": (parts.luck, 4 * c.sequences * c.replays),
        "groups": (parts.groups, 2 * c.groups * c.group_size),
        "judge": (parts.opinion, c.judged),
        "dreams": (parts.dreams, NUM_TOLD),
    }


def _bound(transitions: Mapping[str, Any]) -> dict[str, Any]:
    dreamt = transitions["true hidden state"]["as dreamt"]
    return return_bound(
        1 - dreamt["reward"]["value"], 1 - dreamt["exact"]["value"], transitions["turns"]
    )


@contextmanager
def opened(run: Path, config: AuditConfig, progress: Progress, judge: str = "") -> Iterator[Audit]:
    """A run folder's dream beside the real games it is judged by; needs no lock."""
    cfg = with_cache(read_config(run), run)
    if not cfg.experience.llm and not (run / "experience" / "model.safetensors").exists():
        raise DreamGymError(f"{run} holds no experience model yet: run `dreamgym fit` first")
    games = build.make_games(cfg.world, cfg.seed).eval[: config.episodes]
    with (
        ReplayStore(run / "replay.sqlite") as store,
        closing(Ledger(limits_of(cfg.server), run / "audit" / "ledger.jsonl")) as ledger,
    ):
        llm = open_llm(judge, "judge", cfg.server, ledger, slots=16) if judge else None
        dream = build.make_dream(cfg, store, run / "experience", ledger)
        yield Audit(run, cfg, config, dream, games, store, progress, llm, judge)
