"""Integer expressions for indices and sizes: small, interned, canonical.

>>> from gyrator_ir.expr import Sym, to_text
>>> i0, i1 = Sym("i0"), Sym("i1")
>>> to_text((6 * i0 + i1) // 3)
'2*i0 + i1 // 3'
>>> 64 * ((i0 // 64) % 8) + i0 % 64 + 512 * (i0 // 512) is i0
True
"""

from gyrator_ir.expr.build import absolute, add, maximum, minimum, mul, product_of, sum_of, where
from gyrator_ir.expr.compile import compile_python
from gyrator_ir.expr.conditions import (
    all_of,
    any_of,
    both,
    either,
    eq,
    ge,
    gt,
    le,
    lt,
    ne,
    negate,
    relation,
)
from gyrator_ir.expr.division import ceildiv, exact_quotient, floordiv, mod
from gyrator_ir.expr.facts import ShapeFacts
from gyrator_ir.expr.facts_text import facts_to_text, parse_facts
from gyrator_ir.expr.nodes import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Add,
    And,
    Bool,
    Cond,
    Const,
    Eq,
    Expr,
    ExprError,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Node,
    Or,
    Sym,
    SymKind,
    Where,
    bind,
    expr,
)
from gyrator_ir.expr.parse import parse_cond, parse_expr
from gyrator_ir.expr.printer import (
    CPrinter,
    Fragment,
    Prec,
    Printer,
    PythonPrinter,
    to_python,
    to_text,
)
from gyrator_ir.expr.prover import Range
from gyrator_ir.expr.strides import contiguous_strides
from gyrator_ir.expr.walk import (
    children,
    evaluate,
    holds,
    iter_nodes,
    linear,
    rebuild,
    sorted_symbols,
    stride_of,
    subs,
)

bind(add, mul, floordiv, mod, relation, to_text)

__all__ = [
    "FALSE", "ONE", "TRUE", "ZERO", "Add", "And", "Bool", "CPrinter", "Cond", "Const", "Eq",
    "Expr", "ExprError", "FloorDiv", "Fragment", "Le", "Lt", "Max", "Min", "Mod", "Mul", "Ne",
    "Node", "Or", "Prec", "Printer", "PythonPrinter", "Range", "ShapeFacts", "Sym", "SymKind",
    "Where", "absolute", "add", "all_of", "any_of", "both", "ceildiv", "children",
    "compile_python", "contiguous_strides", "either", "eq", "evaluate", "exact_quotient", "expr",
    "facts_to_text", "floordiv", "ge", "gt", "holds", "iter_nodes", "le", "linear", "lt",
    "maximum", "minimum", "mod", "mul", "ne", "negate", "parse_cond", "parse_expr", "parse_facts",
    "product_of", "rebuild", "relation", "sorted_symbols", "stride_of", "subs", "sum_of",
    "to_python", "to_text", "where",
]  # fmt: skip
