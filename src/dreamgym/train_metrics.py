"""What the main loop counts, and how it sees that nothing is learnt."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.algos.grpo import informative_share
from dreamgym.evaluate import Rate
from dreamgym.experience.model import ExperienceModel
from dreamgym.gate import alarm
from dreamgym.types import Group


def group_metrics(groups: Sequence[Group], world: str) -> dict[str, float]:
    """What the rollouts were like: success, endings, faults by class."""
    episodes = [episode for group in groups for episode in group.episodes]
    valid = [episode for episode in episodes if not episode.ending.is_fault]
    endings = Counter(f"ending/{episode.ending}" for episode in episodes)
    faults = Counter(f"fault/{episode.fault.lower()}" for episode in episodes if episode.fault)
    turns = [turn for episode in valid for turn in episode.turns]
    depends = input_dependence(groups)
    return {
        **({} if depends is None else {"policy/input_dependence": depends}),
        "reward/none_share": 1 - len(valid) / max(1, len(episodes)),
        f"{world}/train_success": sum(e.success for e in valid) / max(1, len(valid)),
        f"{world}/train_episodes": float(len(valid)),
        f"{world}/train_turns": len(turns) / max(1, len(valid)),
        f"{world}/invalid_actions": sum(not t.valid for t in turns) / max(1, len(turns)),
        **{name: count / len(episodes) for name, count in (endings + faults).items()},
    }


def input_dependence(groups: Sequence[Group]) -> float | None:
    """How much likelier two first actions agree at one task than at two: 0 for a policy that
    ignores what it sees, whether it always says the same or anything at all.

    Entropy alone does not see such a collapse into one template (RAGEN-2, arXiv 2604.06268, which
    takes the mutual information). None where no two tasks were tried, or none of them twice.
    """
    first = [[e.turns[0].action for e in group.episodes if e.turns] for group in groups]
    first = [actions for actions in first if actions]
    same = [_agreement(actions) for actions in first if len(actions) > 1]
    if not same or len(first) < 2:
        return None
    pooled = Counter(itertools.chain.from_iterable(first))
    size = sum(map(len, first))
    # pairs of different tasks are all pairs but those inside the groups
    agreeing = _pairs(pooled) - sum(_pairs(Counter(actions)) for actions in first)
    apart = size * (size - 1) - sum(len(a) * (len(a) - 1) for a in first)
    return sum(same) / len(same) - agreeing / apart


def _agreement(actions: Sequence[str]) -> float:
    """The share of pairs that are alike."""
    return _pairs(Counter(actions)) / (len(actions) * (len(actions) - 1))


def _pairs(counts: Counter[str]) -> int:
    return sum(number * (number - 1) for number in counts.values())


class DreamMeter:
    """Reads what an experience model counts, update by update."""

    def __init__(self, model: ExperienceModel) -> None:
        self._model = model
        self._tally, self._faults = Counter(model.tally), Counter(model.faults)

    def since_last(self) -> dict[str, float]:
        """Shares of answers that were asked again or overruled, of actions refused by rule; and how
        many answers and starts were refused, by class."""
        tally, faults = self._model.tally - self._tally, self._model.faults - self._faults
        self._tally, self._faults = Counter(self._model.tally), Counter(self._model.faults)
        answers, asked = max(1, tally["answers"]), max(1, tally["answers"] + tally["refused"])
        return {
            "dream/asked_again": tally["asked_again"] / answers,
            "dream/disagreed": tally["disagreed"] / answers,
            "dream/by_rule": tally["refused"] / asked,
            **{f"dream/faults/{kind.lower()}": float(number) for kind, number in faults.items()},
        }


def diverged(updates: Sequence[Mapping[str, Any]]) -> str:
    """The alarm, where since the first update that measured both success in the dream rose and
    the real one did not follow; at the gate if there is one, else on held-out games."""
    for name in ("gate", "real"):
        needed = ("dream/train_episodes", f"{name}/episodes")
        both = [m for m in updates if all(key in m and m[key] for key in needed)]
        if len(both) > 1 and both[-1] is updates[-1]:
            first, last = both[0], both[-1]
            return alarm(
                (_rate(first, "dream/train_"), _rate(last, "dream/train_")),
                (_rate(first, f"{name}/"), _rate(last, f"{name}/")),
            )
    return ""


def _rate(metrics: Mapping[str, Any], prefix: str) -> Rate:
    total = round(metrics[f"{prefix}episodes"])
    return Rate(round(metrics[f"{prefix}success"] * total), total)


FEW_INFORMATIVE = 0.3


def few_informative(success: float, group_size: int) -> str:
    """A warning before the first update, where most groups will have nothing to compare."""
    share = informative_share(success, group_size)
    if math.isnan(success) or share >= FEW_INFORMATIVE:
        return ""
    more = informative_share(success, 4 * group_size)
    return (
        f"at {success:.1%} success and {group_size} attempts a task {share:.1%} of the groups will "
        "hold both a solved and a failed one, and only those teach: "
        f"{4 * group_size} attempts would make it {more:.1%} (rollout.group_size). "
        "A flat curve would be no negative result"
    )


def nothing_to_learn(updates: Sequence[Mapping[str, Any]], stop_after: int, *, to_come: int) -> str:
    """Why a run should stop, if its last `stop_after` updates had no group to learn from.

    A run that has learnt something and only its last updates did not is over anyway.
    """
    barren = list(
        itertools.takewhile(lambda m: not m["train/informative_groups"], reversed(updates))
    )
    if not stop_after or len(barren) < stop_after or (not to_come and len(barren) < len(updates)):
        return ""
    return f"{len(barren)} updates in a row had no group to learn from. {_why(barren)}"


def _why(updates: Sequence[Mapping[str, Any]]) -> str:
    """What stood in the way of learning, and what can be done about it."""
    sums: Counter[str] = Counter()
    for metrics in updates:
        sums.update({k: v for k, v in metrics.items() if k.startswith(("skipped/", "fault/"))})
    if sums["skipped/all_equal"] >= sums["skipped/faults"]:
        return (
            "ALL_EQUAL: every task's attempts ended alike, too hard or too easy for this policy. "
            "Try larger groups, easier tasks or a longer clone"
        )
    faults = [name for name in sums if name.startswith("fault/")]
    if not faults:
        return (
            "FAULTS: the policy wrote no turn at all. Its prompt may be longer than its context: "
            "see model.context and ending/truncated in metrics.jsonl"
        )
    worst = max(faults, key=lambda name: sums[name]).partition("/")[2].upper()
    return (
        f"FAULTS, mostly {worst}: episodes broke off by no fault of the policy. If it is a "
        "dream, look at `dreamgym audit` of this run and fit the experience model longer"
    )
