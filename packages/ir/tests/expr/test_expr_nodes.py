"""Identity, immutability, order and the rules of the normal form."""

import copy
import gc
import pickle
import subprocess
import sys
import threading

import pytest

from gyrator_ir.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Add,
    Const,
    CPrinter,
    Eq,
    Expr,
    ExprError,
    FloorDiv,
    Lt,
    Mod,
    Mul,
    Ne,
    Sym,
    SymKind,
    absolute,
    all_of,
    any_of,
    both,
    ceildiv,
    children,
    compile_python,
    either,
    evaluate,
    exact_quotient,
    expr,
    holds,
    iter_nodes,
    linear,
    maximum,
    minimum,
    negate,
    parse_cond,
    parse_expr,
    sorted_symbols,
    stride_of,
    subs,
    sum_of,
    to_python,
    to_text,
    where,
)
from gyrator_ir.expr.intern import _TABLE

s0, s1, u0, i0, i1, i2, r0, t0 = map(Sym, ("s0", "s1", "u0", "i0", "i1", "i2", "r0", "t0"))


def code_of(action):
    with pytest.raises(ExprError) as caught:
        action()
    return caught.value.diagnostic.code


# -- nodes ----------------------------------------------------------------------------------------


def test_equal_structure_is_one_object():
    assert Sym("i0") is i0
    assert Sym("i0", SymKind.ITER) is i0
    assert Const(10**20) is Const(10**20)
    assert i0 * 128 + i1 is i1 + i0 * 128
    assert i0 == Sym("i0")
    assert i0 != "i0"
    assert len({i0 + 1, 1 + i0}) == 1


def test_an_expression_is_not_an_integer():
    assert Const(3) != 3
    assert expr(3) is Const(3)
    with pytest.raises(TypeError):
        expr(True)
    with pytest.raises(TypeError):
        Const(1.0)
    with pytest.raises(TypeError):
        _ = i0 + 1.5


def test_nodes_cannot_be_changed():
    with pytest.raises(AttributeError):
        i0.name = "i1"
    with pytest.raises(AttributeError):
        del i0.name
    with pytest.raises(AttributeError):
        i0.anything = 1


@pytest.mark.parametrize("cls", [Add, Mul, FloorDiv, Mod, Eq, Expr])
def test_composite_nodes_have_no_public_constructor(cls):
    with pytest.raises(TypeError, match="are created by"):
        cls(i0, i1)


def test_nodes_are_not_pickled_and_are_their_own_copies():
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(i0 + 1)
    assert copy.deepcopy([i0 + 1])[0] is i0 + 1
    assert copy.copy(i0 + 1) is i0 + 1


def test_a_condition_or_expression_has_no_truth_value():
    with pytest.raises(TypeError, match="truth value"):
        bool(i0.lt(s0))
    with pytest.raises(TypeError, match="truth value"):
        bool(i0)


@pytest.mark.parametrize("name", ["x0", "", "iter", "i-1", "int", "true", "i0 ", "ï0", 3])
def test_names_of_symbols_are_checked(name):
    assert code_of(lambda: Sym(name)) == "GY-EXPR-001"


def test_kind_comes_from_the_first_letter():
    kinds = [sym.kind for sym in (s0, u0, i0, r0, t0)]

    assert kinds == [SymKind.SIZE, SymKind.UNBACKED, SymKind.ITER, SymKind.REDUCE, SymKind.INDIRECT]
    assert code_of(lambda: Sym("i0", SymKind.SIZE)) == "GY-EXPR-001"


def test_the_table_holds_nodes_weakly():
    before = len(_TABLE)
    names = [Sym(f"t_weak_{n}") for n in range(1000)]

    assert len(_TABLE) >= before + 1000
    del names
    gc.collect()
    assert len(_TABLE) < before + 1000


