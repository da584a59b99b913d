"""Host programs that every host language must run, and checks that must fail identically in
each."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from attrs import frozen

from gyrator_testing.interp.dtypes import Array

HEAD = "host.program 1 @main\n  parameter x tensor\n  do\n"
"""The first lines of a program with one argument, float32[4, 3]."""
X: Array = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
LIBRARY: Mapping[str, str] = MappingProxyType(
    {
        "add_one_": "add_one_(Tensor(a!) x) -> ()",
        "two": "two(Tensor x) -> (Tensor, Tensor)",
        "two.out": "two.out(Tensor x, *, Tensor(a!) a, Tensor(b!) b) -> (Tensor(a!), Tensor(b!))",
    }
)
"""Schemas of the ops that these programs call in the namespace `hosttest`: one adds 1 to its
argument in place, the other gives `x + 1` and `x * 2`."""


@frozen
class Failing:
    """Lines of a program that raise, given negative numbers."""

    lines: str
    error: type[BaseException]
    message: str
    """A part of the error message."""
    interpreted: bool = True
    """Whether the interpreter raises the error too: it detects NaN only in real numbers."""


CHECKS: Mapping[str, Failing] = MappingProxyType(
    {
        "size": Failing(
            "    conform x to f32[4, 4] strides [4, 1] on cpu mend nothing\n", AssertionError, "x"
        ),
        "stride": Failing(
            "    conform x to f32[4, 3] strides [4, 1] on cpu mend nothing\n", AssertionError, "x"
        ),
        "rank": Failing(
            "    conform x to f32[12] strides [1] on cpu mend nothing\n", AssertionError, ""
        ),
        "sizes of a result": Failing(
            "    extern aten.clone.default (x) -> (y)\n"
            '    conform y to f32[3, 4] strides [4, 1] on cpu from "aten.clone.default"\n',
            AssertionError,
            "aten.clone.default",
        ),
        "strides of an input": Failing(
            "    conform x to f32[4, 3] strides [1, 4] on cpu mend pending\n", AssertionError, "x"
        ),
        "element type of an input": Failing(
            "    conform x to f64[4, 3] strides [3, 1] on cpu mend nothing\n", AssertionError, "x"
        ),
        "scalar": Failing(
            '    s0 = dim x 0\n    assert (s0 < 4) "too long"\n', RuntimeError, "too long"
        ),
        "index": Failing(
            '    s0 = dim x 0\n    assert (s0 < 4) "outside" raises IndexError\n',
            IndexError,
            "outside",
        ),
        "division": Failing(
            '    s0 = dim x 0\n    s1 = expr 8 // (s0 - 4)\n    assert (s1 < 9) "small"\n',
            ZeroDivisionError,
            "",
        ),
        "nan": Failing(
            "    v = view x as f32[1] strides [1] offset 5\n    extern aten.log_.default (v)\n"
            '    assert_finite x from "k0"\n',
            AssertionError,
            "GY-RUNTIME-003: buffer k0 holds 1 NaN and 0 infinite of 12 elements",
        ),
        "complex infinity": Failing(
            "    extern aten.complex.default (x, x) -> (c)\n    extern aten.fill_.Scalar (c, inf)\n"
            '    assert_finite c from "k1"\n',
            AssertionError,
            "GY-RUNTIME-003: buffer k1 holds 0 NaN and 12 infinite of 12 elements",
            interpreted=False,
        ),
        "in a body": Failing(
            '    with_device cpu\n      profile "p"\n'
            "        conform x to f32[4] strides [1] on cpu mend nothing\n",
            AssertionError,
            "",
        ),
        "an op": Failing(
            "    extern aten.mm.default (x, x) -> (y)\n    copy y -> x\n",
            RuntimeError,
            "cannot be multiplied",
        ),
        "an op called through Python": Failing(
            '    extern aten.gelu.default (x) with {approximate="no"} -> (y)\n    copy y -> x\n',
            RuntimeError,
            "approximate",
        ),
    }
)
"""Checks, by what they test."""

REFUSED_ELSEWHERE: Mapping[str, tuple[str, Array]] = MappingProxyType({
    "checks of what calls and branches give": (
        """    s0 = dim x 0
    extern aten.linalg_qr.default (x) -> (q, r)
    assert_finite q
    assert_finite r
    branch (s0 < 9) then (q) else (r) -> (c)
      then
      else
    assert_finite c
    return c, r
""",
        X,
    ),
    "sizes that data decides, as arguments of calls": (
        """    extern aten.nonzero.default (x) -> (found)
    u0 = dim found 0
    assert (0 < u0 and u0 < 13) "some"
    a = allocate f32[u0, 2] strides [2, 1] on cpu
    extern aten.full.default ([(u0), 2], 2.0) with {dtype=<dtype float32>} -> (f)
    copy f -> a
    v = view a as f32[u0] strides [2] offset 1
    return found, (u0), v
""",
        (X > 0).astype(np.float32),
    ),
    "selection and slice at an index that is data": (
        """    s0 = dim x 0
    s1 = dim x 1
    extern aten.argmin.default (x) -> (i)
    u0 = read i
    u1 = expr u0 // s1
    v = view x as f32[s1] strides [1] offset s1*u1
    start = view x as f32[max(s0 - u1, 0), s1] strides [s1, 1] offset s1*u1
    return v, start, (u1)
