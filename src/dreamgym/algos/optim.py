"""Optimisers: Muon for the matrices, AdamW for everything else.

Muon is written out here because torch's orthogonalises in bfloat16, which a CPU without bfloat16
instructions emulates; `benchmarks/muon.py` prints what that costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
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
    optimizers: list[torch.optim.Optimizer] = []
    if others:  # adapters are matrices all
        adamw = torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        optimizers.append(adamw)
    if matrices:
        optimizers.append(Muon(matrices, lr=learning_rate, weight_decay=0.01))
    return optimizers


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal (Jordan et al. 2024), scaled to AdamW's step (Liu et al. 2025).

    Same numbers as `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, but in the gradient's own
    precision, and with all matrices of one shape in one product.
    """

    def __init__(
        self,
        params: Sequence[torch.nn.Parameter],
        lr: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(tuple(sorted(parameter.shape)), []).append(parameter)
            for (_, longer), parameters in shapes.items():
                wide = torch.stack(
                    [_wide(self._nesterov(p, group["momentum"])) for p in parameters]
                )
                rate = group["lr"] * 0.2 * longer**0.5
                for parameter, update in zip(parameters, orthogonal(wide), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    tall = parameter.shape[0] > parameter.shape[1]
                    parameter.add_(update.mT if tall else update, alpha=-rate)

    def _nesterov(self, parameter: torch.nn.Parameter, momentum: float) -> Tensor:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None  # `step` leaves out those without
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(state["momentum_buffer"], momentum)


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def orthogonal(x: Tensor, num_steps: int = 5) -> Tensor:
    """Singular values of (N, rows, columns), rows <= columns, brought near 1 (Newton-Schulz)."""
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(num_steps):
        gram = x @ x.mT
        both = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, both, x, beta=3.4445)
    return x


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
