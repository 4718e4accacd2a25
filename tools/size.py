"""Print how large files, functions and folders are; fail where somebody could get lost in one."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 450
FUNCTION_LINES = 60  # reported
FUNCTION_LINES_MAX = 80  # refused
PARAMETERS = 5
FOLDER_FILES = 8
FOLDERS = ("src", "tests", "tools")


def quantile(values: list[int], share: float) -> int:
    """The nearest-rank quantile of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(place, lines, parameters) of every function in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            names += [arg.arg for arg in node.args.kwonlyargs]
            count = sum(name not in ("self", "cls") for name in names)
            place = f"{path}:{node.lineno} {node.name}"
            yield place, node.end_lineno - node.lineno + 1, count


def show(title: str, rows: list[str]) -> None:
    """A title with its count, and the rows under it."""
    print(f"{title}: {len(rows) or 'none'}")
    for row in rows:
        print(f"  {row}")


def main(root: Path) -> int:
    """Measure the tree under `root`; 1 where a file or a function is over the hard limit."""
    files = sorted(path for name in FOLDERS for path in (root / name).rglob("*.py"))
    files = [path.relative_to(root) for path in files]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    for name in FOLDERS:
        counts = sorted(count for path, count in lines.items() if path.parts[0] == name)
        if counts:
            middle, high = quantile(counts, 0.5), quantile(counts, 0.95)
            total = f"{len(counts)} files, {sum(counts)} lines"
            print(f"{name}: {total}, median {middle}, p95 {high}, longest {counts[-1]}")
    big = [f"{path} {count}" for path, count in lines.items() if count > FILE_LINES]
    show(f"files over {FILE_LINES} lines", big)
    found = [row for path in files for row in functions(path)]
    long = [f"{place} {size}" for place, size, _ in found if size > FUNCTION_LINES]
    show(f"functions over {FUNCTION_LINES} lines", long)
    wide = [f"{place} {count}" for place, _, count in found if count > PARAMETERS]
    show(f"functions with more than {PARAMETERS} parameters", wide)
    folders = Counter(path.parent for path in files if path.name != "__init__.py")
    full = [f"{folder} {count}" for folder, count in folders.items() if count > FOLDER_FILES]
    show(f"folders with more than {FOLDER_FILES} files", full)
    return 1 if big or any(size > FUNCTION_LINES_MAX for _, size, _ in found) else 0


if __name__ == "__main__":
    import os

    os.chdir(Path(__file__).resolve().parents[1])
    sys.exit(main(Path()))
