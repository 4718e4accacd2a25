"""The command line: which commands there are, and the one place where errors become lines.

Commands are named by import strings, so that `dreamgym --help` loads none of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from dreamgym import __version__
from dreamgym.types import DreamGymError

COMMANDS = {
    "quickstart": ("dreamgym.commands:quickstart", "Run the whole loop on generated games."),
    "collect": ("dreamgym.commands:collect", "Play the real world and store the transitions."),
    "import": ("dreamgym.commands:import_", "Read logged trajectories into the store."),
    "annotate": ("dreamgym.commands:annotate", "Write reasons for stored transitions."),
    "fit": ("dreamgym.commands:fit", "Train the experience model on stored transitions."),
    "train": ("dreamgym.commands:train", "Train a policy in the dream, from a recipe."),
    "curriculum": ("dreamgym.commands:curriculum", "Why a run chose its tasks, and what grew."),
    "audit": ("dreamgym.commands:audit", "Judge a dream against the real world."),
    "evaluate": ("dreamgym.commands:evaluate", "Measure a policy in the real world."),
    "reproduce": ("dreamgym.commands:reproduce", "Run the paper's table, cell by cell."),
    "config": ("dreamgym.commands:config", "Print every setting, or a recipe as it resolves."),
    "doctor": ("dreamgym.commands:doctor", "Check this machine and print what would fix it."),
    "version": ("dreamgym.commands:version", "Print the version."),
}
"""name -> (where it lives, what it does). The functions' signatures are the flags."""

ABOUT = "Train LLM agents by reinforcement learning on synthesised experience."
HELP = "\n".join(
    [
        "Usage: dreamgym COMMAND [--debug]\n",
        f"{ABOUT}\n",
        *(f"  {name:<12}{summary}" for name, (_, summary) in COMMANDS.items()),
        "\n`dreamgym COMMAND --help` explains a command; --debug shows where an error came from.",
    ]
)
"""Written here, since loading a parser takes longer than the whole answer should."""

SECRET_FLAG = re.compile(
    r"--?([\w-]+\.)*((api|access|secret|auth|private)[-_]?key|((access|api|auth|bearer|hf)[-_]?)?token|password|passwd"
    r"|secret|credentials?)(=.*)?",
    re.IGNORECASE | re.DOTALL,
)
INTERRUPTED = 130


def main() -> None:
    """The entry point of the `dreamgym` program."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code: the error's own, 130 for Ctrl-C."""
    tokens = [token for token in argv if token != "--debug"]
    debug = len(tokens) < len(argv)
    try:
        code = _dispatch(tokens)
        sys.stdout.flush()  # here, where a closed pipe is caught, and not at exit
        return code
    except DreamGymError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        print("\nstopped: the same command goes on from what is finished", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(tokens: list[str]) -> int:
    if not tokens or tokens[0] in ("--help", "-h"):
        print(HELP)
        return 0
    _refuse_secrets(tokens)
    _refuse_unknown_command(tokens)
    return _parse(tokens)


def _parse(tokens: list[str]) -> int:
    """Hand over to the parser; what a command returns is the exit code."""
    from cyclopts import App, CycloptsError

    app = App(
        name="dreamgym",
        help=ABOUT,
        version=__version__,
        help_format="plaintext",  # loading a Markdown renderer doubles the time of --help
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, (target, summary) in COMMANDS.items():
        app.command(target, name=name, help=summary)
    try:
        code = app(tokens)
    except CycloptsError as error:
        raise DreamGymError(f"{error}; see dreamgym {tokens[0]} --help") from error
    return code if isinstance(code, int) else 0


def _refuse_secrets(tokens: list[str]) -> None:
    for token in tokens:
        if SECRET_FLAG.fullmatch(token):
            flag = token.partition("=")[0]
            raise DreamGymError(
                f"{flag}: a secret on the command line can be read by every process of this "
                "machine; put it into the environment variable of its service instead "
                "(OPENAI_API_KEY, HF_TOKEN)"
            )


def _refuse_unknown_command(tokens: list[str]) -> None:
    first = tokens[0]
    if first in COMMANDS or first == "--version":
        return
    near = get_close_matches(first, COMMANDS)
    hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
    kind = "option" if first.startswith("-") else "command"
    raise DreamGymError(f"unknown {kind} {first!r}; {hint}")
