"""Similar transitions for a (state, action): the demonstrations that ground a dream (§4.1.1).

Our own inverted index, because it must grow by a row at a time while agents dream: `bm25s`, which
is no faster, builds everything anew for one row. Logs repeat themselves, so every distinct state
and every distinct action is indexed and scored once, and a key is a pair of the two.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dreamgym.replay.rows import Row
from dreamgym.replay.store import ReplayStore
from dreamgym.replay.text import tokens

_K1 = 1.2  # how soon a repeated word stops counting
_B = 0.75  # how much a long text is held against it
_ACTION_WEIGHT = 3.0
"""The action is four words beside the state's sixty, and decides what happens."""
_PATIENCE = 64
"""Keys whose every row is excluded that a search passes over before it asks which keys are left."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Query:
    """What the agent sees and does now, and what must not be shown to whoever answers."""

    state: str
    action: str
    exclude_task: str | None = None
    exclude_episode: str | None = None
    real_only: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored transition and how similar its (state, action) is."""

    row: Row
    score: float


class Retriever(Protocol):
    """Finds similar transitions. A cache of the store: rebuilt from it whenever in doubt."""

    @property
    def scheme(self) -> str:
        """Name and version of how it compares; caches of two schemes never mix."""
        ...

    def __len__(self) -> int: ...

    def sync(self, store: ReplayStore) -> int:
        """Take in what the store has gained since the last call: how many rows."""
        ...

    def similar(
        self,
        state: str,
        action: str,
        k: int,
        *,
        exclude_task: str | None = None,
        exclude_episode: str | None = None,
        real_only: bool = False,
    ) -> list[Hit]:
        """The k most similar rows, best first; fewer where there are fewer, never padded.

        Rows that say the same (state, action and next state) are one demonstration: the oldest.
        """
        ...

    def similar_many(self, queries: Sequence[Query], k: int) -> list[list[Hit]]:
        """The same for many at once."""
        ...


class _Postings:
    """The texts that contain one term, in the order of their numbers."""

    __slots__ = ("counts", "texts", "weights")

    def __init__(self) -> None:
        self.texts = array("q")  # numpy indexes with 64 bits, and would convert others each time
        self.counts = array("f")
        self.weights = array("f")  # BM25's term frequency part, under the current mean length


class _Field:
    """BM25 over distinct texts that grows by one text at a time."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lengths = array("f")
        self._mean_length = 1.0
        self._terms: dict[str, _Postings] = {}

    def number(self, text: str) -> int:
        """The text's number; a new text is taken in."""
        known = self._numbers.get(text)
        if known is not None:
            return known
        number = self._numbers[text] = len(self._numbers)
        counts = Counter(tokens(text))
        length = float(max(counts.total(), 1))
        self._lengths.append(length)
        for term, count in counts.items():
            postings = self._terms.get(term)
            if postings is None:
                postings = self._terms[term] = _Postings()
            postings.texts.append(number)
            postings.counts.append(count)
            postings.weights.append(float(_saturate(count, length, self._mean_length)))
        # The mean length moves ever more slowly: it is brought up to date at powers of two.
        if number & (number + 1) == 0:
            self._reweigh()
        return number

    def scores(self, text: str) -> Floats:
        """How well every text taken in so far matches this one."""
        scores = np.zeros(len(self._numbers), dtype=np.float32)
        for term, times in Counter(tokens(text)).items():
            postings = self._terms.get(term)
            if postings is None:
                continue
            found = len(postings.texts)
            rarity = math.log1p((len(scores) - found + 0.5) / (found + 0.5))
            texts = np.frombuffer(postings.texts, dtype=np.int64)
            gains = np.frombuffer(postings.weights, dtype=np.float32)
            scores[texts] += gains * np.float32(times * rarity)
        return scores

    def _reweigh(self) -> None:
        lengths = np.frombuffer(self._lengths, dtype=np.float32)
        self._mean_length = float(lengths.mean())
        for postings in self._terms.values():
            counts = np.frombuffer(postings.counts, dtype=np.float32)
            texts = np.frombuffer(postings.texts, dtype=np.int64)
            weights = np.float32(_saturate(counts, lengths[texts], self._mean_length))
            postings.weights = array("f", weights.tobytes())


