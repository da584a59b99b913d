"""Shared parts of the parsers: suggestions, examples, and common options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
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

    def check(self, args: argparse.Namespace) -> None:
        """Check the values of arguments that have a check, once all words have been parsed."""
        for action in self._actions:
            checked, value = vars(action).get("checked"), getattr(args, action.dest, None)
            if checked is None:
                continue
            try:
                new = [*map(checked, value)] if isinstance(value, list) else checked(value)
            except argparse.ArgumentTypeError as error:
                self.error(str(argparse.ArgumentError(action, str(error))))
            setattr(args, action.dest, new)

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
    check(argument, _option)


def _option(text: str) -> str:
    from gyrator.options import make_options, options_of_text

    make_options(options=options_of_text([text]))
    return text


def existing(text: str) -> Path:
    """Return the path of a file or folder that exists."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def text_file(text: str) -> str:
    """Return the path of a text that exists, or `-`."""
    return text if text == "-" else str(existing(text))


def named_file(text: str) -> str:
    """Return a path, or `NAME=FILE`, whose file exists."""
    existing(text.rpartition("=")[2])
    return text


def graph(text: str) -> Path:
    """Return the path of the text of a graph, given that or the folder of its trace."""
    path = existing(text)
    if not path.is_dir():
        return path
    graphs = [path / "fx.gy", *sorted(path.glob("*/fx.gy"))]
    if not graphs[0].exists():
        hint = f"; did you mean {graphs[1].parent}?" if len(graphs) > 1 else ""
        raise argparse.ArgumentTypeError(f"the folder {text} has no graph fx.gy{hint}")
    return graphs[0]


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


def check(action: argparse.Action, checked: Callable[[str], Any]) -> None:
    """Set a function that returns an argument's value or raises, before its command is imported.

    A type would do so before other words are parsed, and while a shell completes the line.
    """
    vars(action)["checked"] = checked


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
