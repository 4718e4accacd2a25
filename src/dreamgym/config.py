"""The tree of settings; a recipe is a TOML file of it. Leaves live beside the code they steer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dreamgym.algos.settings import DPOConfig, LearnerConfig, SFTConfig
from dreamgym.curriculum.curriculum import CurriculumConfig
from dreamgym.experience.model import ExperienceConfig
from dreamgym.gate import GateConfig
from dreamgym.llm.transport import ServerConfig
from dreamgym.rollout import RolloutConfig
from dreamgym.settings import Settings

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]


class WorldConfig(Settings):
    games: Literal["generated", "official", "alfworld_data"] = "generated"
    """Where household games come from: made here, ALFWorld's own, or $ALFWORLD_DATA."""
    backend: Literal["fast", "engine"] = "fast"
    """Our engine, or ALFWorld's own (extra `alfworld`), for the real world."""
    num_train: Positive = 1200
    """Games to take demonstrations and dreams from."""
    num_eval: Positive = 300
    """Held-out games to measure on."""
    eval_split: Literal["valid_seen", "valid_unseen"] = "valid_unseen"
    """Which of ALFWorld's held-out splits, or of the generator's."""
    train_kinds: tuple[TaskType, ...] = ()
    """Only these types of tasks are learnt from; empty is all. For transfer between types."""
    eval_kinds: tuple[TaskType, ...] = ()
    """Only these types of tasks are measured on; empty is all."""
    tasks_per_room: Positive = 2
    """Of generated games; two tasks in one room teach what a harder one is."""
    min_places: Positive = 5
    """Receptacles of a generated room."""
    max_places: Positive = 6
    """Official rooms have 6 to 54."""
    min_things: Positive = 5
    """Objects in a generated room."""
    max_things: Positive = 8
    """Official rooms hold 17 to 73; fewer make shorter sentences, for a smaller model."""


ENOUGH_EPISODES = 250
"""Read off results/dreams/data-size.png."""


class OfflineConfig(Settings):
    """Real episodes logged before training; nothing of it happens online."""

    expert: Count = 400
    """Episodes of a planner that knows only what it has seen."""
    noisy: Count = 1100
    """Episodes of the same, with slips, misread tasks and random actions."""
    random: Count = 150
    """Episodes of uniformly random actions."""
    fit_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of these episodes that the experience model is fitted on."""
    max_turns: Positive = 30
    """After that many an offline episode is cut."""
    teacher: str = "rules"
    """Whose reasons the experience model learns: `rules`, which is the world's reader, or the name
    of a teacher whose annotations `dreamgym annotate` has put into the store."""
    acting: bool = True
    """The shared weights also learn to write the actions of noisy logs that succeeded, as any
    language model that has read logs would; the policy starts from these weights."""

    def scarce(self) -> str:
        """A warning where there are too few logs for a dream to be worth much."""
        number = self.expert + self.noisy + self.random
        if number >= ENOUGH_EPISODES:
            return ""
        return (
            f"{number} offline episodes: below {ENOUGH_EPISODES} the dream of official games got "
            "clearly worse (benchmarks/dreams.py data-size); look at the audit before you trust it"
        )


class ModelConfig(Settings):
    """The tiny Llama made on the spot, for the experience model and the policy alike."""

    pretrained: str = ""
    """A folder with a language model that the fit begins from instead, or its name where the Hub's
    cache has it."""
    width: Positive = 128
    """Hidden size; a multiple of `heads`."""
    layers: Positive = 4
    """Transformer blocks."""
    heads: Positive = 4
    """Attention heads."""
    kv_heads: Positive = 2
    """Of keys and values: decoding a tiny model mostly waits for these to be read."""
    copying: bool = True
    """Begin with a head that copies, where there are two blocks, instead of waiting for one."""
    context: Positive = 1536
    """Tokens an episode can have, in the dream's telling."""
    vocab_size: Positive = 1024
    """Of the tokenizer that is trained on the offline text."""


class CloneConfig(Settings):
    pretrained: str = ""
    """A folder (or a cached model's name) with the language model that becomes the policy; empty is
    the experience model, whose weights have read the logs."""
    demonstrations: Count = 400
    """Expert episodes that the policy imitates before it dreams; with 0 it begins as it is."""
    sft: SFTConfig = SFTConfig(num_tokens=250_000, learning_rate=2e-3, warmup_steps=20)
    dpo: DPOConfig = DPOConfig()


