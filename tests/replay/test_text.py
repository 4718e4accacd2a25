"""Texts: what is cleaned, what counts as near, what is searched for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.replay.text import clean_text, fold, lost_characters, tokens

anything = st.text(st.characters(codec=None), max_size=30) | st.text(
    st.sampled_from("\ud83d\ude00\ufeff\r\n\0a钥"), max_size=12
)


@pytest.mark.parametrize(
    "dirty, clean, lost",
    [
        ("x\ud83d y", "x\ufffd y", True),
        ("\ud83d\ude00", "😀", False),
        ("\udc00", "\ufffd", True),
        ("a\0b", "a\ufffdb", True),
        ("\ufeffone\r\ntwo\rthree", "one\ntwo\nthree", False),
        ("already \ufffd", "already \ufffd", False),
        ("", "", False),
    ],
)
def test_cleaning_keeps_what_can_be_written(dirty, clean, lost):
    assert clean_text(dirty) == clean
    assert lost_characters(dirty) is lost


@given(anything)
def test_clean_text_can_be_written_and_stays_as_it_is(text):
    clean = clean_text(text)
    clean.encode("utf-8")
    assert "\0" not in clean and "\r" not in clean
    assert clean_text(clean) == clean


def test_folding_forgets_case_spaces_and_numbers():
    assert fold("Go  to\nSHELF 12 ") == fold("go to shelf 3")
    assert fold("go to shelf 1") != fold("go to desk 1")


def test_an_entity_is_a_token_and_so_is_its_type():
    found = ["on", "the", "shelf", "shelf 1", "you", "see", "a", "cd", "cd 3"]
    assert tokens("On the shelf 1, you see a CD 3.") == found


def test_numbers_that_name_no_entity_stand_alone():
    assert tokens("price 3.50, 42") == ["price", "3.50", "42"]


def test_cjk_runs_become_bigrams():
    assert tokens("打开抽屉 鱼 box") == ["打开", "开抽", "抽屉", "鱼", "box"]
