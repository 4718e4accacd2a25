"""The commands' bodies. Heavy imports stand inside them: `--help` must not pay for torch."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dreamgym.types import DreamGymError

Tokens = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True,
        help="A recipe (TOML), then any setting of `dreamgym config`: --section.key VALUE.",
    ),
]
"""`*tokens: Tokens` takes what the command does not declare; `recipe_and_flags` splits it."""


def recipe_and_flags(tokens: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """The recipe, where one leads, and the flags that override it."""
    if tokens and not tokens[0].startswith("--"):
        return Path(tokens[0]), tokens[1:]
    return None, tokens


def config(*tokens: Tokens, json: bool = False) -> None:
    """Print every setting, or a recipe as it resolves with flags, each value with its origin."""
    from dreamgym.config import RunConfig
    from dreamgym.settings import describe, dump_toml, load_config

    if tokens:
        settings, origins = load_config(RunConfig, *recipe_and_flags(tokens))
        tree = {"config": settings.model_dump(mode="json"), "origins": origins}
        print(json_text.dumps(tree, indent=2) if json else dump_toml(settings, origins).rstrip())
        return
    rows = describe(RunConfig)
    if json:
        print(json_text.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        default = "required" if row.required else json_text.dumps(row.default, ensure_ascii=False)
        print(f"--{row.path.replace('_', '-')}  ({row.type}; {default})\n      {row.doc}")


def doctor(*extras: str, json: bool = False) -> int:
    """Check this machine and print what would fix it.

    Fails when the core is broken, or an extra that you name: `dreamgym doctor alfworld`.
    """
    from dreamgym.doctor import examine, report

    checks = examine(extras)
    if json:
        print(json_text.dumps([asdict(check) for check in checks], indent=2))
    else:
        report(checks)
    return 1 if any(check.required and not check.ok for check in checks) else 0


def version(*, json: bool = False) -> None:
    """Print the version."""
    from dreamgym import __version__

    print(json_text.dumps({"version": __version__}) if json else __version__)


RunDir = Annotated[Path, Parameter(help="The run folder; a killed run goes on from there.")]
Fresh = Annotated[bool, Parameter(help="Move an older run in that folder aside and start anew.")]


def quickstart(
    *, run_dir: RunDir = Path("runs/quickstart"), seed: int = 0, fresh: Fresh = False,
    json: bool = False,
) -> None:  # fmt: skip
    """Run the whole loop on generated games with the embedded defaults, in some minutes."""
    _train([f"--seed={seed}"], run_dir, fresh, json, "after")


def train(
    *tokens: Tokens, run_dir: RunDir | None = None, fresh: Fresh = False, json: bool = False
) -> None:
    """Run a recipe: collect, fit, clone, measure, train in the dream, measure again."""
    recipe, _ = recipe_and_flags(tokens)
    name = recipe.stem if recipe else "default"
    _train(tokens, run_dir or Path("runs") / name, fresh, json, "after")


Without = Annotated[bool, Parameter(negative=())]


def fit(
    *tokens: Tokens,
    no_reasoning: Without = False,
    no_history: Without = False,
    no_retrieval: Without = False,
    no_hidden_state: Without = False,
    run_dir: RunDir | None = None,
    fresh: Fresh = False,
    json: bool = False,
) -> None:
    """Train the experience model on stored transitions and audit it; stops before the policy.

    The four switches are the paper's ablations. Without a hidden state there are no facts, so that
    the model judges the reward and neither rules nor guards apply.
    """
    recipe, flags = recipe_and_flags(tokens)
    name = recipe.stem if recipe else "default"
    ablations = [
        (no_reasoning, ["reasoning=false"]),
        (no_history, ["history=false"]),
        (no_retrieval, ["k=0"]),
        (no_hidden_state, ["hidden=false", "judge=model", "rules=false", "guard=false"]),
    ]
    chosen = [f"--experience.{flag}" for on, told in ablations if on for flag in told]
    tokens = (*([str(recipe)] if recipe else []), *flags, *chosen)
    _train(tokens, run_dir or Path("runs") / name, fresh, json, "audit")


def annotate(
    store: Path,
    *,
    teacher: str = "rules",
    limit: int | None = None,
    in_flight: int = 8,
    usd_read: float | None = None,
    usd_written: float | None = None,
    json: bool = False,
) -> None:
    """Write a reason for every offline transition of a store or run folder; goes on if killed.

    `rules` finds the causes in the log itself. Any other teacher is a folder with a language model,
    asked once an episode; prices are dollars per million tokens, unknown unless given.
    """
    from dreamgym.progress import RichProgress
    from dreamgym.replay.store import ReplayStore

    path = store / "replay.sqlite" if store.is_dir() else store
    if not path.exists():
        raise DreamGymError(f"there is no replay store at {path}: collect or import first")
    if teacher != "rules":
        _require_train_extra()
        _use_cores()
    from dreamgym.job import annotate_logs

    with ReplayStore(path) as replay:
        report = annotate_logs(
            replay, teacher, RichProgress(), limit=limit, in_flight=in_flight,
            price=(usd_read, usd_written),
        )  # fmt: skip
    print(json_text.dumps(report, indent=2) if json else _lines(report))


def _train(tokens: Sequence[str], run_dir: Path, fresh: bool, json: bool, until: str) -> None:
    from dreamgym.config import RunConfig
    from dreamgym.settings import load_config

    settings, origins = load_config(RunConfig, *recipe_and_flags(tokens))
    _require_train_extra()
    from rich.console import Console

    from dreamgym.job import Job, finish, run_job
    from dreamgym.progress import RichProgress
    from dreamgym.report.summary import summary_table, verdict, write_figure
    from dreamgym.run_folder import open_run

    if scarce := settings.offline.scarce():
        print(f"warning: {scarce}", file=sys.stderr)
    _use_cores()
    with open_run(run_dir, settings, origins, seed=settings.seed, fresh=fresh) as folder:
        job = Job(settings, folder, RichProgress())
        results = run_job(job, until=until)
        if until == "after":
            finish(job, results)
            figure = write_figure(folder.path, results)
    if json:
        print(json_text.dumps(results, indent=2))
        return
    if until != "after":
        print(json_text.dumps(results[until], indent=2))
        return
    console = Console()
    console.print(summary_table(results))
    console.print(f"[bold]{verdict(results)}[/bold]\nfigure: {figure}")


def collect(
    *tokens: Tokens,
    agent: Literal["all", "expert", "noisy", "random"] = "all",
    store: Path = Path("runs/replay.sqlite"),
    json: bool = False,
) -> None:
    """Play expert, noisy and random agents in the real world and store every transition.

    Noisy and random agents do what the world refuses: a dream has to know how that looks.
    """
    from dreamgym.build import fill_store, make_games
    from dreamgym.config import RunConfig
    from dreamgym.progress import RichProgress
    from dreamgym.replay.store import ReplayStore
    from dreamgym.settings import load_config

    settings, _ = load_config(RunConfig, *recipe_and_flags(tokens))
    others = [name for name in ("expert", "noisy", "random") if agent not in (name, "all")]
    offline = settings.offline.model_copy(update=dict.fromkeys(others, 0))
    settings = settings.model_copy(update={"offline": offline})
    games = make_games(settings.world, settings.seed)
    with (
        ReplayStore(store) as replay,
        RichProgress().bar("collect", offline.expert + offline.noisy + offline.random) as tick,
    ):
        report = fill_store(settings, games.train, replay, lambda n: tick(n, ""))
        report |= replay.counts()
    print(json_text.dumps(report, indent=2) if json else _lines(report))


def import_(
    path: Path,
    *,
    store: Path = Path("runs/replay.sqlite"),
    kind: Literal["alfworld", "jsonl"] = "jsonl",
    json: bool = False,
) -> None:
    """Read logged trajectories into the store: a user's own JSON lines, or ALFWorld's logs.

    ALFWorld's are replayed in our engine, so that old wordings become today's.
    """
    from rich.console import Console

    from dreamgym.replay.importer import import_alfworld, import_jsonl, report_table
    from dreamgym.replay.store import ReplayStore

    with ReplayStore(store) as replay:
        if kind == "alfworld":
            from dreamgym.envs.alfworld.games import load_games

            games = [g for split in ("train", "valid_seen", "valid_unseen")
                     for g in load_games("official", split)]  # fmt: skip
            report = import_alfworld(path, replay, games)
        else:
            report = import_jsonl(path, replay)
    if json:
        print(json_text.dumps(report.as_dict(), indent=2))
    else:
        Console().print(report_table(report))


def audit(
    run: Path,
    *,
    episodes: int = 40,
    sequences: int = 10,
    replays: int = 5,
    judge: Path | None = None,
    backend: Literal["fast", "engine"] = "fast",
    json: bool = False,
) -> None:
    """Judge a run's dream against held-out real play: audit.json, audit.md, audit.png, dreams.md.

    Next states beside two baselines, whole episodes in either world and the dream's actions
    replayed in the real one, luck, probes, calibration; `--judge FOLDER` adds an LLM's opinion.
    """
    _require_train_extra()
    from dreamgym.audit_job import opened, run_audit
    from dreamgym.audit_parts import AuditConfig
    from dreamgym.progress import RichProgress
    from dreamgym.report.audit import audit_text, write_audit

    _use_cores()
    config = AuditConfig(episodes, sequences, replays, backend=backend)
    with opened(run, config, RichProgress(), judge) as what:
        result = run_audit(what)
    written = write_audit(run / "audit", result)
    if json:
        print(json_text.dumps(result, indent=2))
        return
    print(audit_text(result))
    print("written: " + ", ".join(str(path) for path in written))


def evaluate(
    run: Path,
    *,
    backend: Literal["fast", "engine"] = "fast",
    episodes: int = 100,
    weights: Literal["policy", "cloned"] = "policy",
    json: bool = False,
) -> None:
    """Measure a run's policy in the real world on its held-out games, with a Wilson interval."""
    _require_train_extra()
    from dreamgym.job import measure_real
    from dreamgym.progress import RichProgress
    from dreamgym.report.summary import rate_text

    _use_cores()
    result = measure_real(run, backend, episodes, weights, RichProgress())
    print(json_text.dumps(result, indent=2) if json else f"real success: {rate_text(result)}")


def _lines(report: Mapping[str, object]) -> str:
    return "\n".join(f"{name:<28}{value}" for name, value in report.items())


def _require_train_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "safetensors") if not find_spec(name)]
    if missing:
        raise DreamGymError(
            f"{', '.join(missing)} not installed: training needs the extra `train`. "
            "Run: pip install 'dreamgym[train]'"
        )


def _use_cores() -> None:
    """Warnings to standard error, quiet libraries, no more threads than cores."""
    import logging
    import os

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
