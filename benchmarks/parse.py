"""How long an answer takes to be read: broken ones, and ones of 200,000 characters.

    python benchmarks/parse.py

Beside each figure stands `json.loads` of as many characters: what a reader takes that checks
nothing, in the same run.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from dreamgym.experience.parse import read_answer
from dreamgym.types import Completion, DreamFault

STATE = "You arrive at loc 1. On the countertop 1, you see a knife 2, and a mug 1. "
WON = json.dumps({"next_state": STATE * 4, "reward": 1, "done": True})


def tagged(state: str) -> str:
    return f"<next_state>{state}</next_state><reward>0</reward><done>false</done>"


TEXTS = {
    "an answer in JSON": WON,
    "an answer in sections": tagged(STATE * 4),
    "thoughts, a fence and prose": f"<think>{STATE * 9}</think>\n```json\n{WON}\n```\nI hope so!",
    "cut off": WON[:-9],
    "200k: a state": tagged("x" * 200_000),
    "200k: words and no end": "<next_state>" + "word " * 40_000,
    "200k: thoughts": "<think>" + "let me see " * 18_000 + "</think>" + WON,
    "200k: runs of blanks": (" " * 199 + "x") * 1_000,
    "200k: brackets": "{" * 100_000 + "}" * 100_000,
    "200k: open objects": '{"a": ' * 33_000,
    "200k: sections": "<next_state></next_state>" * 8_000,
    "200k: answers": WON * (200_000 // len(WON)),
    "200k: escapes": '{"next_state": "' + "\\u12" * 50_000,
}


def milliseconds(work: Callable[[], object], times: int = 21) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


def read(text: str) -> str:
    try:
        return read_answer(Completion(text)).parse_class
    except DreamFault as refused:
        return refused.kind


def main() -> None:
    print(f"{'':<30}{'class':<22}{'ms':>9}{'json.loads':>12}{'ratio':>8}")
    for name, text in TEXTS.items():
        plain = json.dumps({"next_state": "x" * (len(text) - 40), "reward": 0, "done": False})
        ours, loads = (
            milliseconds(lambda t=text: read(t)),
            milliseconds(lambda p=plain: json.loads(p)),
        )
        print(f"{name:<30}{read(text):<22}{ours:>9.3f}{loads:>12.4f}{ours / loads:>8.1f}")


if __name__ == "__main__":
    main()
