"""`gyrator explain` and `gyrator report`: describe how a user's function was compiled."""

import argparse
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gyrator.cli.usage import suggestion
from gyrator.options import options_of_text
from gyrator_ir.diagnostics import GyratorError

_RETURNS = "return the function or module to compile, or a tuple of it and its arguments"


class SubjectError(GyratorError):
    """There is no function of that name to compile."""


def run_explain(args: argparse.Namespace) -> int:
    """Print the explanation of the function."""
    explanation = _explained(args, 0)
    if args.json:
        print(json.dumps(explanation.to_dict(), indent=1))
    else:
        print(explanation, end="")
    return 0


def run_report(args: argparse.Namespace) -> int:
    """Write the report of the function."""
    if not args.output.parent.is_dir():  # known before anything is compiled and timed
        args.parser.error(f"argument -o: there is no folder {args.output.parent}")
    print(_explained(args, args.runs).save(args.output))
    return 0


def _explained(args: argparse.Namespace, runs: int) -> Any:
    fn, arguments = _subject(args.subject)
    from gyrator.reports.explain import explain  # imports torch

    return explain(fn, *arguments, options=options_of_text(args.option), runs=runs)


def _subject(text: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Call the named function; return the function to compile and its arguments."""
    source, colon, name = text.rpartition(":")
    if not colon:
        raise _no_subject(
            f"{text!r} is not a function", "use `module:function` or `file.py:function`"
        )
    module = _module(source)
    make = getattr(module, name, None)
    if not callable(make):
        names = (n for n, v in vars(module).items() if callable(v))
        raise _no_subject(f"{source} has no function {name!r}{suggestion(name, names)}", "")
    _check_call(make, (), f"{text} is called without arguments")
    result = make()
    fn, *arguments = result if isinstance(result, tuple) else (result,)
    if not callable(fn):
        raise _no_subject(f"{text} returned {fn!r}", _RETURNS)
    _check_call(fn, arguments, f"{text} returned {len(arguments)} arguments")
    return fn, tuple(arguments)


def _check_call(fn: Callable[..., Any], arguments: Sequence[Any], what: str) -> None:
    """Raise for arguments with which the function cannot be called."""
    import torch

    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise _no_subject(f"{what}: {error}", _RETURNS) from None


def _module(source: str) -> ModuleType:
    if not source.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise _no_subject(str(error), "") from error
    path = Path(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise _no_subject(f"there is no file {source}", "")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))  # as `python file.py` does
    spec.loader.exec_module(module)
    return module


def _no_subject(message: str, help: str) -> SubjectError:
    return SubjectError.of("GY-OPT-005", message, help=help)
