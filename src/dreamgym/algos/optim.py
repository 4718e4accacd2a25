"""Optimisers: Muon for the matrices, AdamW for everything else.

We have not compared Muon with AdamW on these models. Its update
took about a quarter of a step of 800 tokens on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel


def make_optimizers(
    model: PreTrainedModel, learning_rate: float, *, muon: bool = True
) -> list[torch.optim.Optimizer]:
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hidden = muon and parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
            (matrices if hidden else others).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    ]
    if matrices:
        optimizers.append(
            torch.optim.Muon(
                matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
            )
        )
    return optimizers


def set_learning_rate(optimizers: Sequence[torch.optim.Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def save_optimizers(optimizers: Sequence[torch.optim.Optimizer], path: Path) -> None:
    """Every tensor of the optimisers' states, as safetensors: nothing that loading could run."""
    tensors = {
        f"{o}/{p}/{name}": torch.as_tensor(value).clone()
        for o, optimizer in enumerate(optimizers)
        for p, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }
    save_file(tensors, path)


def load_optimizers(optimizers: Sequence[torch.optim.Optimizer], path: Path) -> None:
    """Continue where `save_optimizers` left off."""
    states: list[dict] = [{} for _ in optimizers]
    for key, tensor in load_file(path).items():
        o, p, name = key.split("/")
        states[int(o)].setdefault(int(p), {})[name] = tensor
    for optimizer, state in zip(optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
