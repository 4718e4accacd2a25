"""Makes a run's parts from its config: games, offline experience, models."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dreamgym.agents.prompt import acting_conversation
from dreamgym.algos.batch import Row, conversation_row
from dreamgym.algos.dpo import Pair, fit_dpo, preference_pairs
from dreamgym.algos.sft import fit
from dreamgym.audit.transitions import predict
from dreamgym.config import RunConfig, WorldConfig
from dreamgym.envs.alfworld.demonstrate import collect_offline, demonstrate
from dreamgym.envs.alfworld.facts import true_household
from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.furnish import RoomSpec
from dreamgym.envs.alfworld.games import Game, content_hash, load_games
from dreamgym.envs.alfworld.generate import generate_games
from dreamgym.envs.alfworld.text import AlfworldText
from dreamgym.envs.text import Annotation
from dreamgym.experience.annotate import read_logs
from dreamgym.experience.confidence import RAW, Calibration, calibrate
from dreamgym.experience.corpus import Conversation, experience_corpus
from dreamgym.experience.dream import DreamWorld
from dreamgym.experience.model import ExperienceModel
from dreamgym.ledger import Ledger
from dreamgym.llm.chat import make_encoder
from dreamgym.llm.copying import write_copying
from dreamgym.llm.encoding import Codec
from dreamgym.llm.tiny import make_llama, train_tokenizer
from dreamgym.llm.weights import load_model, save_model
from dreamgym.llms import open_llm
from dreamgym.replay.checks import Provenance
from dreamgym.replay.retrieve import LexicalRetriever
from dreamgym.replay.store import ReplayStore
from dreamgym.types import DreamGymError, Episode, Task

OnTokens = Callable[[int, float], None]
CALIBRATION = "calibration.json"
_HELD_OUT = 25
"""One of so many offline episodes is kept out of the fit, for calibration."""
_CALIBRATED = 60
"""Episodes that calibration reads at most."""


@dataclass(frozen=True, slots=True)
class Games:
    """Games to learn from, to validate on, and to measure on: none of these is in the others."""

    train: tuple[Game, ...]
    eval: tuple[Game, ...]
    validation: tuple[Game, ...] = ()  # of the training split, and used for nothing else


def make_games(cfg: WorldConfig, seed: int, num_validation: int = 0) -> Games:
    """Raises DreamGymError where a game to measure on is also one to learn from."""
    number = cfg.num_train + num_validation
    if cfg.games == "generated":
        train = _generated(cfg, "train", seed)
        held_out = _generated(cfg, cfg.eval_split, seed)
        known, measured = train(number), held_out(cfg.num_eval)
    else:
        pool = _of_kinds(load_games(cfg.games, "train"), cfg.train_kinds)
        known = _choose(pool, cfg.num_train, seed)
        if num_validation:
            chosen = {game.id for game in known}
            rest = [game for game in pool if game.id not in chosen]
            known = [*known, *_choose(rest, num_validation, seed)]
        pool = _of_kinds(load_games(cfg.games, cfg.eval_split), cfg.eval_kinds)
        measured = _choose(pool, cfg.num_eval, seed)
    seen = {content_hash(game) for game in known}
    leaked = [game.id for game in measured if content_hash(game) in seen]
    if leaked:
        raise DreamGymError(f"{leaked[0]} is among the games to learn from: choose another split")
    return Games(tuple(known[: cfg.num_train]), tuple(measured), tuple(known[cfg.num_train :]))


def _generated(cfg: WorldConfig, split: str, seed: int) -> Callable[[int], list[Game]]:
    """So many games of one split."""
    rooms = cfg.tasks_per_room if split == "train" else 1
    spec = RoomSpec(
        receptacles=(cfg.min_places, cfg.max_places), things=(cfg.min_things, cfg.max_things)
    )
    kinds = cfg.train_kinds if split == "train" else cfg.eval_kinds

    def make(number: int) -> list[Game]:
        made: list[Game] = []
        asked = number
        while len(made) < number:
            games = generate_games(asked, seed=seed, split=split, spec=spec, tasks_per_room=rooms)
            made, asked = _of_kinds(games, kinds), 2 * asked
        return made[:number]

    return make


def _of_kinds(games: Sequence[Game], kinds: Sequence[str]) -> list[Game]:
    return [game for game in games if not kinds or game.task_type in kinds]


def held_out_tasks(cfg: WorldConfig, games: Games) -> list[Task]:
    """Every task that is measured on or validated with, and that no variant may be: of official
    games both held-out splits, whichever is asked for."""
    others: list[Game] = []
    if cfg.games != "generated":
        for split in ("valid_seen", "valid_unseen"):
            others += load_games(cfg.games, split)
    return first_states([*games.eval, *games.validation, *others])


def _choose(games: Sequence[Game], number: int, seed: int) -> list[Game]:
    """A fixed choice: files list games by task type, so that the first ones are all alike."""
    if number > len(games):
        raise DreamGymError(f"{number} games are asked for and there are {len(games)}")
    return random.Random(seed).sample(games, number)


def fill_store(
    cfg: RunConfig,
    games: Sequence[Game],
    store: ReplayStore,
    on_episode: Callable[[int], None] = lambda n: None,
) -> dict[str, int]:
    """Offline experience into the replay buffer; returns what became of it.

    Episodes are made from the seed, so that a killed collection starts again and finds what it had
    stored as exact duplicates.
    """
    counts: dict[str, int] = {}
    number = itertools.count(1)

    def counted(episodes: Iterable[Episode]) -> Iterator[Episode]:
        for episode in episodes:
            yield episode
            on_episode(next(number))

    for agent in ("expert", "noisy", "random"):
        mix = {agent: getattr(cfg.offline, agent)}
        episodes = collect_offline(games, mix, cfg.seed, max_turns=cfg.offline.max_turns)
        provenance = Provenance(run="offline", agent=agent, split="train", env="alfworld")
        report = store.add_episodes(counted(episodes), provenance=provenance).as_dict()
        counts |= {
            f"{agent}_{key}": value for key, value in report.items() if isinstance(value, int)
        }
    return counts


Logs = Sequence[tuple[Episode, Annotation]]
"""Offline episodes and what hindsight makes of them."""


def experience_rows(
    cfg: RunConfig, logs: Logs, store: ReplayStore, encoder: Codec
) -> tuple[list[Row], list[Row]]:
    """Rows of transitions, and all others; those longer than the context are left out."""
    retriever = LexicalRetriever.from_store(store) if cfg.experience.k else None
    corpus = experience_corpus(
        logs, AlfworldText(), cfg.experience, retriever=retriever, seed=cfg.seed
    )
    others = corpus.guesses
    if cfg.offline.acting:
        noisy = store.episodes(world="real", split="train", agent="noisy", success=True)
        others = others + [acting_conversation(episode) for episode in noisy]

    def rows(conversations: Sequence[Conversation]) -> list[Row]:
        made = (conversation_row(messages, encoder) for messages in conversations)
        return [row for row in made if len(row.ids) < cfg.model.context]

    return rows(corpus.transitions), rows(others)


def corpus_texts(cfg: RunConfig, logs: Logs) -> list[str]:
    """What the tokenizer is trained on: a sample of the offline text as it will be prompted."""
    sample = logs[:: max(1, len(logs) // 400)]
    corpus = experience_corpus(
        sample, AlfworldText(), cfg.experience, retriever=None, seed=cfg.seed
    )
    told = corpus.transitions + corpus.guesses
    return [message.text for messages in told for message in messages]


def fit_experience(cfg: RunConfig, store: ReplayStore, folder: Path, on_step: OnTokens) -> float:
    """Tokenizer and experience model from the store's offline episodes (Eq. 5), into `folder`.

    A few episodes are kept out of it: on them the model's confidence is calibrated.
    """
    every = read_logs(store, AlfworldText(), cfg.offline.teacher)
    if cfg.offline.fit_share < 1:
        number = round(cfg.offline.fit_share * len(every))
        every = [
            every[i] for i in sorted(random.Random(cfg.seed).sample(range(len(every)), number))
        ]
    held_out = every[_HELD_OUT - 1 :: _HELD_OUT]
    logs = [log for index, log in enumerate(every, 1) if index % _HELD_OUT]
    if cfg.model.pretrained:
        model, tokenizer = load_model(cfg.model.pretrained)
    else:
        model, tokenizer = _new_model(cfg, logs)
    transitions, others = experience_rows(cfg, logs, store, make_encoder(tokenizer))
    loss = fit(
        model,
        transitions + others,
        cfg.fit,
        seed=cfg.seed,
        first=transitions,
        checkpoint=folder.with_name("fit.checkpoint"),
        on_step=on_step,
    )
    save_model(model, tokenizer, folder)
    _calibrate(cfg, store, folder, held_out[:_CALIBRATED])
    return loss


def _new_model(cfg: RunConfig, logs: Logs) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A tiny Llama whose words are the logs'."""
    tokenizer = train_tokenizer(corpus_texts(cfg, logs), cfg.model.vocab_size)
    torch.manual_seed(cfg.seed)
    model = make_llama(
        len(tokenizer),
        width=cfg.model.width,
        layers=cfg.model.layers,
        heads=cfg.model.heads,
        kv_heads=cfg.model.kv_heads,
        context=cfg.model.context,
    )
    if cfg.model.copying and cfg.model.layers > 1:
        write_copying(model, seed=cfg.seed)
    return model, tokenizer


