"""What tests share: the folder of third-party data, and the mark of tests that need an extra."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[1] / "../shared/data"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine: needs the `alfworld` extra (compiles for minutes)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("engine")]
    if marked and importlib.util.find_spec("textworld") is None:
        reason = "ALFWorld's engine is not installed: pip install 'dreamgym[alfworld]'"
        warnings.warn(f"{len(marked)} tests skipped: {reason}", stacklevel=1)
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def third_party() -> Path:
    """Third-party data, never shipped: `$DREAMGYM_DATA`, else the folder beside the checkout."""
    path = Path(os.environ.get("DREAMGYM_DATA") or BESIDE).resolve()
    if not (path / "alfworld").is_dir():
        reason = f"no third-party data at {path}: set DREAMGYM_DATA to the folder that has them"
        warnings.warn(f"a test is skipped: {reason}", stacklevel=1)
        pytest.skip(reason)
    return path


@pytest.fixture
def data_dir(third_party: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the product finds it."""
    monkeypatch.setenv("DREAMGYM_DATA", str(third_party))
    return third_party
