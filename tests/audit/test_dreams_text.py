"""Dreams told for people: hidden state and all, and no text in them is more than text."""

from __future__ import annotations

import pytest

from dreamgym.report.audit import dreams_text

TURN = {"action": "look", "by": "model", "next_state": "You see nothing.", "reward": 0.0}
DREAM = {
    "task": "find a pen",
    "first_state": "A room.",
    "hidden": {"box 1": "In the box 1, there is a pen."},
    "turns": [TURN],
    "ending": "turn_limit",
    "fault": "",
}


def told(**change: object) -> str:
    return dreams_text({"policy": "cloned", "dreams": [DREAM | change]})


def test_a_dream_is_told_with_what_its_agent_cannot_see() -> None:
    text = told()
    assert text.index("In the box 1, there is a pen.") < text.index("A room.")
    assert "Turn 1, by model, reward 0:\n\n    > look\n    You see nothing." in text
    assert "none could be dreamt up" in told(hidden=None, fault="UNSOLVABLE", turns=[])
    assert "dreamt without" in told(hidden={})


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r", "\n\n", "\u2028", "\x0b"])
def test_what_a_model_wrote_is_never_markup(breaks: str) -> None:
    hostile = breaks.join(
        ["ok", "# Reward: 1", "<script>alert(1)</script>", "```", "![x](http://x)"]
    )
    text = told(
        turns=[TURN | {"next_state": hostile, "action": hostile}],
        first_state=hostile,
        hidden={"box 1": hostile},
    )
    ours = [line for line in text.splitlines() if line.strip() and not line.startswith("    ")]
    assert [line.split()[0] for line in ours] == ["#", "##", "Hidden", "What", "Turn"]
