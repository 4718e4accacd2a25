"""One step of our Muon against torch's, on the matrices of the quickstart's model.

    python benchmarks/muon.py

Alternated, medians; the ratio is torch's time over ours. Where the CPU has bfloat16 instructions it
may be below 1.
"""

from __future__ import annotations

import statistics
import time

import torch

from dreamgym.algos.optim import Muon
from dreamgym.config import ModelConfig
from dreamgym.llm.tiny import make_llama

ROUNDS = 7


def main() -> None:
    cfg = ModelConfig()
    model = make_llama(
        cfg.vocab_size, width=cfg.width, layers=cfg.layers, heads=cfg.heads, kv_heads=cfg.kv_heads
    )
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    optimizers = {
        "ours": Muon(matrices, lr=1e-3),
        "torch": torch.optim.Muon(matrices, lr=1e-3, adjust_lr_fn="match_rms_adamw"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(ROUNDS):
        for name, optimizer in optimizers.items():
            began = time.perf_counter()
            optimizer.step()
            seconds[name].append(time.perf_counter() - began)
    ours, theirs = (statistics.median(seconds[name]) for name in ("ours", "torch"))
    print(f"threads {torch.get_num_threads()}, {len(matrices)} matrices")
    print(f"ours {ours * 1e3:.1f} ms, torch {theirs * 1e3:.1f} ms, ratio {theirs / ours:.1f}")


if __name__ == "__main__":
    main()
