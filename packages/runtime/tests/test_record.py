"""Host programs as `gyrator_wrapper_python` writes them, recorded and run on both runners."""

from typing import Any

import pytest
import torch

from gyrator_runtime.record import HostRuntime, LoadedKernel, Recorded


def recorded(runner, kernels, text: str, **fields: Any) -> Recorded:
    """Run the text of a host program as the umbrella does."""
    loaded = {"k_axpy": LoadedKernel("k_axpy", kernels["gy_axpy"])}
    rt = HostRuntime(runner, loaded, fields.pop("constants", {}), **fields)
    scope: dict[str, Any] = {}
    exec(text, scope)
    result = scope["build"](rt)
    assert isinstance(result, Recorded)
    return result


def run(runner, kernels, text: str, *args: object, **fields: Any) -> Any:
    return recorded(runner, kernels, text, **fields).plan(list(args))


def test_memory_of_a_program(runner, kernels):
    text = """
def build(rt):
    p = rt.program('main', ('x', 's0', ))
    x, s0, = p.parameters
    n = p.integer(s0)
    p.conform(x, (n, ), (1, ), 'f32', 'cpu', 'nothing', 'x', '')
    pool = p.pool(8*n, 'cpu')
    a = p.from_pool(pool, 0, (n, ), (1, ), 'f32')
    b = p.from_pool(pool, 4*n, (n, ), (1, ), 'f32')
    p.extern('aten.zero_.default', (a, ), {})
    p.extern('aten.zero_.default', (b, ), {})
    p.launch('k_axpy', (x, a, ), (n, 2, ))
    p.launch('k_axpy', (a, b, ), (n, 3, ))
    c = p.reuse(b, (n // 2, 2, ), (2, 1, ), 'f32')
    y = p.view(c, (2, n // 2, ), (1, 2, ), 0, 'f32')
    p.free(x)
    p.free(a)
    p.free(pool)
    return p.finish((y, n, p.constant('k'), ))
"""
    x, k = torch.randn(6), torch.randn(2)
    y, n, constant = run(runner, kernels, text, x, 6, constants={"k": k})
    assert torch.equal(y, (3 * (2 * x)).reshape(3, 2).t())
    assert n == 6
    assert constant is k
    with pytest.raises(AssertionError):
        run(runner, kernels, text, torch.randn(5), 6, constants={"k": k})


def test_sizes_of_a_program(runner, kernels):
    text = """
def build(rt):
    p = rt.program('main', ('x', 'u', ))
    x, u, = p.parameters
    s0 = p.size_of(x, 0)
    s1 = p.stride_of(x, 0)
    u0 = p.read_scalar(u)
    p.assert_true(lambda u0: u0 < 9, (u0, ), 'too many')
    big = p.maximum(s0, u0, 4)
    least = p.minimum(s0, u0)
    chosen = p.select(lambda s0: s0 % 2 == 0, (s0, ), s0 // 2, -s0)
    return p.finish((s0, s1, big, least, chosen, p.integer(s0**2 - u0 % 3), ))
"""
    for rows, u in ((6, 4), (3, 8)):
        found = run(runner, kernels, text, torch.zeros(rows, 5), torch.tensor(u))
        chosen = rows // 2 if rows % 2 == 0 else -rows
        assert found == (rows, 5, max(rows, u, 4), min(rows, u), chosen, rows**2 - u % 3)
    with pytest.raises(RuntimeError, match="too many"):
        run(runner, kernels, text, torch.zeros(1), torch.tensor(9))


def test_branches_and_loops(runner, kernels):
    text = """
def build(rt):
    p = rt.program('main', ('x', 'flag', 'n', ))
    x, flag, n, = p.parameters
    s0 = p.integer(n)
    def then1(p1, x, s0):
        b = p1.extern('aten.neg.default', (x, ), {}, results=('tensor',))[0]
        return p1.finish((b, s0 + 1, ))
    def otherwise1(p1, x, s0):
        b = p1.extern('aten.abs.default', (x, ), {}, results=('tensor',))[0]
        return p1.finish((b, s0, ))
    (y, s1, ) = p.branch(flag, then1, otherwise1, (x, s0, ))
    def test1(p1, t, k, s0):
        return p1.finish((p1.select(lambda k, s0: k < s0, (k, s0, ), 1, 0), ))
    def body1(p1, t, k, s0):
        b = p1.extern('aten.add.Tensor', (t, t, ), {}, results=('tensor',))[0]
        return p1.finish((b, k + 1, ))
    (z, k, ) = p.loop(test1, body1, (y, s1, ), (s0 + 3, ))
    return p.finish((y, s1, z, k, ))
"""
    x = torch.randn(3)
    for flag in (True, False):
        y, s1, z, k = run(runner, kernels, text, x, flag, 2)
        assert torch.equal(y, -x if flag else x.abs())
        assert (s1, k) == (2 + flag, 5)
        assert torch.equal(z, y * 2 ** (5 - s1))


