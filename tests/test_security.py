"""Nothing that we read can run code, and no secret has a place where others can see it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "dreamgym"
FORBIDDEN = {
    "pickle": r"\b(c?[pP]ickle|cloudpickle|dill|joblib|shelve|marshal)\b",
    "torch.load without weights_only": r"\btorch\.load\((?!.*weights_only=True)",
    "numpy object arrays": r"allow_pickle\s*=\s*True",
    "eval": r"(?<![\w.])eval\(",
    "exec": r"(?<![\w.])exec\(",
    "remote code": r"trust_remote_code\s*=\s*True",
    "shell": r"shell\s*=\s*True|\bos\.(system|popen)\(",
    "yaml.load": r"\byaml\.(unsafe_|full_)?load\(",
}
"""P100: what turns a shared file into running code."""


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_source_has_no_way_to_run_what_it_reads(path):
    assert offences(path.read_text(encoding="utf-8")) == []


def offences(text: str) -> list[str]:
    return [
        f"line {number}: {name}"
        for number, line in enumerate(text.splitlines(), 1)
        for name, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "state = torch.load(path)",
        "state = torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "value = eval(text)",
        "exec(code)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "yaml.load(text)",
    ],
)
def test_each_of_them_would_be_found(line):
    assert len(offences(f"x = 1\n    {line}\n")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "model.eval()",
        "torch.load(path, weights_only=True)",
        "connection.executescript(SCHEMA)",
        "yaml.safe_load(text)",
    ],
)
def test_their_harmless_neighbours_are_not(line):
    assert offences(line) == []
