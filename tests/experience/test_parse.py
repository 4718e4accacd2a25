"""Answers that models really gave (`cases/field_reports.jsonl`), each with its whole kind.

A reader that guesses turns a broken answer into a reward; this one names what is wrong.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dreamgym.experience.parse import read_answer
from dreamgym.experience.prompts import Answer, answer_text
from dreamgym.types import Completion, DreamFault

WON = '{"next_state":"You won.","reward":1,"done":true}'
LOST = '{"next_state":"The shelf is empty.","reward":0,"done":false}'


def fault(text: str, finish: str = "stop") -> str:
    """The class under which a text is refused."""
    with pytest.raises(DreamFault) as caught:
        read_answer(Completion(text, finish_reason=finish))  # type: ignore[arg-type]
    return caught.value.kind


def reward(text: str) -> float:
    return read_answer(Completion(text)).reward


def body(reward: str, done: str = "true", state: str = '"ok"') -> str:
    return f'{{"next_state":{state},"reward":{reward},"done":{done}}}'


@pytest.mark.parametrize(
    "thought", [WON, "maybe {won}", "{" * 9, '{"reward":1', "[3] of {a,b}", ""]
)
def test_p001_what_stands_in_the_reasoning_is_no_answer(thought: str) -> None:
    answer = read_answer(Completion(f"<think>1. maybe output {thought}</think>\n{LOST}"))
    assert (answer.reward, answer.done) == (0.0, False)
    assert answer.parse_class == "OK_AFTER_STRIP"
    assert answer.reason == f"1. maybe output {thought}".strip()


def test_p001_a_second_block_of_reasoning_is_no_answer_either() -> None:
    assert fault(f"<think>a</think><think>{WON}</think>") == "EMPTY"
    assert fault(f"<think>a</think> <think>{WON}") == "TRUNCATED_REASONING"
    answer = read_answer(Completion(f"<think>a</think>{LOST}<think>{WON}</think>"))
    assert answer.reward == 0 and answer.reason == f"a\n{WON}"


def test_p003_reasoning_then_a_fence_then_prose_is_read() -> None:
    framed = "<think>I see [3] options {{a,b}}</think>\n\n```json\n{}\n```\nHope this helps!"
    assert reward(framed.format(body("0.5"))) == 0.5
    assert reward(f"Sure! {body('0.5')}") == 0.5
    # the report's own answer pays before the end, which this project's worlds never do
    assert fault(framed.format(body("0.5", "false"))) == "CONTRADICTION"


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize(
    "text", ['<think>The agent opens the drawer, so {"reward":', "<think>", f"<think>{WON}"]
)
def test_p004_reasoning_that_never_ends_is_its_own_class(text: str, finish: str) -> None:
    assert fault(text, finish) == "TRUNCATED_REASONING"


@pytest.mark.parametrize("text", ["", " \n", "<think>Let me think</think>", "<think></think>  "])
def test_p006_an_answer_without_content_is_counted_apart(text: str) -> None:
    assert fault(text, "length") == "TRUNCATED_REASONING"
    assert fault(text, "stop") == "EMPTY"


@pytest.mark.parametrize("blank", [" ", "\n", "\t", " \n"])
def test_p007_a_run_of_blanks_is_degenerate(blank: str) -> None:
    assert fault('{\n"next_state":' + blank * 2000, "length") == "DEGENERATE"
    assert fault(body("1", state='"a' + blank * 300 + '"')) == "DEGENERATE"
    assert read_answer(Completion('{"next_state":"a",' + " " * 150 + '"reward":0,"done":false}'))


@pytest.mark.parametrize(
    "text",
    [
        '{"next_state":"The note says \'keep out\'}',
        '{"next_state":"a","reward":0',
        '{"next_state":"a","done":false}',
        '{"reward":1,"done":true}',
        '{"next_state":"a","reward":1}',
        '{"next_state":"a","reward":null,"done":true}',
        '{"next_state":null,"reward":0,"done":true}',
        '{"next_state":"","reward":0,"done":true}',
        "{'next_state':'a','reward':1,'done':true}",
        '{"next_state":"a","reward":0,"done":true,}',
    ],
)
def test_p009_nothing_is_mended_and_no_reward_is_made_up(text: str) -> None:
    assert fault(text) == "UNREPAIRABLE"


def test_p009_an_answer_cut_off_is_told_from_a_wrong_one() -> None:
    assert fault('{"next_state":"a","reward":', "length") == "TRUNCATED"


@pytest.mark.parametrize(
    "text",
    ['{"reward":1}\n{"reward":0}', WON + LOST, f"First {LOST} or else {WON}", f"[{WON},{LOST}]"],
)
def test_p010_two_answers_are_ambiguous(text: str) -> None:
    assert fault(text) == "AMBIGUOUS"


def test_p010_one_answer_said_twice_is_one() -> None:
    assert reward(f"{WON}\n{WON}") == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "{" * 3000,
        '{"a":' * 3000,
        '{"next_state":"a","reward":1,"done":true,"x":' + "[" * 3000 + "]" * 3000 + "}",
        '{"next_state":"' + "x" * 9000 + '","reward":1,"done":true,"x":' + "[" * 3000,
        LOST + "[" * 3000,
    ],
    ids=["lists", "objects", "values", "closed", "far_off", "after"],
)
def test_p010_deep_nesting_is_refused_and_never_recurses(text: str) -> None:
    assert fault(text) == "TOO_DEEP"


@pytest.mark.parametrize("text", ["<think>First I should", '{"next_state":"You o', "I will", ""])
def test_p012_what_the_token_limit_cut_is_never_bad_format(text: str) -> None:
    assert fault(text, "length").startswith("TRUNCATED")


@pytest.mark.parametrize(
    ("said", "read"), [("1e-1", 0.1), ("0.7", 0.7), ("0.5", 0.5), ("10e-1", 1.0), ("1.0E0", 1.0)]
)
def test_p016_the_whole_number_is_read(said: str, read: float) -> None:
    assert reward(body(said)) == read


@pytest.mark.parametrize("said", ["10", "-0.5", "1.5", "1e1", "100", "-1", "1.0000001", "1e300"])
def test_p016_a_number_out_of_range_is_refused_not_clipped(said: str) -> None:
    assert fault(body(said)) == "OUT_OF_RANGE"


@pytest.mark.parametrize("said", ["0.7.", "01", "+1", ".5", "1.", "0x1", "1_0"])
def test_p016_half_a_number_is_none(said: str) -> None:
    assert fault(body(said)) == "UNREPAIRABLE"


@pytest.mark.parametrize(
    "text",
    [
        "There are 5 reasons why this is not excellent; score 9 of 9",
        "Reward: 10",
        "Reward: 1e-1",
        "reward=1, done=true",
        "奖励：0.5",  # "reward: 0.5"
        "1",
        "[1]",
        "{}",
        '"You won."',
        "Success!",
        '{"score":1,"done":true}',
    ],
)
def test_p018_prose_is_never_scored(text: str) -> None:
    assert fault(text) == "UNREPAIRABLE"


@pytest.mark.parametrize(
    "said", ['"nan"', '"inf"', '"1.5"', '"-0.5"', '"1"', '"0"', '""', "[1]", "{}"]
)
def test_p024_a_reward_in_quotes_is_no_reward(said: str) -> None:
    assert fault(body(said)) == "UNREPAIRABLE"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("NaN", "REFUSED"),
        ("Infinity", "REFUSED"),
        ("-Infinity", "REFUSED"),
        ("1e400", "OUT_OF_RANGE"),
        ("true", "UNREPAIRABLE"),
        ("false", "UNREPAIRABLE"),
        ("1" * 5000, "REFUSED"),
        ("0." + "1" * 50_000, None),
    ],
)
def test_p025_what_libraries_let_through_is_refused(said: str, kind: str | None) -> None:
    if kind is None:
        assert math.isclose(reward(body(said)), 1 / 9)
    else:
        assert fault(body(said)) == kind


@pytest.mark.parametrize("key", ["reward", "done", "next_state", "x"])
def test_p025_a_key_that_stands_twice_is_refused(key: str) -> None:
    twice = {"reward": '"reward":0', "done": '"done":false', "next_state": '"next_state":"b"'}
    text = WON[:-1] + "," + twice.get(key, '"x":[],"x":[]') + "}"
    assert fault(text) == "REFUSED"


@pytest.mark.parametrize("done", ["1", "0", '"true"', "null", "[]"])
def test_p025_done_is_true_or_false_and_nothing_else(done: str) -> None:
    assert fault(body("0", done)) == "UNREPAIRABLE"


@pytest.mark.parametrize(
    ("said", "read"),
    [("0", 0.0), ("1", 1.0), ("0.0", 0.0), ("1.0", 1.0), ("-0.0", 0.0), ("5e-324", 5e-324)],
)
def test_the_edges_of_the_range_are_inside_it(said: str, read: float) -> None:
    assert reward(body(said)) == read


@pytest.mark.parametrize("said", ["1", "0.5", "5e-324"])
def test_a_reward_before_the_end_contradicts_itself(said: str) -> None:
    assert fault(body(said, "false")) == "CONTRADICTION"
    assert reward(body("0", "false")) == 0.0


def test_an_answer_of_endless_length_is_refused() -> None:
    assert fault(body("0", "false", '"' + "x" * 100_001 + '"')) == "TOO_LONG"


@pytest.mark.parametrize("text", ["{}" * 40_000, '{"a":1} ' * 9_000, '{"a":"' + "{} " * 20_000])
def test_reading_takes_time_in_proportion_to_the_length(text: str) -> None:
    began = time.process_time()
    assert fault(text) == "UNREPAIRABLE"
    assert time.process_time() - began < 1.0


answers = st.builds(
    Answer,
    next_state=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
    .map(lambda text: text.translate({ord(c): "" for c in "<[]{}"}))
    .filter(bool),
    reward=st.just(0.0),
    done=st.booleans(),
    reason=st.text(st.sampled_from("ab .,{}[]\n"), max_size=30).map(str.strip),
)


@given(answers)
@settings(max_examples=150, deadline=None)
def test_what_is_written_for_training_reads_as_it_was(answer: Answer) -> None:
    read = read_answer(Completion(answer_text(answer)))
    assert read == Answer(
        answer.next_state,
        answer.reward,
        answer.done,
        answer.reason,
        "OK_AFTER_STRIP" if answer.reason else "OK",
    )


@pytest.mark.parametrize("reward", [0.0, 0.25, 1.0])
def test_a_reward_is_written_in_the_shortest_way_and_read_again(reward: float) -> None:
    text = answer_text(Answer("Won.", reward, True))
    assert f'"reward":{reward:g},' in text
    assert read_answer(Completion(text)).reward == reward


PIECES = st.sampled_from(
    [
        *(
            "<think>",
            "</think>",
            "{",
            "}",
            "[",
            "]",
            '"',
            ",",
            ":",
            " ",
            "\\",
            "```json\n",
            "é",
            "：",
        ),
        *('"next_state":', '"reward":', '"done":', '"a"', "true", "false", "null"),
        *(
            "0",
            "1",
            "-1",
            "1e999",
            "NaN",
            "9" * 4400,
            "[" * 20,
            " " * 250,
            "\\ud800",
            "\ud800",
            "\0",
        ),
        *(WON, LOST),
    ]
)
numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
objects = st.fixed_dictionaries(
    {"next_state": st.text(max_size=5), "reward": numbers, "done": numbers},
    optional={"x": st.recursive(numbers, st.lists)},
).map(json.dumps)
texts = st.one_of(
    st.text(),
    st.lists(PIECES, max_size=14).map("".join),
    objects,
    st.tuples(st.text(max_size=5), objects, st.text(max_size=5)).map("".join),
)


@given(texts, st.sampled_from(["stop", "length"]))
@example('{"next_state":"a","reward":' + "1" * 5000 + ',"done":true}', "stop")
@example('{"a":"' + "x" * 5000 + '","reward":0,"b":' + "[" * 3000, "stop")
@settings(max_examples=600, deadline=None)
def test_any_text_is_an_answer_in_range_or_a_named_fault(text: str, finish: str) -> None:
    try:
        answer = read_answer(Completion(text, finish_reason=finish))  # type: ignore[arg-type]
    except DreamFault as refused:
        assert refused.kind.isupper()
    else:
        assert math.isfinite(answer.reward) and 0.0 <= answer.reward <= 1.0
        assert answer.next_state and isinstance(answer.done, bool)
        assert answer.done or answer.reward == 0.0


def tagged(state: str = "ok", reward: str = "0", done: str = "false") -> str:
    return f"<next_state>\n{state}\n</next_state>\n<reward>{reward}</reward>\n<done>{done}</done>"


def test_a_tagged_answer_carries_a_long_state_without_escapes() -> None:
    state = 'A page: "quoted", {braces}, [Buy Now]\n' * 50
    answer = read_answer(Completion("<think>so</think>" + tagged(state)))
    assert answer.next_state == state.strip() and answer.reason == "so"
    assert read_answer(Completion("Sure:\n" + tagged("won", "1.0", "True"))).reward == 1.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (tagged("The note says <reward>1</reward>"), "AMBIGUOUS"),
        (tagged("a</next_state><next_state>b"), "AMBIGUOUS"),
        (tagged() + tagged(), "AMBIGUOUS"),
        ("<next_state>a<reward>0</reward><done>false</done></next_state>", "AMBIGUOUS"),
        (tagged(reward="10", done="true"), "OUT_OF_RANGE"),
        (tagged(reward="-0.5"), "OUT_OF_RANGE"),
        (tagged(reward="1e999"), "OUT_OF_RANGE"),
        (tagged(reward="nan"), "UNREPAIRABLE"),
        (tagged(reward="1 of 1"), "UNREPAIRABLE"),
        (tagged(reward=""), "UNREPAIRABLE"),
        (tagged(done="yes"), "UNREPAIRABLE"),
        (tagged(state=""), "UNREPAIRABLE"),
        (tagged(reward="1"), "CONTRADICTION"),
        ("<next_state>ok</next_state><done>false</done>", "UNREPAIRABLE"),
        ("</reward><reward><next_state>a</next_state><done>true</done>", "UNREPAIRABLE"),
    ],
)
def test_a_tagged_answer_is_read_as_strictly(text: str, kind: str) -> None:
    assert fault(text) == kind


def test_a_tagged_answer_that_was_cut_is_told_from_a_wrong_one() -> None:
    assert fault("<next_state>You o", "length") == "TRUNCATED"
    assert fault(tagged()[:-7], "length") == "TRUNCATED"


def test_ten_thousand_broken_replies_are_each_in_a_class() -> None:
    """Whole answers of both kinds, cut, spliced and salted; none of the classes has a reward."""
    chance = random.Random(20261204)
    salt = ["<think>", "</think>", "<reward>1</reward>", "</next_state>", WON, "NaN", "{", "}", "[",
            '"', "1e999", "\ud800", "奖励：1", "```", " " * 210, "Reward: 10", "<done>true</done>",
            "null", "\0", "x" * 3000, "9" * 30]  # fmt: skip
    whole = [WON, LOST, tagged(), tagged("Won.", "1", "true"), body("0.5"), "I cannot say."]
    classes: Counter[str] = Counter()
    for _ in range(10_000):
        text = chance.choice(whole)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(text) + 1)
            match chance.randrange(4):
                case 0:
                    text = text[:at]
                case 1:
                    text = text[:at] + chance.choice(salt) + text[at:]
                case 2:
                    text = text[at:] + chance.choice(whole)
                case _:
                    text = text[:at] + text[at + chance.randrange(1, 9) :]
        finish = chance.choice(["stop", "length"])
        try:
            answer = read_answer(Completion(text, finish_reason=finish))  # type: ignore[arg-type]
        except DreamFault as refused:
            classes[refused.kind] += 1
        else:
            classes["OK"] += 1
            assert 0 <= answer.reward <= 1 and (answer.done or answer.reward == 0)
    assert len(classes) >= 10 and sum(classes.values()) == 10_000, classes


def test_the_confidence_is_that_of_the_next_state_alone() -> None:
    pieces = (
        "<think>a</think>",
        '{"next_state":',
        '"The',
        ' drawer"',
        ',"reward":0',
        ',"done":false}',
    )
    text = "".join(pieces)
    logprobs = (-9.0, -8.0, -0.1, -0.3, -0.5, -7.0)
    told = Completion(text, logprobs=logprobs, pieces=pieces)
    # the piece with the comma belongs to both sides
    assert math.isclose(read_answer(told).logprob, -0.3)
    assert math.isclose(read_answer(Completion(text, logprobs=logprobs)).logprob, -24.9 / 6)
    assert math.isnan(read_answer(Completion(text)).logprob)
