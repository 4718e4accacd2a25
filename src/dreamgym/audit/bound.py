"""What the measured errors say about returns: ε_R, ε_P and the finite-horizon bound."""

from __future__ import annotations

from typing import Any


def return_bound(reward_errors: float, state_errors: float, horizon: float) -> dict[str, Any]:
    """|J - Ĵ| <= H ε_P + ε_R for one reward in [0, 1] at the end of H turns.

    The paper's ε are suprema over all states and actions; these are means over held-out play, so
    the bound holds for policies that play like those episodes. In a world that is deterministic the
    total variation of one transition is 1 where the prediction is wrong and 0 where it is right, so
    that ε_P is the share of wrong next states.
    """
    bound = horizon * state_errors + reward_errors
    return {
        "epsilon_r": reward_errors,
        "epsilon_p": state_errors,
        "horizon": horizon,
        "bound": bound,
        "says_nothing": bound >= 1.0,
    }


def bound_text(data: dict[str, Any]) -> str:
    """The bound as a sentence, with its verdict."""
    told = (
        f"|J - Ĵ| <= {data['horizon']:.1f} · {data['epsilon_p']:.3f} + {data['epsilon_r']:.3f}"
        f" = {data['bound']:.2f}"
    )
    if data["says_nothing"]:
        return f"{told}: this says nothing, since returns lie between 0 and 1."
    return f"{told}."
