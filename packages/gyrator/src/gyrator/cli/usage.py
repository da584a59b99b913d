"""What every command's parser has: suggestions, examples, and options that commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NoReturn

_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$")


class Parser(argparse.ArgumentParser):
    """A parser whose errors say which word may have been meant."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message; exit with 2."""
        found = _CHOICE.search(message)
        if found is not None:
            message += meant(found["given"], re.findall(r"[\w.-]+", found["known"]))
        super().error(message)

    def refuse(self, words: Iterable[str]) -> NoReturn:
        """Exit as `error` does, for words that stand for nothing."""
        options = re.findall(r"--[\w-]+", self.format_usage())
        said = (word + meant(word.partition("=")[0], options) for word in words)
        self.error(f"unrecognized arguments: {', '.join(said)}")


def meant(word: str, known: Iterable[str]) -> str:
    """Return which word was probably meant, in brackets; empty where none resembles it."""
    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def add_command(commands: Any, name: str, run: str, help: str, *examples: str) -> Parser:
    """Add a command.

    Args:
        commands: what `add_subparsers` returned.
        name: of the command.
        run: `module:function`, which takes the parsed arguments and returns the exit status.
        help: one line.
        examples: lines of a shell, for the end of the command's help; they run as they stand.
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
    """Let a command print data."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_options(parser: Parser) -> None:
    """Let a command take options of `torch.compile`."""
    given = parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of torch.compile (`gyrator options` lists them); may be repeated",
    )
    complete(given, _option_names)


def add_seed(parser: Parser) -> None:
    """Let a command draw other arguments."""
    parser.add_argument("--seed", type=int, default=0, help="of the random arguments (0)")


def complete(action: argparse.Action, words: Any) -> None:
    """Offer words for an argument when a shell completes it: a function that returns them."""
    vars(action)["completer"] = lambda **_: words()


def _option_names() -> list[str]:
    from gyrator.options import list_options

    return [f"{name}=" for name in list_options()]


class PrintVersion(argparse.Action):
    """Prints the version, which takes a while to look up, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print and exit."""
        from importlib.metadata import version

        parser.exit(message=f"gyrator {version('gyrator')}\n")
