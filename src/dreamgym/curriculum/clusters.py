"""Like tasks together: for PPO, whose tasks are tried once, a cluster is the group of Eq. 7."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dreamgym.replay.text import tokens

_ROUNDS = 50
_TRIES = 8  # from other first centres: an odd one out may have been drawn


def cluster(texts: Sequence[str], number: int, *, seed: int) -> list[int]:
    """The cluster of every text, by k-means on the unit sphere over its words.

    The paper embeds tasks with a semantic encoder it does not name; instructions of one world share
    their words, so that tf-idf needs no download and tells put from heat as well. Fewer clusters
    come back where texts are fewer, or alike.
    """
    vectors = _tfidf(texts)
    rng = np.random.default_rng(seed)
    tries = [_kmeans(vectors, min(number, len(texts)), rng) for _ in range(_TRIES)]
    return max(tries, key=lambda found: found[1])[0].tolist()


def _kmeans(
    vectors: NDArray[np.float64], number: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], float]:
    """The nearest centre of every vector, and how near they are in all."""
    centres = _spread(vectors, number, rng)
    nearest = np.full(len(vectors), -1)
    for _ in range(_ROUNDS):
        near = vectors @ centres.T
        before, nearest = nearest, near.argmax(axis=1)
        if (before == nearest).all():
            break
        for index in range(len(centres)):
            total = vectors[nearest == index].sum(axis=0)
            size = float(np.linalg.norm(total))
            if size:
                centres[index] = total / size
    return nearest, float(near.max(axis=1).sum())


def _tfidf(texts: Sequence[str]) -> NDArray[np.float64]:
    """(N, W), every row of length 1, or 0 for a text without a word."""
    counted = [Counter(tokens(text)) for text in texts]
    found = Counter(word for counts in counted for word in counts)
    place = {word: index for index, word in enumerate(sorted(found))}
    vectors = np.zeros((len(texts), max(1, len(place))))
    for row, counts in enumerate(counted):
        for word, times in counts.items():
            vectors[row, place[word]] = times * math.log((1 + len(texts)) / found[word])
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, sizes, out=vectors, where=sizes > 0)


def _spread(
    vectors: NDArray[np.float64], number: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """First centres far apart (k-means++): drawn by the squared distance to those there are."""
    chosen = [int(rng.integers(len(vectors)))]
    while len(chosen) < number:
        near = (vectors @ vectors[chosen].T).max(axis=1)
        distance = np.clip(1 - near, 0, None)
        if not distance.sum() > 1e-9:
            break
        chosen.append(int(rng.choice(len(vectors), p=distance / distance.sum())))
    return vectors[chosen].copy()
