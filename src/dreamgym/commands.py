"""The commands' bodies. Heavy imports stand inside them: `--help` must not pay for torch."""

from __future__ import annotations

import itertools
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
        help="Recipes (TOML), each over the one before, then any setting of `dreamgym config`: "
        "--section.key VALUE.",
    ),
]
"""`*tokens: Tokens` takes what the command does not declare; `recipes_and_flags` splits it."""


def recipes_and_flags(tokens: Sequence[str]) -> tuple[list[Path], Sequence[str]]:
    """The recipes that lead, and the flags that override them."""
    leading = list(itertools.takewhile(lambda token: not token.startswith("--"), tokens))
    return [Path(token) for token in leading], tokens[len(leading) :]


def config(*tokens: Tokens, json: bool = False) -> None:
    """Print every setting, or a recipe as it resolves with flags, each value with its origin."""
    from dreamgym.config import RunConfig
    from dreamgym.settings import describe, dump_toml, load_config

    if tokens:
        settings, origins = load_config(RunConfig, *recipes_and_flags(tokens))
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


def doctor(*extras: str, endpoint: str = "", model: str = "", json: bool = False) -> int:
    """Check this machine and print what would fix it, or what a model server can do.

    Fails when the core is broken, or an extra that you name: `dreamgym doctor alfworld`. With
    `--endpoint URL` a server is asked what it can do (`--model`, if it has several) and the answer
    kept for every later run that uses it.
    """
    from dreamgym.doctor import examine, examine_server, report

    if endpoint:
        found = examine_server(endpoint, model)
        told = {**found["findings"], "model": found["model"], "kept in": found["path"]}
        print(json_text.dumps(found, indent=2) if json else _lines(told))
        return 0
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
    _train([], [f"--seed={seed}"], run_dir, fresh, json, "after")


def train(
    *tokens: Tokens,
    world: Literal["dream", "real"] | None = None,
    init: Path | None = None,
    model: str = "",
    experience_model: str = "",
    endpoint: str = "",
    max_usd: float = 0.0,
    max_tokens: int = 0,
    run_dir: RunDir | None = None,
    fresh: Fresh = False,
    json: bool = False,
) -> None:
    """Run a recipe: collect, fit, clone, measure, train in the dream, measure again.

    `--init RUN` begins where that run ended, with its settings unless others are given; with
    `--world real` that is sim-to-real: the same loop in the real world, within a budget.
    `--experience-model openai:MODEL` dreams with a model at `--endpoint URL` that needs no
    training, until `--max-usd` or `--max-tokens` is spent; `--model smollm2` (or a folder, or a
    name of the Hub) is the model that becomes policy and, unless another dreams, the dream.
    """
    from dreamgym.llms import untrained

    recipes, flags = recipes_and_flags(tokens)
    presets = [("model.pretrained", model), ("server.url", endpoint)]
    presets += [("server.max_usd", f"{max_usd:g}" if max_usd else "")]
    presets += [("server.max_tokens", str(max_tokens) if max_tokens else "")]
    presets += [(f"experience.{key}", value) for key, value in untrained(experience_model)]
    flags = [*(f"--{name}={value}" for name, value in presets if value), *flags]
    name = recipes[-1].stem if recipes else "default"
    if init is not None:
        name = f"{init.name}-{recipes[-1].stem if recipes else world or 'on'}"
        recipes = [_config_of(init), *recipes]
        flags = [*flags, f"--init={init}"]
    if world is not None:
        flags = [*flags, f"--train-world={world}"]
    _train(recipes, flags, run_dir or Path("runs") / name, fresh, json, "after")


def _config_of(run: Path) -> Path:
    if not (run / "config.toml").exists():
        raise DreamGymError(f"--init {run}: no run folder, since it has no config.toml")
    return run / "config.toml"


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
    recipes, flags = recipes_and_flags(tokens)
    name = recipes[-1].stem if recipes else "default"
    ablations = [
        (no_reasoning, ["reasoning=false"]),
        (no_history, ["history=false"]),
        (no_retrieval, ["k=0"]),
        (no_hidden_state, ["hidden=false", "judge=model", "rules=false", "guard=false"]),
    ]
    chosen = [f"--experience.{flag}" for on, told in ablations if on for flag in told]
    _train(recipes, [*flags, *chosen], run_dir or Path("runs") / name, fresh, json, "audit")


