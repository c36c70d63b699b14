"""The command line: ``medbn COMMAND``.

Every module of this folder that has ``add(subparsers)`` is a command. Wrong input ends with one line on stderr and exit
code 2; ``MEDBN_DEBUG=1`` shows the traceback instead.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import NoReturn

from .._version import __version__

ORDER = ("demo", "run", "recipes", "report", "data", "train", "speed")


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read more."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = Parser(prog="medbn", description="Test-time adaptation that a few crafted images cannot hijack.")
    parser.add_argument("--version", action="version", version=f"medbn {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    found = {file.name for file in pkgutil.iter_modules(__path__)}
    for name in sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "add"):
            module.add(commands)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where the module of a user's own model is looked for

    def work() -> int | None:
        chosen = parser.parse_args(arguments)
        code: int | None = chosen.run(chosen)
        return code

    return answer("medbn", work)


def answer(program: str, work: Callable[[], int | None]) -> int:
    """Do the work of a program and return its exit code; an error is one line on stderr."""
    try:
        return int(work() or 0)
    except KeyboardInterrupt:
        print(f"\n{program}: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (``medbn ... | head``). Python would complain once more while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("MEDBN_DEBUG"):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError | OSError | ImportError | RuntimeError | TypeError):
            text = f"{type(error).__name__}: {text} (MEDBN_DEBUG=1 shows where)"
        print(f"{program}: {text}", file=sys.stderr)
        return 2
