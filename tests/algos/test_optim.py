"""Our Muon against torch's, whose orthogonalisation runs in bfloat16."""

from __future__ import annotations

import torch

from dreamgym.algos.optim import Muon, orthogonal

SHAPES = ((64, 64), (64, 64), (160, 64), (64, 160))


def test_it_takes_the_steps_of_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) * 0.05 for shape in SHAPES]
    ours = [torch.nn.Parameter(w.clone()) for w in start]
    theirs = [torch.nn.Parameter(w.clone()) for w in start]
    one = Muon(ours, lr=1e-2, weight_decay=0.01)
    other = torch.optim.Muon(theirs, lr=1e-2, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        one.step()
        other.step()
    for a, b, w in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() < 0.03 * (b - w).norm()  # three digits are all that bfloat16 has


def test_every_singular_value_is_brought_near_one() -> None:
    x = torch.randn(3, 32, 80, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(x))
    assert values.min() > 0.6 and values.max() < 1.3
