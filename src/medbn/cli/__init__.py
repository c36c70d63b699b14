# PYTHON_ARGCOMPLETE_OK
"""The command line: ``medbn COMMAND``.

Each command is the module of this folder that has its name. ``SUMMARY`` is its line in ``medbn --help``,
``configure(parser)`` adds its arguments and ``run(options)`` runs it.

The exit code is 0 if everything is done, 2 after wrong input, which is one line on stderr (``MEDBN_DEBUG=1`` shows the
traceback instead), 3 if a run is unfinished or another process does a part of it, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from .._errors import one_line
from .._version import __version__
from ._arguments import choose_device, image_size, natural_int, non_negative_float, positive_float, positive_int

__all__ = [
    "choose_device",
    "image_size",
    "main",
    "natural_int",
    "non_negative_float",
    "positive_float",
    "positive_int",
    "run_program",
]

COMMANDS = {
    "try it": ("demo",),
    "run experiments": ("recipes", "run", "merge", "report", "figure"),
    "data and models": ("data", "models", "train"),
    "measure": ("speed",),
    "in service": ("monitor", "state"),
}
"""The commands by task, in the order of ``medbn --help``."""

EXAMPLES = """\
examples:
  medbn demo                              attack a small model and see the difference
  medbn run targeted-instant --smoke      an experiment of the paper on digits, in seconds
  medbn report medbn.db                   show what was measured as a page
  medbn run --help                        the options of one command, with examples

exit codes: 0 done, 2 wrong input, 3 not finished or busy, 130 stopped by Ctrl-C

completion of names in bash and zsh:  eval "$(register-python-argcomplete medbn)\""""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose description and examples keep their line breaks."""

    def __init__(self, **options: object) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where to read more, and exit with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have all characters
    parser = build_parser()
    _complete(parser)

    def run_command() -> int | None:
        options = parser.parse_args(arguments)
        code: int | None = options.run(options)
        return code

    return run_program("medbn", run_command)


def build_parser() -> Parser:
    """Return the parser of all commands."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for names in COMMANDS.values() for name in names}
    lines = ["Test-time adaptation that a few crafted images cannot hijack."]
    for task, names in COMMANDS.items():
        lines += ["", f"{task}:", *(f"  {name:8}  {modules[name].SUMMARY}" for name in names)]
    parser = Parser(
        prog="medbn", usage="medbn [-h] [--version] COMMAND ...", description="\n".join(lines), epilog=EXAMPLES
    )
    parser.add_argument("--version", action="version", version=f"medbn {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog="medbn")
    for name, module in modules.items():
        sentence = f"{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}."
        command = commands.add_parser(name, help=module.SUMMARY, description=sentence)
        command.set_defaults(run=getattr(module, "run", None))
        module.configure(command)
    return parser


def run_program(program: str, run: Callable[[], int | None]) -> int:
    """Call ``run`` and return the exit code of the program; an error becomes one line on stderr and code 2."""
    try:
        try:
            return int(run() or 0)
        finally:
            sys.stdout.flush()  # a closed pipe shows here, and not when Python ends
    except KeyboardInterrupt:
        print(f"\n{program}: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has ended (``medbn ... | head``). Python would report it again while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("MEDBN_DEBUG"):
            raise
        text = one_line(error)
        if not isinstance(error, ValueError | OSError | ImportError | RuntimeError | TypeError):
            text = f"{type(error).__name__}: {text} (MEDBN_DEBUG=1 shows the traceback)"
        print(f"{program}: {text}", file=sys.stderr)
        return 2


def _complete(parser: Parser) -> None:
    """Print completions and exit if a shell asks for them (``register-python-argcomplete medbn`` activates it)."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(parser)