def test_threads_agree_on_one_object_each():
    results = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def work(nodes):
        start.wait()
        for n in range(200):
            a, b = Sym(f"i{n}_th"), Sym(f"s{n}_th")
            nodes.append((a * b + n + a // 7 + a % (n + 2)) * (b + 1))
            if n % 25 == 0:
                gc.collect(0)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(own,)) for own in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)

    assert [len(own) for own in results] == [200] * 8
    for same in zip(*results, strict=True):
        assert len(set(map(id, same))) == 1


def test_order_does_not_depend_on_addresses_or_history():
    script = """
import random, sys
from gyrator_ir.expr import Sym, to_text, where, minimum
random.seed(int(sys.argv[1]))
names = [f"{k}{n}" for k in "suirt" for n in range(12)]
random.shuffle(names)
syms = {name: Sym(name) for name in names}
total = sum((syms[n] * syms["s0"] + syms[n] // 3 for n in names), start=syms["s1"] * 0)
print(to_text(total), to_text(minimum(*(syms[n] for n in names))))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, seed],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(outputs) == 1
    assert next(iter(outputs)).strip()


# -- normal form ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("i0 // 1", "i0"),
        ("i0 % 1", "0"),
        ("(6*i0 + i1) // 3", "2*i0 + i1 // 3"),
        ("(6*i0 + i1) % 3", "i1 % 3"),
        ("(6*i0 + 4) // 8", "(3*i0 + 2) // 4"),
        ("(6*i0 + 5) // 8", "(3*i0 + 2) // 4"),
        ("(i0 // 4) // 8", "i0 // 32"),
        ("(i0 // s0) // 8", "i0 // (8*s0)"),
        ("(i0 // 4 + 3) // 8", "(i0 + 12) // 32"),
        ("(i0 % 32) // 8", "(i0 // 8) % 4"),
        ("(i0 % 32) % 8", "i0 % 8"),
        ("(i0 % 8 + i1) % 4", "(i0 + i1) % 4"),
        ("(i0 % 8) % 32", "i0 % 8"),
        ("(i0 % 8) // 9", "0"),
        ("(4*(i0 % 2) + i1 % 4) // 8", "0"),
        ("i0 // -4", "-((i0 + 3) // 4)"),
        ("(-i0) % 8", "-((i0 + 7) % 8) + 7"),
        ("7 - (7 - i0) // 2", "i0 // 2 + 4"),
        ("ceildiv(i0, 4)", "(i0 + 3) // 4"),
        ("(s0 - 1) // 2 + 1", "(s0 + 1) // 2"),
        ("(s0*i0 + i1) // s0", "i0 + i1 // s0"),
        ("(s0*i0 + i1) % s0", "i1 % s0"),
        ("(s0*i0) // (4*s0)", "i0 // 4"),
        ("(s0*i0) % (4*s0)", "s0*(i0 % 4)"),
        ("((s0 + 1)*i0 + i1) // (s0 + 1)", "i0 + i1 // (s0 + 1)"),
        ("(s0**2 - 1) // (s0 + 1)", "s0 - 1"),
        ("s0 // (s0 + 1)", "s0 // (s0 + 1)"),
        ("s0 // s0", "1"),
        ("0 // s0", "0"),
        ("(i0 + 1)*(i0 - 1)", "i0**2 - 1"),
        ("4*(i0 // 4) + i0 % 4", "i0"),
        ("s1*4*(i0 // 4) + s1*(i0 % 4)", "s1*i0"),
        ("3*s0*(i0 // s0) + 3*(i0 % s0)", "3*i0"),
        ("64*((i0 // 64) % 8) + i0 % 64 + 512*(i0 // 512)", "i0"),
        ("64*((i0 // 64) % 8) + i0 % 64", "i0 % 512"),
        ("i0 - 4*(i0 // 4)", "i0 % 4"),
        ("i0 - i0 % 4", "4*(i0 // 4)"),
        ("min(i0, i0 + 3)", "i0"),
        ("max(i0, i0 + 3, 2, 5)", "max(i0 + 3, 5)"),
        ("min(min(i0, i1), i2)", "min(i0, i1, i2)"),
        ("abs(-3)", "3"),
        ("where(true, i0, i1)", "i0"),
        ("where(i0 < s0, i1, i1)", "i1"),
        ("where(i0 != s0, i1, i2)", "where(s0 == i0, i2, i1)"),
        ("s0*(2*i0 + 3) - 2*s0*i0", "3*s0"),
    ],
)
def test_normal_form(text, normal):
    assert to_text(parse_expr(text)) == normal


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("i0 > 3", "4 <= i0"),
        ("i0 >= 0", "0 <= i0"),
        ("i0 > 0", "0 < i0"),
        ("i0 <= 4", "i0 < 5"),
        ("i0 <= s0 - 1", "i0 < s0"),
        ("2*i0 < 7", "i0 < 4"),
        ("2*i0 == 7", "false"),
        ("6*i0 == 4*i1", "3*i0 == 2*i1"),
        ("i0 - i0 == 0", "true"),
        ("not i0 < s0", "s0 <= i0"),
        ("not (i0 < s0 and i1 == 3)", "i1 != 3 or s0 <= i0"),
        ("0 <= i0 < s0", "i0 < s0 and 0 <= i0"),
        ("i0 < s0 and s0 <= i0", "false"),
        ("i0 < s0 or s0 <= i0", "true"),
        ("true and i0 < s0", "i0 < s0"),
        ("i0 != i1", "i0 != i1"),
    ],
)
def test_normal_form_of_conditions(text, normal):
    assert to_text(parse_cond(text)) == normal


def test_conditions_by_method_and_by_text_are_one_object():
    assert i0.lt(s0) is parse_cond("i0 < s0")
    assert i0.le(s0) is parse_cond("i0 <= s0")
    assert i0.gt(s0) is parse_cond("i0 > s0")
    assert i0.ge(s0) is parse_cond("i0 >= s0")
    assert i0.eq(3) is parse_cond("i0 == 3")
    assert i0.ne(3) is parse_cond("i0 != 3")
    assert isinstance(i0.lt(s0), Lt)
    assert isinstance(i0.ne(3), Ne)
    assert negate(negate(i0.lt(s0))) is i0.lt(s0)
    assert both(TRUE, i0.eq(3)) is i0.eq(3)
    assert either(FALSE, i0.eq(3)) is i0.eq(3)
    assert all_of(()) is TRUE
    assert any_of(()) is FALSE


def test_division_by_the_constant_zero_is_refused():
    assert code_of(lambda: i0 // 0) == "GY-EXPR-002"
    assert code_of(lambda: i0 % 0) == "GY-EXPR-002"
    assert code_of(lambda: i0 // (s0 - s0)) == "GY-EXPR-002"


def test_integers_may_stand_on_either_side():
    assert 3 + i0 is i0 + 3
    assert 3 - i0 is -i0 + 3
    assert 3 * i0 is i0 * 3
    assert evaluate(7 // i0, {i0: 2}) == 3
    assert evaluate(7 % i0, {i0: -4}) == -1
    assert i0**3 is i0 * i0 * i0
    assert sum_of([i0, 3, i0]) is 2 * i0 + 3
    assert absolute(i0) is maximum(i0, -i0)
    assert minimum(3, 4) is Const(3)


def test_merging_and_splitting_four_dimensions_is_the_identity():
    sizes = (5, 4, 3, 7)
    flat = Sym("i9")
    indices, rest = [], flat
    for size in reversed(sizes[1:]):
        indices.insert(0, rest % size)
        rest = rest // size
    indices.insert(0, rest)
    merged = ZERO
    for index, size in zip(indices, sizes, strict=True):
        merged = merged * size + index

    assert merged is flat


# -- utilities ------------------------------------------------------------------------------------


def test_substitution_is_simultaneous():
    assert subs(i0 + 2 * i1, {i0: i1, i1: i0}) is i1 + 2 * i0
    assert subs(i0.lt(s0), {s0: 4}) is i0.lt(4)
    assert subs(i0 + s0, {i1: 3}) is i0 + s0
    assert code_of(lambda: subs(i0 // s0, {s0: 0})) == "GY-EXPR-002"


def test_substitution_drops_the_branch_not_taken():
    guarded = where(s0.eq(0), 0, i0 // s0)

    assert subs(guarded, {s0: 0}) is ZERO
    assert subs(guarded, {s0: 2}) is i0 // 2


def test_shared_graphs_are_walked_once():
    total = i0
    for _ in range(200):
        total = maximum(total + 1, total // 2)

    assert evaluate(subs(total, {i0: 5}), {}) == 205
    assert sum(1 for _ in iter_nodes(total)) < 1000


def test_free_symbols_and_order():
    assert (s0 * i0 + where(i1.lt(u0), r0, 3)).free_symbols == {s0, i0, i1, u0, r0}
    assert sorted_symbols([i1 + Sym("i10"), s0 * Sym("i9")]) == (s0, i1, Sym("i9"), Sym("i10"))
    assert children(s0 * i0 + 3) == (s0 * i0,)
    assert not Const(3).free_symbols


def test_linear_parts():
    value = s0 * i0 + 4 * i1 + s1 + 3
    coefficients, rest = linear(value, (i0, i1, i2))

    assert coefficients == {i0: s0, i1: Const(4), i2: ZERO}
    assert rest is s1 + 3
    assert stride_of(value, i0) is s0
    assert stride_of(i0, i0) is ONE
    assert stride_of(i0 // 4, i0) is None
    assert stride_of(i0 * i1, i0) is i1
    assert linear(i0 * i1, (i0, i1)) is None
    assert stride_of(i0**2, i0) is None
    assert exact_quotient(6 * s0 * i0, 2 * s0) is 3 * i0
    assert exact_quotient(6 * s0 * i0 + 1, 2 * s0) is None


def test_evaluation_needs_every_symbol():
    assert evaluate(i0 // s0, {i0: -7, s0: 2}) == -4
    assert holds(i0.lt(s0), {i0: 1, s0: 2})
    assert code_of(lambda: evaluate(i0 + s0, {i0: 1})) == "GY-EXPR-003"
    assert code_of(lambda: holds(i0.lt(s0), {i0: 1})) == "GY-EXPR-003"
    assert code_of(lambda: compile_python([i0 + s0], [i0])) == "GY-EXPR-003"
    with pytest.raises(ZeroDivisionError):
        evaluate(i0 // s0, {i0: 1, s0: 0})


def test_compiled_functions_compute_shared_parts_only_where_it_is_safe():
    shared = maximum(i0, s0)
    guarded = where(s0.eq(0), shared, (i0 // s0) * 2 + (i0 // s0) % 5)

    assert compile_python([shared * 2, guarded, shared], [i0, s0])(7, 0) == (14, 7, 7)
    assert compile_python([], [])() == ()
    assert compile_python([ceildiv(s0, 4)], [s0])(9) == (3,)


def test_printers():
    value = where(i0.lt(s0), i0 // 4 - 3 * (i1 % s0), minimum(i0, 2))

    assert to_python(value) == "(i0 // 4 - 3*(i1 % s0) if i0 < s0 else min(i0, 2))"
    assert to_python(i0 + s0, {s0: "self.n"}) == "self.n + i0"
    assert to_python(i0 + s0, lambda sym: sym.name.upper()) == "S0 + I0"
    assert CPrinter()(value) == (
        "(i0 < s0 ? floor_div(i0, 4) - 3*floor_mod(i1, s0) : (i0 < 2 ? i0 : 2))"
    )
    assert CPrinter(lambda node: True, suffix="LL")(value) == (
        "(i0 < s0 ? i0 / 4LL - 3LL*(i1 % s0) : (i0 < 2LL ? i0 : 2LL))"
    )
    assert CPrinter()(s0**2 * i0) == "s0*s0*i0"
    assert CPrinter(lambda node: True)(i0 // s0**2) == "i0 / (s0*s0)"
    assert CPrinter()(both(i0.lt(s0), i1.eq(0))) == "i1 == 0 && i0 < s0"
