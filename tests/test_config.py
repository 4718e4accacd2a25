"""Settings: what is refused and in which words, where values come from, what is written back."""

import importlib.util
import math
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from dreamgym.config import OfflineConfig, RunConfig
from dreamgym.settings import Settings, config_digest, describe, dump_toml, leaves, load_config
from dreamgym.types import DreamGymError


class Decoding(StrEnum):
    GREEDY = "greedy"
    SAMPLED = "sampled"


class PolicyConfig(Settings):
    learning_rate: float = Field(1e-3, gt=0)
    """Of the optimiser."""
    betas: tuple[float, ...] = (0.9, 0.95)
    """Of the optimiser's averages."""
    size: Literal["tiny", "small"] = "tiny"
    """Of the model."""


class Retriever(Settings):
    top_k: int = Field(4, ge=0, le=64)
    """Demonstrations per prediction."""
    languages: tuple[str, ...] = ()
    """Which to read."""


class DreamConfig(Settings):
    learning_rate: float | None = None
    """The policy's where none."""
    decoding: Decoding = Decoding.GREEDY
    """How states are written."""
    hidden: bool = True
    """Whether a dream keeps hidden facts."""
    retriever: Retriever = Retriever()


class Sample(Settings):
    name: str = "sample"
    """In tables."""
    steps: int = Field(200, ge=1)
    """Updates."""
    store: Path = Path("runs/store.sqlite")
    """Transitions."""
    policy: PolicyConfig = PolicyConfig()
    dream: DreamConfig = DreamConfig()

    @model_validator(mode="after")
    def enough(self) -> "Sample":
        if self.steps == 13:
            raise ValueError("13 steps bring bad luck: use 12")
        return self


def refused(*flags: str, recipe: Path | None = None) -> str:
    with pytest.raises(DreamGymError) as error:
        load_config(Sample, recipe, flags)
    return str(error.value)


