"""The end-to-end runs dream with the toy world's scripted experience model."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experience"))