def annotate(
    store: Path,
    *,
    teacher: str = "rules",
    limit: int | None = None,
    endpoint: str = "",
    in_flight: int = 8,
    usd_read: float | None = None,
    usd_written: float | None = None,
    max_usd: float = 0.0,
    max_tokens: int = 0,
    json: bool = False,
) -> None:
    """Write a reason for every offline transition of a store or run folder; goes on if killed.

    `rules` finds the causes in the log itself. Any other teacher is a language model, asked once an
    episode: `openai:MODEL` at an endpoint, a folder, `smollm2`. Prices are dollars per million
    tokens, by our list unless given; the limits are hard.
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
    from dreamgym.ledger import Ledger
    from dreamgym.llm.transport import ServerConfig
    from dreamgym.llms import limits_of

    with ReplayStore(path) as replay:
        server = ServerConfig(
            url=endpoint, in_flight=in_flight, usd_read=usd_read, usd_written=usd_written,
            max_usd=max_usd, max_tokens=max_tokens,
        )  # fmt: skip
        ledger = Ledger(limits_of(server))
        report = annotate_logs(
            replay, teacher, RichProgress(), limit=limit, server=server, ledger=ledger
        )
    print(json_text.dumps(report, indent=2) if json else _lines(report))


def _train(
    recipes: Sequence[Path],
    flags: Sequence[str],
    run_dir: Path,
    fresh: bool,
    json: bool,
    until: str,
) -> None:
    from dreamgym.config import RunConfig
    from dreamgym.settings import load_config

    settings, origins = load_config(RunConfig, recipes, flags)
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

    settings, _ = load_config(RunConfig, *recipes_and_flags(tokens))
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
    judge: str = "",
    backend: Literal["fast", "engine"] = "fast",
    json: bool = False,
) -> None:
    """Judge a run's dream against held-out real play: audit.json, audit.md, audit.png, dreams.md.

    Next states beside two baselines, whole episodes in either world and the dream's actions
    replayed in the real one, luck, probes, calibration; `--judge NAME` adds an LLM's opinion.
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
    """Measure a run's policy in the real world on its held-out games, with a Wilson interval.

    `policy` is what the run's gate promoted last, or else its last checkpoint.
    """
    _require_train_extra()
    from dreamgym.build import make_games
    from dreamgym.job import as_data, measure_real, read_config
    from dreamgym.progress import RichProgress
    from dreamgym.report.summary import rate_text

    _use_cores()
    cfg = read_config(run)
    games = make_games(cfg.world, cfg.seed).eval[:episodes]
    result = as_data(measure_real(run, games, backend, weights, RichProgress()))
    print(json_text.dumps(result, indent=2) if json else f"real success: {rate_text(result)}")


def curriculum(
    what: Literal["show"], run: Path, *, step: int | None = None, json: bool = False
) -> None:
    """`dreamgym curriculum show RUN`: why each task of a step was chosen, and the variants' tree.

    The last step, unless `--step` names another.
    """
    from rich.console import Console

    from dreamgym.report.curriculum import curriculum_data, show_curriculum

    data = curriculum_data(run, step)
    if json:
        print(json_text.dumps(data, indent=2))
    else:
        show_curriculum(data, Console())


def reproduce(
    world: Literal["alfworld"],
    *only: str,
    scale: Literal["smoke", "cpu", "paper"] = "cpu",
    data: Annotated[tuple[str, ...], Parameter(help="few, full or both: the offline logs.")] = (),
    seeds: tuple[int, ...] = (),
    jobs: int = 2,
    backend: Annotated[
        Literal["auto", "engine", "fast"],
        Parameter(help="Who plays the last measurement: auto is ALFWorld's engine if installed."),
    ] = "auto",
    runs: Path = Path("runs/reproduce"),
    results: Path | None = None,
    page: Path | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Run the paper's table: every row, data regime and seed, then write the page about it.

    Name cells or parts (table, ablation, transfer) to run only those. A killed table goes on.
    `--dry-run` resolves every cell and estimates what it takes.
    """
    _require_train_extra()
    from dreamgym.progress import NoProgress, RichProgress
    from dreamgym.reproduce.command import Request, reproduce_table

    _use_cores()
    request = Request(scale, data, seeds, only, jobs, backend, runs, results, page, dry_run=dry_run)
    report = reproduce_table(request, NoProgress() if json else RichProgress())
    print(json_text.dumps(report, indent=2) if json else report["text"])


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