@pytest.fixture
def write(tmp_path):
    def recipe(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return recipe


def test_defaults_stand_where_nothing_is_said():
    settings, origins = load_config(Sample)
    assert settings == Sample()
    assert set(origins.values()) == {"default"} and list(origins) == [p for p, _ in leaves(Sample)]


def test_a_flag_beats_the_recipe_and_the_recipe_beats_the_default(write):
    recipe = write("steps = 5\nname = 'r'\n[policy]\nlearning_rate = 1\n")
    settings, origins = load_config(Sample, recipe, ["--steps", "7", "--dream.retriever.top-k=2"])
    assert (settings.steps, settings.name, settings.policy.learning_rate) == (7, "r", 1.0)
    assert settings.dream.retriever.top_k == 2
    assert origins["steps"] == origins["dream.retriever.top_k"] == "flag"
    assert origins["name"] == origins["policy.learning_rate"] == "recipe file"
    assert origins["dream.hidden"] == "default"


def test_a_later_recipe_stands_over_an_earlier_one_key_by_key(tmp_path):
    texts = (
        "steps = 5\nname = 'one'\n[policy]\nlearning_rate = 1\nsize = 'small'\n"
        "[dream.retriever]\ntop_k = 7\nlanguages = ['nl', 'fy']",
        "steps = 6\n[policy]\nlearning_rate = 2\n[dream.retriever]\nlanguages = ['de']",
        "name = 'three'\n[dream]\nhidden = false",
    )
    recipes = [tmp_path / f"{number}.toml" for number in range(len(texts))]
    for path, text in zip(recipes, texts, strict=True):
        path.write_text(text)
    settings, origins = load_config(Sample, recipes, ["--steps", "8"])
    assert (settings.steps, settings.name) == (8, "three")
    assert (settings.policy.learning_rate, settings.policy.size) == (2.0, "small")
    # a list is replaced and not added to
    assert settings.dream.retriever == Retriever(top_k=7, languages=("de",))
    assert settings.dream.hidden is False
    assert origins["policy.size"] == origins["dream.hidden"] == "recipe file"
    assert (origins["steps"], origins["store"]) == ("flag", "default")
    backwards, _ = load_config(Sample, recipes[::-1])
    assert (backwards.steps, backwards.policy.learning_rate, backwards.name) == (5, 1.0, "one")
    assert load_config(Sample, recipes[:1]) == load_config(Sample, recipes[0])
    assert load_config(Sample, []) == load_config(Sample)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_unknown_key_is_refused_in_whichever_recipe_it_stands(tmp_path, bad):
    recipes = [tmp_path / f"{number}.toml" for number in range(3)]
    for number, path in enumerate(recipes):
        path.write_text(
            "[policy]\nlerning_rate = 1" if number == bad else "[policy]\nsize = 'small'"
        )
    with pytest.raises(DreamGymError, match="unknown key 'lerning_rate'") as error:
        load_config(Sample, recipes)
    assert all(str(path) in str(error.value) for path in recipes)


def test_a_value_that_another_recipe_overrides_need_not_be_a_good_one_but_the_sum_must(tmp_path):
    bad, good = tmp_path / "bad.toml", tmp_path / "good.toml"
    bad.write_text("steps = 13")
    good.write_text("steps = 12")
    assert load_config(Sample, [bad, good])[0].steps == 12
    with pytest.raises(DreamGymError, match="bad luck"):
        load_config(Sample, [good, bad])


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        (["--policy.learning-rate", "1e-6"], "policy.learning_rate", 1e-6),
        (["--policy.learning_rate=.5"], "policy.learning_rate", 0.5),
        (["--policy.betas", "0.5, 0.6"], "policy.betas", (0.5, 0.6)),
        (["--policy.betas", "[]"], "policy.betas", ()),
        (["--dream.retriever.languages", "de,en"], "dream.retriever.languages", ("de", "en")),
        (["--dream.hidden", "false"], "dream.hidden", False),
        (["--dream.hidden"], "dream.hidden", True),
        (["--dream.decoding", "sampled"], "dream.decoding", Decoding.SAMPLED),
        (["--dream.learning-rate", "none"], "dream.learning_rate", None),
        (["--name", "12"], "name", "12"),
        (["--name", "none"], "name", "none"),
        (["--name=--x=y"], "name", "--x=y"),
        (["--store", "a b/c.sqlite"], "store", Path("a b/c.sqlite")),
        (["--steps", "3", "--steps", "4"], "steps", 4),
    ],
)
def test_flags_are_read_by_the_schema(flags, path, value):
    node, _ = load_config(Sample, None, flags)
    for part in path.split("."):
        node = getattr(node, part)
    assert node == value and type(node) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learnign_rate = 1e-6", ["'learnign_rate'", "top level", "policy.learning_rate"]),  # P105
        ("learning_rate = 1e-6", ["did you mean policy.learning_rate or dream.learning_rate?"]),
        ("[policy]\nlearnign_rate = 1", ["section 'policy'; did you mean policy.learning_rate?"]),
        ("[polcy]\nlearning_rate = 1", ["'polcy'", "did you mean policy?"]),
        ("[dream.retreiver]\ntop_k = 1", ["section 'dream'; did you mean dream.retriever?"]),
        ("top-k = 1", ["did you mean dream.retriever.top_k?"]),
        ("zzz = 1", ["'zzz'", "keys here: name, steps, store, policy, dream"]),
        ("policy = 3", ["policy is a section", "policy.learning_rate"]),
        ("steps.x = 3", ["steps = ", "(recipe file) should be a whole number"]),
        ("a = 1\nb = 2", ["'a'", "'b'"]),  # all at once, not one a try
    ],
)
def test_unknown_keys_are_refused_with_what_was_meant(write, text, words):
    message = refused(recipe=write(text))
    assert all(word in message for word in words), message
    assert "recipe.toml" in message


class Rungs(Settings):
    rungs: tuple[Retriever, ...] = (Retriever(),)
    """A list of sections."""


def test_sections_in_a_list_are_checked_and_written_back(write):
    settings, origins = load_config(Rungs, write("[[rungs]]\ntop_k = 1\n[[rungs]]\ntop_k = 2"))
    assert [rung.top_k for rung in settings.rungs] == [1, 2]
    assert load_config(Rungs, write(dump_toml(settings, origins)))[0] == settings
    with pytest.raises(DreamGymError) as error:
        load_config(Rungs, write("[[rungs]]\napi_key = 'sk-123'"))
    assert "rungs[0].api_key is an unknown key" in str(error.value)
    assert "sk-123" not in str(error.value)