""",
        X,
    ),
    "a loop in a branch in a loop": (
        """    s0 = dim x 0
    extern aten.argmin.default (x) -> (any)
    extern aten.mul.Scalar (any, 0) -> (k)
    loop (i, v) from (k, x) while t next (j, w) -> (last, value)
      condition
        extern aten.lt.Scalar (i, (s0)) -> (t)
      body
        extern aten.add.Scalar (i, 1) -> (j)
        extern aten.lt.Scalar (i, 2) -> (early)
        branch early then (y) else (v) -> (w)
          then
            loop (m, z) from (i, v) while less next (m1, z1) -> (m2, y)
              condition
                extern aten.lt.Scalar (m, (s0 - 1)) -> (less)
              body
                extern aten.add.Scalar (m, 1) -> (m1)
                extern aten.mul.Tensor (z, x) -> (z1)
          else
    return last, value
""",
        X,
    ),
    "a loop of steps in a loop of steps that sizes count": (
        """    s0 = dim x 0
    s1 = dim x 1
    y = allocate f32[s0, s1] strides [s1, 1] on cpu
    extern aten.mul.Scalar (x, 0) -> (z)
    repeat s2 below s0 carry (v) from (z) next (w) -> (last)
      row = view x as f32[s1] strides [1] offset s1*s2
      repeat s3 below (s1 - 1) carry (a) from (v) next (b) -> (w)
        extern aten.add.Tensor (a, row) with {alpha=(s3)} -> (b)
      place = view y as f32[s1] strides [1] offset s1*s2
      part = view w as f32[s1] strides [1] offset 0
      copy part -> place
    repeat s4 below (s0 - 4) carry (n) from (x) next (m) -> (never)
      extern aten.neg.default (n) -> (m)
    repeat s5 below 2 carry () from () next () -> ()
      extern aten.add_.Scalar (y, (s5))
    return last, y, never
""",
        X,
    ),
    "loops that stack what they carry": (
        """    extern aten.argmin.default (x) -> (any)
    extern aten.mul.Scalar (any, 0) -> (k)
    loop (i, v) from (k, x) while t next (j, w) stacked -> (counts, values)
      condition
        extern aten.lt.Scalar (i, 3) -> (t)
      body
        extern aten.add.Scalar (i, 1) -> (j)
        extern aten.mul.Tensor (v, x) -> (w)
    loop (i1) from (k) while t1 next (j1) stacked -> (one)
      condition
        extern aten.lt.Scalar (i1, 0) -> (t1)
      body
        extern aten.add.Scalar (i1, 1) -> (j1)
    return counts, values, one
""",
        X,
    ),
    "calls that return nothing and change an argument": (
        """    extern aten.bernoulli_.float (x, 1.0)
    v = view x as f32[2] strides [1] offset 2
    extern aten.fill_.Scalar (v, inf)
    extern hosttest.add_one_.default (v)
    return x
""",
        X,
    ),
    "results that are not what ops promise": (
        """    s0 = dim x 0
    extern aten.t.default (x) -> (t)
    separate (t) from (x)
    conform t to f64[3, s0] strides [s0, 1] on cpu from "aten.t.default"
    extern aten.expand_copy.default (x, [2, 4, 3]) -> (e)
    conform e to f32[2, 4, 3] strides [0, 3, 1] on cpu from "aten.expand_copy.default"
    extern aten.detach.default (x) -> (d)
    separate (d) from (t, e)
    conform d to f32[s0, 3] strides [3, 1] on cpu from "aten.detach.default"
    extern aten.fill_.Scalar (x, 7.0)
    return t, e, d, x
""",
        X,
    ),
    "several outputs through out=": (
        """    a = allocate f32[4, 3] strides [3, 1] on cpu
    b = allocate f32[4, 3] strides [1, 4] on cpu
    extern hosttest.two.default (x) -> (a, b) out hosttest.two.out names (a, b)
    return a, b
""",
        X,
    ),
    "pools": (
        """    pool = pool 128 on cpu
    a = place pool at 32 as f32[4, 3] strides [3, 1]
    copy x -> a
    return a
""",
        X,
    ),
    "results that alias inputs and each other": (
        """    v = view x as f32[3] strides [1] offset 3
    w = view v as f32[2] strides [1] offset 1
    return x, v, w, x
""",
        X,
    ),
    "device copies, guards and remarks": (
        """    note "a remark"
    y = allocate f32[4, 3] strides [3, 1] on cpu
    with_device cpu
      copy x -> y non_blocking
    return y
""",
        X,
    ),
})  # fmt: skip
"""Programs that other FX wrappers refuse, drop or miscompile: the lines after `HEAD`, and the
argument."""


def assert_same(name: str, actual: Sequence[Any], expected: Sequence[Any]) -> None:
    """Assert that results are equal, in values, types and nesting; tensors are given as arrays."""
    assert len(actual) == len(expected), name
    for a, b in zip(actual, expected, strict=True):
        if isinstance(b, list):
            assert isinstance(a, list), name
            assert_same(name, a, b)
        elif isinstance(b, np.ndarray):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), name
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            assert a == b, name
