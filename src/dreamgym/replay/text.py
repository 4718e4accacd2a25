"""What every text passes before it is stored, hashed or searched: cleaning, folding, tokens."""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = re.compile(rf"([{_CJK}]+)|([^\W\d_{_CJK}]+)(?: (\d+)(?!\w|\.\d))?|(\d+(?:\.\d+)?)")
_DIGITS = re.compile(r"\d+")


def clean_text(text: str) -> str:
    """Text that every UTF-8 writer accepts: no lone surrogate, NUL, byte order mark or CR."""
    if not text.isascii():
        # By way of UTF-16 a pair of escaped halves becomes the character it stands for, and a half
        # without its other half (what a model cut inside an emoji leaves) becomes U+FFFD.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        text = text.lstrip("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", REPLACEMENT)


def lost_characters(text: str) -> bool:
    """Whether cleaning replaces something that cannot be written, as CRLF or a BOM do not."""
    return clean_text(text).count(REPLACEMENT) > text.count(REPLACEMENT)


def fold(text: str) -> str:
    """The same text for near duplicates: one case, single spaces, every number alike."""
    return _DIGITS.sub("0", " ".join(text.casefold().split()))


def tokens(text: str) -> list[str]:
    """Words; 'shelf 1' gives the entity and its type; CJK runs, which have no spaces, bigrams."""
    found: list[str] = []
    for cjk, word, number, numeral in _TOKEN.findall(text.casefold()):
        if word:
            found.append(word)
            if number:
                found.append(f"{word} {number}")
        elif numeral:
            found.append(numeral)
        elif len(cjk) == 1:
            found.append(cjk)
        else:
            found.extend(cjk[i : i + 2] for i in range(len(cjk) - 1))
    return found
