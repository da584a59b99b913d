"""How many programs a kernel has: its text's grid function, as programs over its sizes."""

import ast
from functools import reduce
from typing import Any

from gyrator_ir.diagnostics import Diagnostic
from gyrator_runtime.build import BuildError
from gyrator_runtime.record.values import Size, code_of
from gyrator_runtime.triton.binary import Expression
from gyrator_runtime.triton.compile import BLOCKS


def grid_of(text: str, symbol: str, sizes: int, values: dict[str, int]) -> tuple[Expression, ...]:
    """Run `<symbol>_grid` of a kernel's text on numbers that note what is done to them.

    Args:
        sizes: how many there are.
        values: of the configuration, of which the function takes the blocks.

    Raises:
        BuildError: GY-BUILD-002 where the function does something to a size that plans can't.
    """
    name = f"{symbol}_grid"
    tree = ast.parse(text)
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    namespace: dict[str, Any] = {"min": _minimum, "max": _maximum}
    try:
        exec(compile(tree, f"<grid of {symbol}>", "exec"), namespace)
        function = namespace[name]
        wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
        numbers = [Size((("arg", k),)) for k in range(sizes)]
        blocks = [values[n] for n in wanted if n in BLOCKS]
        return tuple(tuple(code_of(n)) for n in function(*numbers, *blocks))
    except (TypeError, AttributeError, NameError, KeyError) as error:
        said = f"the grid of kernel {symbol} is not a formula of its sizes: {error}"
        raise BuildError(Diagnostic("GY-BUILD-002", said, help="report it as a bug")) from error


def _minimum(*sizes: Size | int) -> Size | int:
    return reduce(lambda a, b: Size((*code_of(a), *code_of(b), ("min", 0))), sizes)


def _maximum(*sizes: Size | int) -> Size | int:
    return reduce(lambda a, b: Size((*code_of(a), *code_of(b), ("max", 0))), sizes)
