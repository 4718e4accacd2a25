"""What of a long text a model is shown."""

from __future__ import annotations

import pytest

from dreamgym.llm.base import HEAD, TAIL, within_budget


@pytest.mark.parametrize("length", [0, 1, HEAD + TAIL])
def test_a_text_within_the_budget_stays_as_it_is(length: int) -> None:
    assert within_budget("x" * length) == "x" * length


@pytest.mark.parametrize(("cut", "told"), [(1, "1"), (999, "999"), (1000, "1k"), (187_000, "187k")])
def test_p078_a_longer_one_keeps_its_head_and_tail_and_says_how_much_is_cut(
    cut: int, told: str
) -> None:
    text = "h" * HEAD + "c" * cut + "t" * TAIL
    expected = "h" * HEAD + f"\n[... {told} chars cut ...]\n" + "t" * TAIL
    assert within_budget(text) == expected
