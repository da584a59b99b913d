"""Shared parts of the parsers: suggestions, examples, and common options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NoReturn

_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$")


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest similar words."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message; exit with 2."""
        match = _CHOICE.search(message)
        if match is not None:
            message += suggestion(match["given"], re.findall(r"[\w.-]+", match["known"]))
        super().error(message)

    def refuse(self, words: Iterable[str]) -> NoReturn:
        """Exit like `error` for unrecognised words."""
        options = re.findall(r"--[\w-]+", self.format_usage())
        hints = (word + suggestion(word.partition("=")[0], options) for word in words)
        self.error(f"unrecognized arguments: {', '.join(hints)}")


def suggestion(word: str, words: Iterable[str]) -> str:
    """Return a suggestion of the most similar word in parentheses, or an empty string."""
    near = get_close_matches(word, list(words), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def add_command(commands: Any, name: str, run: str, help: str, *examples: str) -> Parser:
    """Add a command.

    Args:
        commands: the result of `add_subparsers`.
        name: the name of the command.
        run: `module:function`, which takes the parsed arguments and returns the exit status.
        help: a one-line description.
        examples: shell lines for the end of the command's help, which must run unchanged.
    """
    text = "\n".join(("examples:", *(f"  {line}" for line in examples))) if examples else None
    parser: Parser = commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        epilog=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_json(parser: Parser) -> None:
    """Add the option `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_options(parser: Parser) -> None:
    """Add the option `--option` for options of `torch.compile`."""
    argument = parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of torch.compile (`gyrator options` lists them); may be repeated",
    )
    complete(argument, _option_names)


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of integers of at least `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
        return int(text)

    return parse


def add_seed(parser: Parser) -> None:
    """Add the option `--seed` to a command."""
    parser.add_argument("--seed", type=int, default=0, help="seed of the random arguments (0)")


def complete(action: argparse.Action, words: Any) -> None:
    """Set a function that returns the completions of an argument."""
    vars(action)["completer"] = lambda **_: words()


def _option_names() -> list[str]:
    from gyrator.options import list_options

    return [f"{name}=" for name in list_options()]


class PrintVersion(argparse.Action):
    """Prints the version, which is slow to look up, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print and exit."""
        from importlib.metadata import version

        parser.exit(message=f"gyrator {version('gyrator')}\n")
