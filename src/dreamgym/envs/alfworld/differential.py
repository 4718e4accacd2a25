"""Plays the fast back end beside ALFWorld's own engine and counts every difference.

    python -m dreamgym.envs.alfworld.differential --games 200 --steps 20000 --workers 2

Half of the episodes wander at random, half follow recorded actions of the expert where a game has
some; both say wrong things now and then. Compared at each step: state, admissible commands,
reward, done, and whether the action was accepted.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from dreamgym.envs.alfworld.fast import FastGame
from dreamgym.envs.alfworld.games import SPLITS, Game, content_hash, data_dir, load_games
from dreamgym.envs.alfworld.pool import WORKER
from dreamgym.envs.alfworld.reference import require_engine
from dreamgym.envs.alfworld.worker import Worker

MAX_SHOWN = 20
TIMEOUT_S = 300.0  # of one request, on a machine that is busy with other things
GAMES_PER_PROCESS = 25  # the engine does not give its memory back


@dataclass(frozen=True, slots=True)
class Difference:
    """One step at which the two did not agree."""

    game: str
    step: int
    action: str
    engine: str
    fast: str


@dataclass(slots=True)
class Summary:
    """What a run compared and what it found; sums up over games."""

    games: int = 0
    steps: int = 0
    wins: int = 0
    invalid: int = 0
    seconds: float = 0.0
    verbs: Counter[str] = field(default_factory=Counter)  # accepted actions by their first word
    differences: list[Difference] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Take in what another run found."""
        self.games += other.games
        self.steps += other.steps
        self.wins += other.wins
        self.invalid += other.invalid
        self.seconds += other.seconds
        self.verbs.update(other.verbs)
        self.differences.extend(other.differences)


class Engine(Protocol):
    """The engine, here or in another process."""

    def reset(self) -> str: ...

    def step(self, action: str) -> tuple[str, float, bool, bool]: ...

    def admissible(self) -> list[str]: ...


class RemoteGame:
    """A game in an engine process, for a thread that can wait."""

    def __init__(self, worker: Worker, game: Game) -> None:
        self._worker = worker
        self._ask("start", game=asdict(game))

    def reset(self) -> str:
        return str(self._ask("reset")["state"])

    def step(self, action: str) -> tuple[str, float, bool, bool]:
        answer = self._ask("step", action=action)
        return answer["state"], answer["reward"], answer["done"], answer["valid"]

    def admissible(self) -> list[str]:
        return list(self._ask("admissible")["admissible"])

    def _ask(self, do: str, **fields: object) -> dict[str, Any]:
        return self._worker.request({"do": do, **fields}, timeout_s=TIMEOUT_S)


def compare_game(
    game: Game, engine: Engine, steps: int, seed: int, script: Sequence[str] = ()
) -> Summary:
    """Play both back ends for a number of steps: the script first, then at random."""
    started = time.perf_counter()
    found = Summary(games=1)
    fast = FastGame(game)
    actor = Actor(random.Random(f"{seed} {game.id}"), fast)
    texts = (engine.reset(), fast.reset())
    remaining = iter(script)
    action = "(reset)"
    step, done = 0, False
    while True:
        _compare(found, (game.id, step, action), texts, (engine.admissible(), fast.admissible()))
        if step >= steps:
            break
        if done:  # go on from a fresh start: what comes after an ending is nobody's business
            texts = (engine.reset(), fast.reset())
            action, done = "(reset)", False
            _compare(
                found, (game.id, step, action), texts, (engine.admissible(), fast.admissible())
            )
        action = next(remaining, "") or actor.choose()
        ours, theirs = fast.step(action), engine.step(action)
        step += 1
        done = theirs[2] or ours[2]
        texts = (repr(theirs), repr(ours))
        found.steps += 1
        found.wins += theirs[2]
        found.invalid += not theirs[3]
        if theirs[3]:
            found.verbs[action.split()[0]] += 1
    found.seconds = time.perf_counter() - started
    return found


def _compare(
    found: Summary,
    where: tuple[str, int, str],
    texts: tuple[str, str],
    commands: tuple[list[str], list[str]],
) -> None:
    if texts[0] != texts[1]:
        found.differences.append(Difference(*where, *texts))
    if commands[0] != commands[1]:
        only = [sorted(set(commands[i]) - set(commands[1 - i])) for i in (0, 1)]
        found.differences.append(Difference(*where, f"only engine: {only[0]}", f"fast: {only[1]}"))


