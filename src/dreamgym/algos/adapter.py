"""LoRA by PEFT (extra `lora`): the weights stay, small matrices beside them learn."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from dreamgym.algos.settings import AdapterConfig
from dreamgym.types import DreamGymError

REFERENCE = "reference"


def require_peft() -> None:
    if find_spec("peft") is None:
        raise DreamGymError(
            "learner.adapter.rank asks for LoRA and PEFT is not installed: "
            "pip install 'dreamgym[lora]', or set the rank to 0 to train all weights"
        )


def with_adapter(model: PreTrainedModel, config: AdapterConfig) -> PreTrainedModel:
    """The model with fresh adapters, which are all that trains; they change nothing yet."""
    require_peft()
    from peft import LoraConfig, get_peft_model

    named: str | list[str] = config.modules
    if config.modules != "all-linear":
        named = [name.strip() for name in config.modules.split(",") if name.strip()]
        _check_modules(model, named)
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=named,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)


def _check_modules(model: PreTrainedModel, named: Sequence[str]) -> None:
    """Every name must be a layer, and none a table that the model holds only once for two uses."""
    layers = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if unknown := [name for name in named if name not in layers]:
        raise DreamGymError(f"learner.adapter.modules: the model has no layer {unknown[0]!r}")
    if "embed_tokens" in named:
        raise DreamGymError(
            "learner.adapter.modules: adapters on embed_tokens are not sampled from"
        )
    if "lm_head" in named and model.config.tie_word_embeddings:
        raise DreamGymError(
            "learner.adapter.modules: lm_head shares its weights with the embeddings here, so "
            "that merging an adapter into one would change the other: leave lm_head out"
        )


def is_adapted(model: PreTrainedModel) -> bool:
    return hasattr(model, "peft_config")


def keep_reference(model: PreTrainedModel) -> None:
    """Freeze a copy of the adapters as they are: a warm-started adapter is part of the policy that
    training began with, so that switching adapters off would be another one."""
    active = model.active_adapter
    if REFERENCE in model.peft_config:
        model.delete_adapter(REFERENCE)
    model.add_adapter(REFERENCE, copy.deepcopy(model.peft_config[active]))
    tensors = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in tensors.items():
            if f".{REFERENCE}." in name or name.endswith(f".{REFERENCE}"):
                parameter.copy_(tensors[name.replace(REFERENCE, active)])
    model.set_adapter(active)


@contextmanager
def as_reference(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model computes what it did when `keep_reference` was called."""
    active = model.active_adapter
    model.set_adapter(REFERENCE)
    try:
        yield
    finally:
        model.set_adapter(active)


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A plain model with the adapters added into its weights; the original stays as it is."""
    plain = copy.deepcopy(model)
    if REFERENCE in plain.peft_config:
        plain.delete_adapter(REFERENCE)
    return plain.merge_and_unload()


def save_adapter(model: PreTrainedModel, path: Path) -> None:
    save_file(
        {n: p.detach().contiguous() for n, p in model.named_parameters() if p.requires_grad}, path
    )


def load_adapter(model: PreTrainedModel, path: Path) -> None:
    """Raises ValueError where the file holds other adapters."""
    tensors = load_file(path)
    own = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if own.keys() != tensors.keys():
        raise ValueError(f"{path} holds other adapters: {sorted(own.keys() ^ tensors.keys())[0]}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