def test_an_unknown_key_never_shows_its_value(write):
    assert "sk-123" not in refused(recipe=write("[policy]\napi_key = 'sk-123'"))
    assert "sk-123" not in refused("--policy.apikey", "sk-123")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("steps = true", "steps = true (recipe file) should be a whole number"),
        ("steps = 1.5", "steps = 1.5 (recipe file) should be a whole number"),
        ("steps = '7'", 'steps = "7" (recipe file) should be a whole number'),
        ("steps = 0", "steps = 0 (recipe file) should be greater than or equal to 1"),
        ("name = 1", "name = 1 (recipe file) should be text"),
        ("[policy]\nlearning_rate = true", "learning_rate = true (recipe file) should be a number"),
        ("[policy]\nlearning_rate = nan", "should be a finite number"),
        ("[policy]\nlearning_rate = -inf", "should be a finite number"),
        ("[policy]\nsize = 'huge'", "should be 'tiny' or 'small'"),
        ("[policy]\nbetas = [0.1, true]", "policy.betas[1] = true (recipe file) should be a num"),
        ("[policy]\nbetas = 0.1", "should be a list"),
        ("[dream]\nhidden = 1", "dream.hidden = 1 (recipe file) should be true or false"),
        ("[dream]\ndecoding = 'Greedy'", "should be 'greedy' or 'sampled'"),
        ("steps = 13", "13 steps bring bad luck: use 12"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_path_and_what_is_allowed(write, text, line):
    message = refused(recipe=write(text))
    assert line in message and message.count("\n") == 1, message


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--steps", "many"], 'steps = "many" (flag) should be a whole number'),
        (["--steps", "1e3"], "should be a whole number"),
        (["--steps"], "--steps needs a value"),
        (["--steps", "--name", "x"], "--steps needs a value"),
        (["--policy", "3"], "policy is a section, not a value"),
        (["--steps.x", "3"], "steps is a value and has no keys"),
        (["--learnign-rate", "1"], "did you mean policy.learning_rate"),
        (["--dreem.hidden", "1"], "did you mean dream.hidden?"),
        (["--policy.betas", "[1,"], "should be a list"),
        (["steps=3"], "unexpected 'steps=3'"),
        (["--policy.learning-rate", "1e999"], "should be a finite number"),
    ],
)
def test_a_wrong_flag_is_refused(flags, line):
    assert line in refused(*flags)


def test_a_recipe_that_cannot_be_read_is_one_line(tmp_path, write):
    assert "no recipe at" in refused(recipe=tmp_path / "nowhere.toml")
    assert "cannot read" in refused(recipe=tmp_path)
    assert "not valid TOML" in refused(recipe=write("steps = "))
    (tmp_path / "latin.toml").write_bytes("name = 'é'".encode("latin-1"))
    assert "not UTF-8" in refused(recipe=tmp_path / "latin.toml")
    (tmp_path / "bom.toml").write_bytes("name = 'é'".encode("utf-8-sig"))
    assert load_config(Sample, tmp_path / "bom.toml")[0].name == "é"


def test_python_callers_are_held_to_the_same_types():
    for wrong in ({"steps": True}, {"steps": 0}, {"stepz": 1}, {"steps": "3"}):
        with pytest.raises(ValidationError):
            Sample(**wrong)
    with pytest.raises(ValidationError):
        PolicyConfig(learning_rate=math.inf)
    with pytest.raises(ValidationError):
        Sample().steps = 3


texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
samples = st.builds(
    Sample,
    name=texts.filter(lambda text: text != "none"),
    steps=st.integers(14, 2**63 - 1),
    store=st.sampled_from([Path("a b"), Path('quo"te'), Path("é/#x")]),
    policy=st.builds(
        PolicyConfig,
        learning_rate=st.floats(0, exclude_min=True, allow_infinity=False),
        betas=st.lists(numbers, max_size=3).map(tuple),
    ),
    dream=st.builds(
        DreamConfig,
        learning_rate=st.none() | numbers,
        decoding=st.sampled_from(Decoding),
        hidden=st.booleans(),
        retriever=st.builds(Retriever, languages=st.lists(texts, max_size=3).map(tuple)),
    ),
)


@given(samples)
def test_what_is_written_reads_back_as_the_same_config(tmp_path_factory, settings):
    origins = dict.fromkeys([path for path, _ in leaves(Sample)], "default")
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_text(dump_toml(settings, origins), encoding="utf-8", newline="")
    again, _ = load_config(Sample, path)
    assert again == settings
    assert config_digest(again) == config_digest(settings)


def test_the_written_config_names_the_origin_of_every_value(write):
    recipe = write("[policy]\nsize = 'small'\n")
    text = dump_toml(*load_config(Sample, recipe, ["--steps", "3"]))
    assert "steps = 3  # flag\n" in text
    assert 'size = "small"  # recipe file\n' in text
    assert "hidden = true  # default\n" in text
    assert 'learning_rate = "none"  # default\n' in text
    assert "[dream.retriever]\n" in text
    assert tomllib.loads(text)["policy"]["betas"] == [0.9, 0.95]