def _calibrate(cfg: RunConfig, store: ReplayStore, experience: Path, logs: Logs) -> None:
    dream = make_dream(cfg, store, experience, Ledger())
    predictions = asyncio.run(predict(dream.model, logs))
    told = [p.answer for p in predictions if p.answer is not None]
    right = [p.exact for p in predictions if p.answer is not None]
    calibrate([answer.logprob for answer in told], right).save(experience / CALIBRATION)


def clone_policy(
    cfg: RunConfig, store: ReplayStore, experience: Path, folder: Path, on_step: OnTokens
) -> dict[str, float]:
    """Behaviour cloning, from the experience model's weights: it has learnt the language. Then DPO,
    where `clone.dpo.pairs` asks for it, against what was cloned."""
    model, tokenizer = load_model(cfg.clone.pretrained or experience)
    rows = demonstration_rows(cfg, store, tokenizer)
    metrics = {}
    if rows:
        metrics["loss"] = fit(model, rows, cfg.clone.sft, seed=cfg.seed, on_step=on_step)
    if cfg.clone.dpo.pairs:
        pairs = preference_rows(cfg, store, make_encoder(tokenizer))
        metrics |= {"dpo/pairs": float(len(pairs))}
        metrics |= fit_dpo(model, pairs, cfg.clone.dpo, seed=cfg.seed)
    save_model(model, tokenizer, folder)
    return metrics


