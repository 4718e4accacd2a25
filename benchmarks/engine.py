"""How fast the engine is, always beside an alternative on the same work in the same run.

    python benchmarks/engine.py trl --trl-python PYTHON   rollouts, updates, memory against TRL
    python benchmarks/engine.py decode                    sampling against transformers' generate
    python benchmarks/engine.py dream                     a dream against ALFWorld's own engine
    python benchmarks/engine.py gemm                      the share of the processor that is used
    python benchmarks/engine.py scaling                   more and more episodes in flight

The sides take turns, and the numbers are medians over the rounds. Where other processes use the
processor (`others`, in cores) times are longer for everybody: trust a row below 0.15, or the ratio
of CPU seconds. A random Llama of five million parameters in float32, one thread unless told.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

COMMANDS = {
    "trl": "side_by_side.versus_trl:run",
    "decode": "side_by_side.local:decode",
    "dream": "side_by_side.dream:dream",
    "gemm": "side_by_side.local:gemm",
    "scaling": "side_by_side.local:scaling",
}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--rounds", type=int, default=3)
    common.add_argument("--threads", type=int, default=1, help="of every process that is measured")
    common.add_argument("--seed", type=int, default=0)
    common.add_argument("--json", action="store_true", help="print JSON instead of a table")
    common.add_argument("--out", type=Path, default=Path("results/engine"), help="a folder")
    common.add_argument("--size", choices=("5m", "tiny"), default="5m", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    made = {name: commands.add_parser(name, parents=[common]) for name in COMMANDS}

    trl = made["trl"]
    trl.add_argument("--trl-python", type=Path, help="of an environment that has TRL")
    trl.add_argument("--shapes", nargs="+", default=["4x4", "8x8"], help="groups x attempts")
    trl.add_argument("--latency", nargs="+", type=float, default=[0.0, 0.2], help="s of a step")
    trl.add_argument("--turns", type=int, default=4)
    trl.add_argument("--new", type=int, default=32, help="tokens written a turn")
    trl.add_argument("--words", type=int, default=40, help="of an observation")
    trl.add_argument("--iterations", type=int, default=1, help="measured, after one to warm up")
    trl.add_argument("--trl-micro", type=int, default=8, help="TRL's per_device_train_batch_size")

    for name in ("decode", "gemm"):
        made[name].add_argument("--prompt", type=int, default=128, help="tokens")
        made[name].add_argument("--new", type=int, default=64, help="tokens")
    made["decode"].add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    made["gemm"].add_argument("--batch", type=int, default=64)
    made["gemm"].add_argument("--groups", type=int, default=4, help="of four attempts")
    made["scaling"].add_argument(
        "--in-flight", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256]
    )
    for name in ("trl", "gemm", "scaling"):
        made[name].add_argument("--micro-tokens", type=int, default=0, help="0: as by default")

    dream = made["dream"]
    dream.add_argument("--run", type=Path, help="a finished `dreamgym fit`; else one is made")
    dream.add_argument("--fit-tokens", type=int, default=1_500_000)
    dream.add_argument("--episodes", type=int, default=64)
    dream.add_argument("--in-flight", type=int, default=64, help="dreams at once")
    dream.add_argument("--workers", type=int, default=2, help="processes of the engine")
    return parser


def main() -> int:
    args = arguments().parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch, and for every subprocess
    import torch
    from side_by_side.report import publish

    from dreamgym.types import DreamGymError

    torch.set_num_threads(args.threads)
    module, _, function = COMMANDS[args.command].partition(":")
    try:
        outcome = getattr(importlib.import_module(module), function)(args)
    except DreamGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    publish(args.command, outcome, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
