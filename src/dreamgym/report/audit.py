"""An audit as Markdown and as a figure; reads its numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.audit.bound import bound_text

Data = Mapping[str, Any]


def write_audit(folder: Path, data: Data) -> tuple[Path, ...]:
    """`audit.md`, `audit.png` and `dreams.md` beside the numbers; returns all four paths."""
    text, figure, dreams = folder / "audit.md", folder / "audit.png", folder / "dreams.md"
    text.write_text(audit_text(data) + "\n\n![the audit](audit.png)\n")
    dreams.write_text(dreams_text(data["dreams"]) + "\n")
    _draw(figure, data)
    return folder / "audit.json", text, figure, dreams


def audit_text(data: Data) -> str:
    """The whole audit as Markdown tables."""
    parts = [
        f"# The dream of {data['run']}, judged",
        _transitions(data["transitions"]),
        *(_episodes(hidden, told) for hidden, told in data["episodes"].items()),
        _small_parts(data),
    ]
    return "\n\n".join(parts)


def dreams_text(data: Data) -> str:
    """Dreams word for word, each with the hidden state that its agent does not see."""
    parts = [f"# Dreams of the {data['policy']} policy"]
    for number, dream in enumerate(data["dreams"], 1):
        if dream["hidden"] is None:
            hidden = "(none could be dreamt up)"
        else:
            hidden = "\n".join(dream["hidden"].values()) or "(nothing: dreamt without)"
        parts += [f"## Dream {number}: {dream['ending']} {dream['fault']}".strip()]
        parts += ["Hidden from the agent:", _quoted(hidden), "What the agent sees:"]
        parts += [_quoted(dream["first_state"])]
        parts += [
            f"Turn {number}, by {turn['by']}, reward {turn['reward']:g}:\n\n"
            + _quoted(f"> {turn['action']}\n{turn['next_state']}")
            for number, turn in enumerate(dream["turns"], 1)
        ]
    return "\n\n".join(parts)


def _quoted(text: str) -> str:
    """As code: whatever a model or a world wrote, no line of it can be a heading or a tag."""
    return "\n".join("    " + line for line in text.splitlines())


def percent(rate: Data | None) -> str:
    """A rate with its interval, or a dash where nothing was counted."""
    if rate is None or rate["value"] is None:
        return "-"
    return f"{rate['value']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}]"


def _spread(ratio: Data) -> str:
    return f"{number(ratio['value'])} [{number(ratio['low'])}, {number(ratio['high'])}]"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _transitions(data: Data) -> str:
    names = ("exact", "nearly", "reward", "false_success")
    rows = [
        [name, *(percent(told[key]) for key in names), number(told["f1"], 3)]
        for name, told in (
            *data["true hidden state"].items(),
            ("as dreamt, hidden state dreamt up", data["dreamt hidden state"]),
        )
    ]
    head = ["predictor", "next state exact", "but for case and commas", "reward and end",
            "false success", "token F1"]  # fmt: skip
    dreamt = data["true hidden state"]["as dreamt"]
    faults = ", ".join(f"{k} {n}" for k, n in dreamt["faults"].items()) or "none"
    precision, recall = percent(dreamt["success_precision"]), percent(dreamt["success_recall"])
    sure, surest = data["confidence"], data["confidence"]["exact_of_surest_nine_tenths"]
    return "\n\n".join(
        [
            "## Held-out real transitions\n\nEach predicted from its true past. The true hidden "
            "state is given, save in the last row. A fault counts as wrong.",
            _table(head, rows),
            f"As dreamt: faults {faults}; answered by rule {percent(data['by rule'])}; success "
            f"precision {precision}, recall {recall}.",
            _table(
                ["facts changed", "exact", "token F1"],
                [[k, percent(v), number(v["f1"], 3)] for k, v in data["by facts changed"].items()],
            ),
            _table(
                ["turns", "exact", "token F1"],
                [[k, percent(v), number(v["f1"], 3)] for k, v in data["by turn"].items()],
            ),
            f"Confidence: AUROC {number(sure['auroc'])}, calibration error "
            f"{number(sure['calibration_error'], 3)}; of the surest nine tenths "
            f"{'-' if surest is None else f'{surest:.1%}'} are exact.",
        ]
    )


def _episodes(hidden: str, data: Data) -> str:
    rows = [
        [
            name,
            *(percent(told[world]) for world in ("real", "dream", "replayed")),
            number(told["consistency"]["value"]),
            ", ".join(f"{k} {n}" for k, n in told["faults"].items()) or "none",
        ]
        for name, told in data["policies"].items()
    ]
    told = (
        f"CR = replayed / real over all policies: {_spread(data['consistency'])} of dreams that "
        f"came to an end, {_spread(data['consistency_faults_fail'])} where a dream that broke off "
        "counts as a failure; rank agreement of dream and real (Kendall's tau): "
        f"{number(data['rank_agreement'])}."
    )
    head = ["policy", "real", "dream", "replayed", "CR", "faults"]
    return "\n\n".join([f"## Whole episodes, {hidden}", _table(head, rows), told])


def _small_parts(data: Data) -> str:
    luck, groups, judged = data["luck"], data["groups"], data["judge"]
    probes = [[name, percent(rate)] for name, rate in data["probes"].items()]
    rows = [
        [name, number(told["deviation"], 3), number(told["success"]), number(told["changed"]),
         str(told["faults"])]
        for name, told in luck.items()
    ]  # fmt: skip
    opinion = judged.get("skipped") or ", ".join(
        f"{name} {number(score)}" for name, score in judged["scores"].items()
    )
    if "failures" in judged:
        opinion += f" ({judged['judged']} of {judged['asked']} judged)"
    return "\n\n".join(
        [
            "## Probes\n\nAgents that solve nothing; each should be paid about never.",
            _table(["probe", "paid"], probes),
            "## Luck\n\nThe same actions again and again.",
            _table(["how", "sd of the reward", "success", "states that differ", "faults"], rows),
            f"## Groups that can teach ({groups['policy']})\n\nIn the dream "
            f"{percent(groups['dream'])}, in the real world {percent(groups['real'])}.",
            f"## Bound\n\n{bound_text(data['bound'])}",
            f"## An LLM's opinion\n\n{opinion}",
        ]
    )


def _draw(path: Path, data: Data) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4))
    told = data["transitions"]["true hidden state"]
    names = list(told)
    left.barh(
        [n.replace(" in ", "\nin ") for n in names], [told[n]["exact"]["value"] or 0 for n in names]
    )
    left.set(xlim=(0, 1), title="Next state exact, held out")
    left.invert_yaxis()
    policies = data["episodes"]["true hidden state"]["policies"]
    for shift, world in enumerate(("real", "dream", "replayed")):
        rates = [told[world] for told in policies.values()]
        values = [rate["value"] or 0.0 for rate in rates]
        errors = [
            [v - r["low"] for v, r in zip(values, rates, strict=True)],
            [r["high"] - v for v, r in zip(values, rates, strict=True)],
        ]
        at = [i + 0.27 * (shift - 1) for i in range(len(policies))]
        middle.bar(at, values, 0.25, yerr=errors, capsize=2, label=world)
    middle.set_xticks(range(len(policies)), list(policies), fontsize=8)
    middle.set(ylim=(0, 1.05), title="Success, true hidden state")
    middle.legend(fontsize=8)
    bins = data["transitions"]["confidence"]["bins"]
    right.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    right.plot([c for c, _, _ in bins], [h for _, h, _ in bins], marker="o")
    right.set(xlabel="confidence", ylabel="share exact", title="Calibration", ylim=(0, 1.02))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