def test_the_digest_names_the_content_and_not_its_origin():
    flagged, _ = load_config(Sample, None, ["--steps", "200"])
    other, _ = load_config(Sample, None, ["--steps", "201"])
    assert config_digest(flagged) == config_digest(Sample()) != config_digest(other)
    assert len(config_digest(other)) == 64


def test_the_digest_does_not_depend_on_the_order_of_the_code():
    class Turned(Settings):
        betas: tuple[float, ...] = (0.9, 0.95)
        size: Literal["tiny", "small"] = "tiny"
        learning_rate: float = 1e-3

    assert config_digest(Turned()) == config_digest(PolicyConfig())


def test_the_schema_describes_types_bounds_defaults_and_meaning():
    rows = {row.path: row for row in describe(Sample)}
    assert rows["policy.learning_rate"].type == "float > 0"
    assert rows["policy.learning_rate"].doc == "Of the optimiser."
    assert rows["dream.retriever.top_k"].type == "int >= 0 and <= 64"
    assert rows["dream.learning_rate"].type == "float | none"
    assert rows["policy.size"].type == '"tiny" | "small"'
    assert rows["policy.betas"].default == [0.9, 0.95]
    assert rows["store"].default == "runs/store.sqlite"


def test_a_required_value_is_asked_for_by_name():
    class Needy(Settings):
        recipe_name: str
        """Has no default."""

    assert describe(Needy)[0].required
    with pytest.raises(DreamGymError, match=r"recipe_name is required: .*--recipe-name VALUE"):
        load_config(Needy)


def schemas():
    yield Sample
    if importlib.util.find_spec("dreamgym.config"):
        yield importlib.import_module("dreamgym.config").RunConfig


def every_leaf():
    return [
        pytest.param(schema, row, id=f"{schema.__name__}.{row.path}")
        for schema in schemas()
        for row in describe(schema)
    ]


@pytest.mark.parametrize(("schema", "row"), every_leaf())
def test_every_leaf_can_be_set_by_a_flag(schema, row):  # P106
    def text(value):
        match value:
            case None:
                return "none"
            case bool():
                return str(value).lower()
            case list():
                return (
                    "["
                    + ", ".join(f'"{v}"' if isinstance(v, str) else text(v) for v in value)
                    + "]"
                )
        return str(value)

    flag = f"--{row.path.replace('_', '-')}"
    _, origins = load_config(schema, None, [f"{flag}={text(row.default)}"])
    assert origins[row.path] == "flag"


@pytest.mark.parametrize(("schema", "row"), every_leaf())
def test_every_leaf_says_what_it_means_and_holds_no_secret(schema, row):  # P102
    assert row.doc, f"{row.path} has no docstring under it"
    assert not row.path.endswith(("key", "token", "password", "secret"))


class Pace(Settings):
    """A section that stands in several places."""

    steps: int = 10
    rate: float = 0.5


class Slow(Settings):
    pace: Pace = Pace(steps=99)
    name: str = "slow"


class Both(Settings):
    fast: Pace = Pace(steps=1, rate=0.1)
    plain: Pace = Pace()
    slow: Slow = Slow(name="slowest")


def test_a_section_named_in_part_keeps_the_rest_of_its_own_defaults(write):
    recipe = write("[fast]\nrate = 0.2\n[slow]\nname = 'x'\n")
    told, _ = load_config(Both, recipe, ["--slow.pace.rate", "0.7", "--plain.rate", "0.3"])
    assert told.fast == Pace(steps=1, rate=0.2)
    assert told.slow == Slow(pace=Pace(steps=99, rate=0.7), name="x")
    assert told.plain == Pace(steps=10, rate=0.3)


def test_a_default_is_told_as_it_stands_in_its_place():
    told = {doc.path: doc.default for doc in describe(Both)}
    assert told["fast.steps"] == 1 and told["plain.steps"] == 10
    assert told["slow.pace.steps"] == 99 and told["slow.name"] == "slowest"


def test_the_embedded_default_keeps_its_own_whatever_else_is_set():
    told, _ = load_config(RunConfig, None, ["--experience.k", "1", "--clone.sft.warmup-steps", "5"])
    assert told.experience.history is RunConfig().experience.history
    assert told.clone.sft.num_tokens == RunConfig().clone.sft.num_tokens


@pytest.mark.parametrize(("noisy", "scarce"), [(0, True), (249, True), (250, False)])
def test_few_offline_episodes_are_warned_of(noisy, scarce):
    told = OfflineConfig(expert=0, noisy=noisy, random=0).scarce()
    assert told.startswith(f"{noisy} offline episodes") is scarce and bool(told) is scarce
