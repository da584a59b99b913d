"""Which axes own the addresses that a kernel combines into."""

from itertools import product

import numpy as np

from gyrator_codegen.passes.cores.accesses.own_writes import owners
from gyrator_ir.body.nodes import Bind, Load, Store, StoreMode
from gyrator_ir.expr import ShapeFacts, Sym, evaluate, expr
from gyrator_testing.kernels.write import I0, I1, I64, S0, S1, kernel, outer

T0 = Sym("t0")


def scattered(m, n, address):
    """Add x[i0, i1] to z at an address made of t0 = at[i0, i1]."""
    at = expr(n) * I0 + I1
    body = (
        Load("a", "at", at), Bind(T0, "a", expr(5)), Load("b", "x", at),
        Store("z", address, "b", StoreMode.ADD),
    )  # fmt: skip
    return kernel("k", [(I0, m), (I1, n)], [], [outer(*body)], {"at": I64})


def owned(address, facts=None, **extents):
    k = scattered(extents.get("m", 4), extents.get("n", 6), address)
    ranges = {I0: expr(extents.get("m", 4)), I1: expr(extents.get("n", 6)), T0: expr(5)}
    return {a.symbol.name for a in owners(k, (facts or ShapeFacts()).with_ranges(ranges))}


def test_axes_that_an_address_tells():
    assert owned(6 * T0 + I1) == {"i1"}
    assert owned(5 * I0 + T0) == {"i0"}
    assert owned(30 * I0 + 6 * T0 + I1) == {"i0", "i1"}
    assert owned(5 * I0 + T0, m=S0) == {"i0"}
    assert owned(-5 * I0 + 7 - T0) == {"i0"}
    assert owned(2 * (I1 // 2) + 8 * I0) == {"i0"}


def test_axes_that_an_address_does_not_tell():
    assert owned(T0) == set()
    assert owned(5 * T0 + I1) == set()  # one too few for six values
    assert owned(4 * I0 + T0) == set()
    assert owned(I0 + I1) == set()
    assert owned(6 * T0 + I1, n=S1) == set()
    assert owned(S1 * T0 + I1, n=S1) == set()
    assert owned(I0 * I1 + 100 * I0) == set()


def test_owners_never_share_an_address():
    """Against all addresses of small kernels."""
    rng = np.random.default_rng(0)
    count = 0
    for _ in range(300):
        factors = rng.choice([-6, -1, 0, 1, 2, 3, 5, 6, 12, 24, 30], 4)
        m, n = rng.integers(1, 7, 2)
        e = expr(0)
        for f, part in zip(factors, (I0, I1, T0, (I1 + 2 * T0) // 3), strict=True):
            e = e + int(f) * part
        met = {"i0": {}, "i1": {}}
        for a, b, t in product(range(m), range(n), range(5)):
            at = evaluate(e, {I0: a, I1: b, T0: t})
            met["i0"].setdefault(at, set()).add(a)
            met["i1"].setdefault(at, set()).add(b)
        for name in owned(e, m=int(m), n=int(n)):
            count += 1
            assert all(len(values) == 1 for values in met[name].values()), (e, name)
    assert count > 50
