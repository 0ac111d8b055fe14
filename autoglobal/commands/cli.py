"""The command line of ``python -m autoglobal``.

It prints in colour with ``rich`` and in plain words without, since rich may be what is missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict

from .._version import __version__
from . import doctor
from .doctor import Check

STYLES = {"ok": "green", "!!": "bold red", "--": "dim"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 where everything is well, 1 where something is not."""
    options = _parser().parse_args(arguments)
    checks = doctor.examine(options.self_test, options.timeout)
    if options.json:
        done = list(checks)
        ok = not _faults(done)
        print(json.dumps({"ok": ok, "checks": [asdict(check) for check in done]}, indent=2))
        return 0 if ok else 1
    return 1 if _show(checks) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autoglobal", description="Local OneFlow tensors become global."
    )
    parser.add_argument("--version", action="version", version=f"autoglobal {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "doctor",
        help="check this environment",
        description="Check this environment: for each fault its cause and the line to type. "
        "Exit code 0 if there is none, 1 if there is.",
    )
    command.add_argument("--json", action="store_true", help="for programs to read")
    command.add_argument(
        "--no-self-test", dest="self_test", action="store_false", help="start no ranks"
    )
    command.add_argument(
        "--timeout",
        type=_seconds,
        default=doctor.TIMEOUT,
        metavar="SECONDS",
        help="for the import of OneFlow, and for the self-test (default %(default)g)",
    )
    return parser


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(
        f"must be a number of seconds, more than 0. Received: {text!r}. Write, for example, 60"
    )


def _faults(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.state == "!!"]


def _show(checks: Iterable[Check]) -> list[Check]:
    """Print the checks as they come, then the faults, which are returned."""
    write = _writer()
    done = []
    for check in checks:
        write((f"{check.state}  ", STYLES[check.state]), f"{check.name:<11} {check.found}")
        done.append(check)
    faults = _faults(done)
    for check in faults:
        write(("\n!!  ", STYLES["!!"]), f"{check.name}: {check.cause}")
        if check.cure:
            write("    type: ", (check.cure, "bold"))
    return faults


def _writer() -> Callable[..., None]:
    """A function that prints a line of words, and of pairs of a word and its style."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return lambda *words: print(*(w if isinstance(w, str) else w[0] for w in words), sep="")
    console = Console(highlight=False)
    # soft_wrap, because a line to type is there to be copied and must not be broken.
    return lambda *words: console.print(Text.assemble(*words), soft_wrap=True)