def preference_rows(cfg: RunConfig, store: ReplayStore, encoder: Codec) -> list[Pair]:
    """Solved and failed offline attempts at one task; those longer than the context are left out.

    Raises DreamGymError where the logs hold no two such attempts.
    """
    logs = store.episodes(world="real", split="train")
    found = preference_pairs(logs, cfg.clone.dpo.pairs, seed=cfg.seed)
    pairs = []
    for pair in found:
        good, bad = (conversation_row(acting_conversation(episode), encoder) for episode in pair)
        if max(len(good.ids), len(bad.ids)) < cfg.model.context:
            pairs.append((good, bad))
    if not pairs:
        raise DreamGymError(
            "clone.dpo.pairs asks for DPO, and no task of the logs was both solved and failed "
            "within the context: log more attempts at each task, or set it to 0"
        )
    return pairs


def demonstration_rows(
    cfg: RunConfig, store: ReplayStore, tokenizer: PreTrainedTokenizerFast
) -> list[Row]:
    """The expert's episodes, as the policy is to write them."""
    encoder = make_encoder(tokenizer)
    demonstrations = store.episodes(
        world="real", split="train", agent="expert", success=True, limit=cfg.clone.demonstrations
    )
    return [conversation_row(acting_conversation(episode), encoder) for episode in demonstrations]


def training_tasks(games: Games, store: ReplayStore) -> list[Task]:
    """The training games' tasks, with the first states that the offline logs show."""
    logged = {e.task.id: e.task for e in store.episodes(world="real", split="train")}
    return [logged[game.id] for game in games.train if game.id in logged]


def first_states(games: Iterable[Game]) -> list[Task]:
    """Tasks with their first states as the engine gives them: to compare with, not to dream of."""
    return [replace(game.task(), first_state=FastGame(game).reset()) for game in games]


def true_facts(game: Game) -> Mapping[str, str]:
    """What the engine knows of a game's start and the agent cannot see."""
    return true_household(FastGame(game)).facts()


def held_out_episodes(
    games: Sequence[Game], seed: int, number: int = 60
) -> list[tuple[Episode, Annotation]]:
    """Noisy and random play on held-out games with the true hidden state, for an audit."""
    logs = []
    for index, game in enumerate(games[:number]):
        agent = ("noisy", "random")[index % 2]
        episode = demonstrate(game, agent, seed=seed, max_turns=20)
        logs.append((episode, AlfworldText().annotate(episode, true_facts(game))))
    return logs


def make_dream(cfg: RunConfig, store: ReplayStore, experience: Path, ledger: Ledger) -> DreamWorld:
    """The dream over an experience model, the fitted one or any other, grounded in the store."""
    name = cfg.experience.llm
    if name:
        calibration = RAW
    else:
        name, calibration = str(experience), Calibration.load(experience / CALIBRATION)
    text = AlfworldText()
    known: dict[str, dict[str, str]] = {}
    logs = read_logs(store, text) if cfg.experience.grounded else []
    for episode, annotation in logs:
        known[episode.task.id] = {**annotation.start, **known.get(episode.task.id, {})}
    return DreamWorld(
        ExperienceModel(
            open_llm(name, "dream", cfg.server, ledger, slots=cfg.rollout.in_flight),
            text,
            cfg.experience,
            retriever=LexicalRetriever.from_store(store) if cfg.experience.k else None,
            known=known,
            calibration=calibration,
        )
    )
