"""Integer expressions for indices and sizes: small, interned, canonical.

    >>> from gyrator_ir.expr import Sym, to_text
    >>> i0, i1 = Sym("i0"), Sym("i1")
    >>> to_text((6 * i0 + i1) // 3)
    '2*i0 + i1 // 3'
    >>> 64 * ((i0 // 64) % 8) + i0 % 64 + 512 * (i0 // 512) is i0
    True
"""

from gyrator_ir.expr.build import (
    absolute,
    add,
    maximum,
    minimum,
    mul,
    product_of,
    sum_of,
    where,
)
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
from gyrator_ir.expr.walk import (
    children,
    degree,
    evaluate,
    holds,
    is_affine,
    iter_nodes,
    linear,
    rebuild,
    sorted_symbols,
    stride_of,
    subs,
)

bind(add, mul, floordiv, mod, relation, to_text)