class LexicalRetriever:
    """BM25 over the words, entities and CJK bigrams of state and action. Needs no download."""

    scheme = "bm25-state-action/1"

    def __init__(self) -> None:
        self._states, self._actions = _Field(), _Field()
        self._keys: dict[tuple[int, int], int] = {}
        self._key_states, self._key_actions = array("q"), array("q")
        self._rows_of_key: list[list[Row]] = []
        self._num_rows = 0
        self._seq = 0

    @classmethod
    def from_store(cls, store: ReplayStore) -> LexicalRetriever:
        """Build it from everything the store holds."""
        retriever = cls()
        retriever.sync(store)
        return retriever

    def __len__(self) -> int:
        return self._num_rows

    def sync(self, store: ReplayStore) -> int:
        """Take in what the store has gained since the last call: how many rows."""
        before = len(self)
        self.add(store.rows(after=self._seq))
        return len(self) - before

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows, each findable at once. The index depends on their order alone."""
        for row in rows:
            pair = self._states.number(row.state), self._actions.number(row.action)
            key = self._keys.get(pair)
            if key is None:
                key = self._keys[pair] = len(self._keys)
                self._key_states.append(pair[0])
                self._key_actions.append(pair[1])
                self._rows_of_key.append([])
            self._rows_of_key[key].append(row)
            self._num_rows += 1
            self._seq = max(self._seq, row.seq)

    def similar(
        self,
        state: str,
        action: str,
        k: int,
        *,
        exclude_task: str | None = None,
        exclude_episode: str | None = None,
        real_only: bool = False,
    ) -> list[Hit]:
        """The k most similar rows, best first, the older first where two are equal."""
        return self.similar_many(
            [Query(state, action, exclude_task, exclude_episode, real_only)], k
        )[0]

    def similar_many(self, queries: Sequence[Query], k: int) -> list[list[Hit]]:
        """The same for many at once: texts that several queries share are scored once."""
        if k < 0:
            raise ValueError(f"k is {k}")
        if not self._keys or k == 0:
            return [[] for _ in queries]
        of_states = np.frombuffer(self._key_states, dtype=np.int64)
        of_actions = np.frombuffer(self._key_actions, dtype=np.int64)
        states = {text: self._states.scores(text)[of_states] for text in {q.state for q in queries}}
        actions = {
            text: self._actions.scores(text)[of_actions] * np.float32(_ACTION_WEIGHT)
            for text in {q.action for q in queries}
        }
        return [self._best(states[q.state] + actions[q.action], q, k) for q in queries]

    def _best(self, scores: Floats, query: Query, k: int) -> list[Hit]:
        hits: list[Hit] = []
        passed = 0
        while len(hits) < k:
            key = int(scores.argmax())  # k is small: a scan each is cheaper than any sort
            score = float(scores[key])
            if score == -np.inf:
                break
            scores[key] = -np.inf
            found = [Hit(row, score) for row in self._distinct(key, query, k - len(hits))]
            hits += found
            if found:
                continue
            passed += 1
            if passed == _PATIENCE:
                left = [bool(self._distinct(key, query, 1)) for key in range(len(scores))]
                scores[~np.array(left)] = -np.inf
        return hits

    def _distinct(self, key: int, query: Query, most: int) -> list[Row]:
        """The key's oldest rows that may be shown, one for each next state."""
        found: dict[str, Row] = {}
        for row in self._rows_of_key[key]:
            if len(found) == most:
                break
            if row.next_state not in found and _may_show(row, query):
                found[row.next_state] = row
        return list(found.values())


def _may_show(row: Row, query: Query) -> bool:
    return (
        row.task_id != query.exclude_task
        and row.episode_id != query.exclude_episode
        and not (query.real_only and row.world == "dream")
    )


def _saturate(count: Any, length: Any, mean: float) -> Any:
    """BM25's term frequency part, of one text or of an array of them."""
    return count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length / mean))
