"""Attribution of errors to code that is not Gyrator's: users' passes, patterns and rules."""

import re
from types import TracebackType
from typing import Any

_GYRATORS = re.compile(r"gyrator(_(ir|lowering|scheduler|codegen|wrapper|runtime)(_[a-z]+)?)?")
"""Names of Gyrator's packages; `gyrator_mydev` is a vendor's."""


def is_ours(code: Any) -> bool:
    """Return whether a function, class or partial application is part of Gyrator."""
    return _GYRATORS.fullmatch(_package(_module(code))) is not None


def blamed(error: Exception, code: Any) -> str:
    """Return what a function raised and where: the innermost line of its package."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = _line(error.__traceback__, _package(_module(code))) or defined_at(code)
    return f"{what}, at {place}" if place else what


def defined_at(code: Any) -> str:
    """Return the line that defines a function; empty if it was not written in Python."""
    function = getattr(_function(code), "__code__", None)
    if function is None:
        return ""
    return f"{function.co_filename}:{function.co_firstlineno} in {function.co_name}"


def _line(step: TracebackType | None, package: str) -> str:
    line = ""
    while step is not None:
        if _package(str(step.tb_frame.f_globals.get("__name__"))) == package:
            code = step.tb_frame.f_code
            line = f"{code.co_filename}:{step.tb_lineno} in {code.co_name}"
        step = step.tb_next
    return line


def _function(code: Any) -> Any:
    while hasattr(code, "func"):  # a partial application
        code = code.func
    return code


def _module(code: Any) -> str:
    return str(getattr(_function(code), "__module__", ""))


def _package(module: str) -> str:
    return module.partition(".")[0]