SUBPROGRAM = """
def build_sub(rt):
    p = rt.program('sub', ('x', 'n', ))
    x, n, = p.parameters
    b = p.allocate((4, ), (1, ), 'f32', 'cpu')
    p.copy(b, x, False)
    p.launch('k_axpy', (x, b, ), (4, p.integer(n), ))
    return p.finish((b, p.integer(n) * 2, ))


def build(rt):
    rt.subprogram('sub', build_sub, capture='{capture}')
    p = rt.program('main', ('x', ))
    x, = p.parameters
    (a, m, ) = p.call_program('sub', (x, 3, ))
    (b, k, ) = p.call_partition('sub', (a, m, ))
    return p.finish((a, b, k, ))
"""


@pytest.mark.parametrize("capture", ["never", "allowed"])
def test_subprograms_and_partitions(runner, kernels, capture):
    replayed = []

    def device_graph(name, plan):
        def replay(args):
            replayed.append(len(args))
            return plan(args)

        return replay

    x = torch.randn(4)
    text = SUBPROGRAM.replace("{capture}", capture)
    for graph in (None, device_graph):
        a, b, k = run(runner, kernels, text, x, device_graph=graph)
        assert torch.equal(a, 3 * x + x)
        assert torch.equal(b, 6 * a + a)
        assert k == 12
    assert replayed == ([2] if capture == "allowed" else [])


def test_contexts(runner, kernels):
    text = """
def build(rt):
    p = rt.program('main', ('x', ))
    x, = p.parameters
    def body1(p1, x):
        b = p1.extern('aten.neg.default', (x, ), {}, results=('tensor',))[0]
        return p1.finish((b, ))
    (a, ) = p.with_device('cpu', body1, (x, ))
    (b, ) = p.profile_range('label', body1, (a, ))
    return p.finish((b, ))
"""
    x = torch.randn(3)
    assert torch.equal(run(runner, kernels, text, x)[0], x)


def test_results_of_operators(runner, kernels):
    text = """
def build(rt):
    p = rt.program('main', ('x', ))
    x, = p.parameters
    (top, ) = p.extern('aten.topk.default', (x, 2, ), {}, results=('tensor', None))
    (a, b, c, ) = p.extern('aten.split.Tensor', (x, 2, ), {}, results=(3, ))
    (d, ) = p.extern('aten.cat.default', ([c, a, ], ), {}, results=('tensor', ))
    (n, ) = p.extern('aten.sym_size.int', (d, 0, ), {}, results=('size', ))
    return p.finish((top, b, d, n * 2, ))
"""
    x = torch.tensor([3.0, 1.0, 2.0, 9.0, 5.0, 7.0])
    top, b, d, n = run(runner, kernels, text, x)
    assert top.tolist() == [9.0, 7.0]
    assert torch.equal(b, x[2:4])
    assert d.tolist() == [5.0, 7.0, 3.0, 1.0]
    assert n == 8


def test_timings_name_the_kernels(runner, kernels):
    rt = HostRuntime(runner, {"k": LoadedKernel("k", kernels["gy_axpy"])}, {}, timed=True)
    p = rt.program("main", ("x",))
    (x,) = p.parameters
    p.launch("k", (x, x), (4, 1))
    plan = p.finish(()).plan
    plan([torch.ones(4)])
    assert [(name, row, found is plan) for name, found, row in rt.launches] == [("k", 0, True)]
    assert plan.timings()[0][0] == 1


def test_names_that_are_not_what_they_should_be(runner):
    rt = HostRuntime(runner, {}, {})
    assert rt.dtype("float16") is torch.float16
    assert rt.device("cpu") == torch.device("cpu")
    assert rt.layout("strided") is torch.strided
    assert rt.memory_format("channels_last") is torch.channels_last
    for method in (rt.dtype, rt.layout, rt.memory_format):
        with pytest.raises(TypeError, match=r"torch\.randn is not a"):
            method("randn")