@dataclass(slots=True)
class Actor:
    """Wanders where much can happen, and every tenth time says what the world will not take."""

    rng: random.Random
    game: FastGame

    def choose(self) -> str:
        """The next action."""
        commands = self.game.admissible()
        if self.rng.random() < 0.1:
            return self._wrong(commands)
        by_verb: dict[str, list[str]] = {}
        for command in commands:
            by_verb.setdefault(command.split()[0], []).append(command)
        # a verb first: among all commands nine of ten are a walk to somewhere
        weights = [1 if verb in ("help", "close") else 3 for verb in by_verb]
        return self.rng.choice(by_verb[self.rng.choices(list(by_verb), weights)[0]])

    def _wrong(self, commands: list[str]) -> str:
        rng = self.rng
        names = sorted(self.game.ids)
        one, two = rng.choice(names), rng.choice(names)
        some = rng.choice(commands)
        return rng.choice(
            [
                f"take {one} from {two}",
                f"move {one} to {two}",
                f"put {one} in/on {two}",
                f"{rng.choice(['heat', 'cool', 'clean', 'slice'])} {one} with {two}",
                f"{rng.choice(['open', 'close', 'examine', 'use', 'go to'])} {one}",
                some.upper(),
                f"{some} please",
                f"  {some}\n",  # the world trims this one and takes it
                some.replace(" ", "  ", 1),
                some.rsplit(" ", 1)[0],
                "",
                "look around",
                "go to the moon 1",
            ]
        )


def pick_games(count: int, seed: int) -> list[Game]:
    """Games of all three official splits, drawn by seed: a third each, as far as they go."""
    rng = random.Random(seed)
    picked: list[Game] = []
    for index, split in enumerate(SPLITS[::-1]):  # the small splits first, train fills up
        share = (count - len(picked)) // (len(SPLITS) - index)
        pool = load_games("official", split)
        picked += rng.sample(pool, min(share, len(pool)))
    return picked


def recorded_actions(games: Sequence[Game]) -> dict[str, list[str]]:
    """The expert's recorded actions by game id, for those of the games that have a record."""
    wanted = {game.id for game in games}
    path = data_dir() / "alfworld" / "expert_trajectories_train.jsonl.xz"
    if not path.is_file():
        print(f"{path} is absent: no scripted episodes", file=sys.stderr)
        return {}
    scripts = {}
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            game_id = f"{record['task']}/{record['trial']}"
            if game_id in wanted:
                scripts[game_id] = [new_wording(action) for action in record["actions"]]
    return scripts


def new_wording(action: str) -> str:
    """An action as engines before 0.4 took it ("put X in/on Y"), in today's words."""
    if action.startswith("put ") and " in/on " in action:
        subject, target = action.removeprefix("put ").split(" in/on ")
        return f"move {subject} to {target}"
    return action


def run(
    games: Sequence[Game],
    steps: int,
    *,
    workers: int = 1,
    seed: int = 0,
    scripts: Mapping[str, Sequence[str]] | None = None,
) -> Summary:
    """Compare the games for `steps` in total, each for an equal share of them."""
    require_engine()
    share = -(-steps // len(games))
    total = Summary()
    for found in _each(games, share, workers, seed, scripts or {}):
        total.add(found)
        print(
            f"{total.games}/{len(games)} games, {total.steps} steps, "
            f"{len(total.differences)} differences",
            file=sys.stderr,
        )
    return total


def _each(
    games: Sequence[Game],
    share: int,
    workers: int,
    seed: int,
    scripts: Mapping[str, Sequence[str]],
) -> Iterator[Summary]:
    """Each thread drives one engine process after another over the games that are left."""
    left: SimpleQueue[Game] = SimpleQueue()
    done: SimpleQueue[Summary] = SimpleQueue()
    for game in games:
        left.put(game)

    def drive() -> None:
        while not left.empty():
            worker = Worker(WORKER)
            try:
                for _ in range(GAMES_PER_PROCESS):
                    game = left.get_nowait()
                    engine = RemoteGame(worker, game)
                    done.put(compare_game(game, engine, share, seed, scripts.get(game.id, ())))
            except Empty:
                return
            finally:
                worker.kill()

    with ThreadPoolExecutor(workers) as threads:
        drives = [threads.submit(drive) for _ in range(workers)]
        for _ in games:
            while done.empty():
                for finished in drives:
                    if finished.done():
                        finished.result()  # raises what went wrong in the thread
                time.sleep(0.05)
            yield done.get()


def main() -> int:
    """Print a JSON summary; the exit status is 1 where anything differed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20_000, help="over all games")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    games = pick_games(args.games, args.seed)
    scripts = recorded_actions(games[::2])
    summary = run(games, args.steps, workers=args.workers, seed=args.seed, scripts=scripts)
    report = {
        "games": summary.games,
        "different_games": len(set(map(content_hash, games))),
        "splits": Counter(game.split for game in games),
        "scripted_games": len(scripts),
        "steps": summary.steps,
        "wins": summary.wins,
        "refused_actions": summary.invalid,
        "accepted_actions": dict(sorted(summary.verbs.items())),
        "engine_seconds": round(summary.seconds, 1),
        "differences": len(summary.differences),
        "shown": [asdict(difference) for difference in summary.differences[:MAX_SHOWN]],
    }
    print(json.dumps(report, indent=1))
    return 1 if summary.differences else 0


if __name__ == "__main__":
    sys.exit(main())
