"""How close a predicted text is to the true one: exactly, but for how it is typed, word by word."""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"\w+")


def normalised(text: str) -> tuple[str, ...]:
    """The words in order, without case, punctuation and blanks."""
    return tuple(_WORD.findall(text.casefold()))


def token_f1(predicted: str, true: str) -> float:
    """Harmonic mean of precision and recall over words, each as often as it stands."""
    ours, theirs = Counter(normalised(predicted)), Counter(normalised(true))
    if not ours or not theirs:
        return float(ours == theirs)
    common = (ours & theirs).total()
    if not common:
        return 0.0
    precision, recall = common / ours.total(), common / theirs.total()
    return 2 * precision * recall / (precision + recall)