class RunConfig(Settings):
    seed: int = 0
    """Of games, offline episodes, weights and samples alike."""
    steps: Positive = 6
    """Updates of the policy in the dream."""
    train_world: Literal["dream", "real"] = "dream"
    """`real` runs the same loop in the real world: sim-to-real with `init`, else for comparison."""
    init: str = ""
    """A run folder to begin from: its logs, experience model and policy are taken over."""
    init_weights: Literal["policy", "cloned", "none"] = "policy"
    """Which of that run's policies: what it was promoted to, what it began with, or none, so that
    one is cloned anew."""
    init_experience: str = ""
    """Another run folder, to take the experience model from."""
    real_budget: Count = 0
    """Transitions of the real world that training and gate may use online; 0 is no bound."""
    gate: GateConfig = GateConfig()
    eval_every: Count = 0
    """Measure in the real world every so many steps; 0 only before and after."""
    stop_after: Count = 5
    """Updates in a row with nothing to learn from, after which the run stops; 0 never stops it."""
    save_every: Positive = 1
    """Steps between checkpoints."""
    num_dreamt: Positive = 40
    """Dreams measured beside the real games, before and after; a dreamt turn is slow."""
    eval_temperature: Annotated[float, Field(ge=0)] = 0.4
    """Of the policy when it is measured, before and after alike; 0 is greedy, 0.4 is usual."""
    world: WorldConfig = WorldConfig()
    offline: OfflineConfig = OfflineConfig()
    model: ModelConfig = ModelConfig()
    fit: SFTConfig = SFTConfig()
    experience: ExperienceConfig = ExperienceConfig(history=False)
    """Without the history, since our tiny models predict worse with it (README): what counts of the
    past stands in the facts. A larger model, or one without a hidden state, should have it."""
    server: ServerConfig = ServerConfig()
    clone: CloneConfig = CloneConfig()
    rollout: RolloutConfig = RolloutConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    learner: LearnerConfig = LearnerConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        if self.rollout.group_size < 2 and self.learner.algorithm == "grpo":
            raise ValueError("rollout.group_size is below 2: advantages compare inside a group")
        for name in ("group_size", "max_turns", "max_tokens", "in_flight"):
            if getattr(self.rollout, name) < 1:
                raise ValueError(f"rollout.{name} is below 1")
        if self.rollout.temperature <= 0:
            raise ValueError("rollout.temperature must be above 0: without chance nothing is tried")
        learner = self.learner
        if learner.algorithm == "ppo" and learner.ppo.critic_warmup >= self.steps > 0:
            raise ValueError("learner.ppo.critic_warmup leaves no step to the policy: raise steps")
        if learner.objective.kl_in == "reward" and not learner.objective.kl:
            raise ValueError('learner.objective.kl_in = "reward" does nothing where kl is 0')
        if self.model.width % self.model.heads:
            raise ValueError("model.width must be a multiple of model.heads")
        if self.model.heads % self.model.kv_heads:
            raise ValueError("model.heads must be a multiple of model.kv_heads")
        if self.clone.demonstrations > self.offline.expert:
            raise ValueError("clone.demonstrations exceeds offline.expert: there are not so many")
        if self.gated and self.real_budget and self.real_budget < 2 * self._gate_costs:
            raise ValueError(
                f"the gate's {self.gate.tasks} tasks may use up most of real_budget each time: "
                "lower gate.tasks, switch it off (gate.every = 0), or raise real_budget"
            )
        if self.experience.llm and not self.experience.instructed:
            raise ValueError(
                "experience.llm names a model that was never fitted to this world: it has to be "
                "told what to do (experience.instructed = true)"
            )
        if self.world.min_places > self.world.max_places:
            raise ValueError("world.min_places exceeds world.max_places")
        return self

    @property
    def gated(self) -> bool:
        """Whether checkpoints have to pass the gate."""
        every = self.gate.every if self.train_world == "real" else self.gate.dream_every
        return every > 0

    @property
    def _gate_costs(self) -> int:
        return self.gate.tasks * self.rollout.max_turns // 2
