"""`gyrator explain` and `gyrator report`: what became of a function of the user's."""

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gyrator.cli.usage import meant
from gyrator.options import options_of_text
from gyrator_ir.diagnostics import GyratorError


class SubjectError(GyratorError):
    """There is nothing of that name to compile."""


def run_explain(args: argparse.Namespace) -> int:
    """Print what became of the function."""
    found = _explained(args, 0)
    if args.json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        print(found, end="")
    return 0


def run_report(args: argparse.Namespace) -> int:
    """Write the report."""
    print(_explained(args, args.runs).save(args.output))
    return 0


def _explained(args: argparse.Namespace, runs: int) -> Any:
    from gyrator.reports.explain import explain

    fn, given = _subject(args.subject)
    return explain(fn, *given, options=options_of_text(args.option), runs=runs)


def _subject(text: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what a name's function makes: a function, and its arguments."""
    where, colon, name = text.rpartition(":")
    if not colon:
        raise _nothing(
            f"{text!r} names no function", "give `module:function` or `file.py:function`"
        )
    module = _module(where)
    make = getattr(module, name, None)
    if not callable(make):
        known = (n for n, v in vars(module).items() if callable(v))
        raise _nothing(f"{where} has no function {name!r}{meant(name, known)}", "")
    made = make()
    fn, *given = made if isinstance(made, tuple) else (made,)
    if not callable(fn):
        what = f"{text} returned a {type(fn).__name__}"
        raise _nothing(what, "return what to compile, or a tuple of it and its arguments")
    return fn, tuple(given)


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise _nothing(str(error), "") from error
    path = Path(where)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise _nothing(f"there is no file {where}", "")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _nothing(message: str, help: str) -> SubjectError:
    return SubjectError.of("GY-OPT-005", message, help=help)
