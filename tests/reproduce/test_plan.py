"""The table's cells: each resolves at every scale, and begins from what stands before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.progress import NoProgress
from dreamgym.reproduce.estimate import SHAPES, estimate
from dreamgym.reproduce.plan import CELLS, DATA, SCALES, START, Block, choose
from dreamgym.reproduce.run import Workshop, settings_of
from dreamgym.types import DreamGymError

EVERY = [Block(scale, data, 0) for scale in SCALES for data in DATA]


def workshop(block: Block) -> Workshop:
    return Workshop(block, Path("runs"), Path("results"), NoProgress())


@pytest.mark.parametrize("block", EVERY, ids=lambda b: f"{b.scale}-{b.data}")
def test_every_cell_resolves(block: Block) -> None:
    for cell in CELLS.values():
        cfg, _ = workshop(block).config(cell)
        assert cfg.world.games == "official" and cfg.seed == block.seed
        assert bool(cfg.init) == bool(cell.init)


def test_what_a_cell_begins_from_stands_before_it() -> None:
    done: set[str] = set()
    for cell in CELLS.values():
        assert set(cell.needs) <= done, cell.name
        done.add(cell.name)


@pytest.mark.parametrize("data", DATA)
def test_sft_dpo_and_the_experience_model_have_the_same_logs(data: str) -> None:
    shop = workshop(Block("cpu", data, 0))
    logs = {shop.config(CELLS[name])[0].offline for name in (START, "sft-longer", "dpo")}
    assert len(logs) == 1
    offline = logs.pop()
    assert (offline.expert, offline.noisy + offline.random) == (
        (200, 2000) if data == "few" else (3200, 2000)
    )


@pytest.mark.parametrize("data", DATA)
def test_longer_is_longer_than_the_clone(data: str) -> None:
    for scale in SCALES:
        shop = workshop(Block(scale, data, 0))
        lengths = [shop.config(CELLS[n])[0].clone.sft.num_tokens for n in (START, "sft-longer")]
        assert lengths[0] < lengths[1]


def test_rows_that_are_compared_make_the_same_updates() -> None:
    shop = workshop(Block("cpu", "few", 0))
    names = ("grpo-real", "grpo-dream", "ppo-real", "ppo-dream", "no-tasks", "no-reasoning")
    rows = [shop.config(CELLS[name])[0] for name in names]
    for cfg in rows:
        assert (cfg.steps, cfg.rollout, cfg.curriculum.tasks_per_step) == (
            rows[0].steps, rows[0].rollout, rows[0].curriculum.tasks_per_step
        )  # fmt: skip


def test_sim_to_real_may_use_a_tenth_at_most() -> None:
    shop = workshop(Block("cpu", "few", 0))
    real, s2r = (shop.config(CELLS[n])[0] for n in ("grpo-real", "grpo-s2r"))
    # an episode of ten turns is short here: the yardstick errs against us
    used = 10 * real.steps * real.curriculum.tasks_per_step * real.rollout.group_size
    assert s2r.train_world == "real" and 0 < s2r.real_budget <= used / 7
    assert s2r.init.endswith("grpo-dream") and s2r.init_weights == "policy"


def test_an_ablation_dreams_with_its_own_model_and_the_same_policy() -> None:
    shop = workshop(Block("cpu", "few", 0))
    for cell in CELLS.values():
        if cell.part != "ablation":
            continue
        cfg, _ = shop.config(cell)
        assert cfg.init == str(shop.folder(CELLS[START])) and cfg.init_weights == "cloned"
        if cell.experience:
            fitted, _ = shop.config(CELLS[cell.experience])
            assert cfg.experience == fitted.experience, cell.name


def test_cells_are_chosen_by_name_or_part_in_their_order() -> None:
    assert [c.name for c in choose(("no-tasks", START))] == [START, "no-tasks"]
    assert {c.part for c in choose(("transfer",))} == {"transfer"}
    assert choose(()) == list(CELLS.values())
    with pytest.raises(DreamGymError, match="no-such"):
        choose(("no-such",))


def test_only_what_a_recipe_says_names_a_cell() -> None:
    """So that a new setting with a default does not run the whole table again."""
    told = settings_of(workshop(Block("cpu", "few", 1)), CELLS["grpo-s2r"])
    assert told["seed"] == 1 and told["real_budget"] > 0 and told["train_world"] == "real"
    assert "learner.negative" not in told and not any(key.startswith("init") for key in told)
    # nor does another length of RL fit and clone again
    fitted = settings_of(workshop(Block("cpu", "few", 1)), CELLS[START])
    assert "fit.num_tokens" in fitted and "rollout.max_turns" in fitted
    assert not {"steps", "gate.every", "rollout.group_size"} & fitted.keys()


def test_the_papers_models_are_estimated() -> None:
    told = estimate([Block("paper", "few", 0)], list(CELLS.values()))
    cells = {row["cell"].partition("/")[2]: row for row in told["cells"]}
    # 16 bytes a parameter in training, and no less
    assert (
        cells[START]["memory_gib"]
        > 16 * SHAPES["meta-llama/Llama-3.1-8B-Instruct"].parameters / 2**30 - 1
    )
    assert cells["ppo-real"]["memory_gib"] > cells["grpo-real"]["memory_gib"]  # a critic
    assert cells["grpo-dream"]["hours"] > cells["grpo-real"]["hours"] > cells["grpo-s2r"]["hours"]
    assert told["hours"] == pytest.approx(sum(row["hours"] for row in told["cells"]))
    tiny = estimate([Block("cpu", "few", 0)], [CELLS[START]])
    assert 0.1 < tiny["hours"] < 1.5 and tiny["memory_gib"] < 4
