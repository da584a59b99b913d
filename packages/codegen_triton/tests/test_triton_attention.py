"""Attention's kernel, in Triton's interpreter, against attention by its definition in float64."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from attrs import evolve, frozen
from triton_build import CUDA
from triton_harness import NUMPY, target

from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.expr import ZERO, Const, ShapeFacts, Sym, expr, product_of
from gyrator_ir.grid import grid_of
from gyrator_ir.kernel.nodes import TemplateKernel
from gyrator_ir.kernel.verify import verify_kernel
from gyrator_ir.loop.nodes import Buffer, Literal, TemplateKind, TensorRef
from gyrator_ir.tile.choices import with_candidates
from gyrator_ir.tile.parse import parse
from gyrator_ir.tile.print import show
from gyrator_ir.tile.verify import verify
from gyrator_ir.types import DType
from gyrator_testing.interp.index import integer
from gyrator_testing.interp.template import run_template

S0, S1 = Sym("s0"), Sym("s1")
OFFERS = target()
OFFERS = evolve(OFFERS, capabilities=evolve(OFFERS.capabilities, templates=frozenset(TemplateKind)))


@frozen(kw_only=True)
class Case:
    """One attention, as its sizes say."""

    batch: int = 2
    heads: int = 2
    groups: int = 2
    rows: object = 20
    columns: object = 37
    query: object = 16
    value: object = 16
    dtype: DType = DType.F32
    mask: DType | None = None
    broadcast: str = ""
    """`rows`, `heads`, `all`: along what the mask is the same."""
    rows_first: bool = False
    """Heads lie next to one another for each row."""
    padded: object = None
    """Length of the sums, or None without them."""
    offset: int = 0
    scale: float = 0.25
    causal: bool = False

    def kernel(self, gradients=False):
        q = (self.batch, self.heads, self.rows, self.query)
        k = (self.batch, self.groups, self.columns, self.query)
        v = (self.batch, self.groups, self.columns, self.value)
        scores, out = (*q[:3], self.columns), (*q[:3], self.value)
        sums = (*q[:2], self.padded)
        inputs = [(q, self.dtype), (k, self.dtype), (v, self.dtype)]
        if gradients:
            sums = (*q[:2], self.rows) if self.padded is None else sums
            inputs += [(out, self.dtype), (sums, DType.F32), (q[:3], DType.F32)]
            result = list(inputs[:3])
        else:
            result = [(out, self.dtype), *([] if self.padded is None else [(sums, DType.F32)])]
        if self.mask is not None:
            inputs.append((scores, self.mask))
        buffers, tensors = [], []
        for n, (shape, dtype) in enumerate(inputs + result):
            shape = tuple(expr(m) for m in shape)
            masking = self.mask is not None and n == len(inputs) - 1
            strides = self.layout(shape, masking)
            offset = self.offset if n < len(inputs) else 0
            tensors.append(TensorRef(f"p{n}", dtype, shape, strides, expr(offset)))
            last = sum(((m - 1) * s for m, s in zip(shape, strides, strict=True)), expr(offset))
            buffers.append(Buffer(f"p{n}", dtype, CUDA, (last + 1,), (expr(1),)))
        attributes = (("scale", Literal(self.scale)), ("causal", Literal(self.causal)))
        sizes = {s for t in tensors for e in (*t.shape, *t.strides) for s in e.free_symbols}
        kind = TemplateKind.ATTENTION_GRADIENTS if gradients else TemplateKind.ATTENTION
        return verify_kernel(
            TemplateKernel(
                name="attend",
                device=CUDA,
                kind=kind,
                inputs=tuple(tensors[: len(inputs)]),
                outputs=tuple(tensors[len(inputs) :]),
                attributes=attributes,
                parameters=tuple(buffers),
                sizes=tuple(sorted(sizes, key=lambda s: s.name)),
            )
        )

    def layout(self, shape, masking):
        order = (0, 2, 1, 3) if self.rows_first and len(shape) == 4 else tuple(range(len(shape)))
        turned = [shape[d] for d in order]
        steps = {d: product_of(turned[n + 1 :]) for n, d in enumerate(order)}
        dropped = {"": (), "rows": (2,), "heads": (0, 1), "all": (0, 1, 2, 3)}
        zero = dropped[self.broadcast] if masking else ()
        return tuple(ZERO if d in zero else steps[d] for d in range(len(shape)))


def arrays_of(kernel, sizes, rng):
    known = {Sym(name): value for name, value in sizes.items()}
    arrays = []
    for p in kernel.parameters:
        length = max(integer(p.shape[0], known), 0)
        if p.dtype is DType.BOOL:
            arrays.append(rng.random(length) < 0.6)
        else:
            arrays.append((rng.standard_normal(length) * 2).astype(NUMPY[p.dtype]))
    return arrays


def views(kernel, sizes, arrays):
    known = {Sym(name): value for name, value in sizes.items()}
    named = {p.name: a for p, a in zip(kernel.parameters, arrays, strict=True)}
    result = []
    for t in (*kernel.inputs, *kernel.outputs):
        shape = [integer(n, known) for n in t.shape]
        flat = named[t.buffer][integer(t.offset, known) :]
        steps = [integer(s, known) * flat.itemsize for s in t.strides]
        result.append(np.lib.stride_tricks.as_strided(flat, shape, steps))
    return result[: len(kernel.inputs)], result[len(kernel.inputs) :]


def weights_of(inputs, mask, scale, causal):
    """Return the weights in float64, and the logarithms of their sums before they are made 1."""
    q, k = (x.astype(np.float64) for x in inputs[:2])
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("bhle,bhse->bhls", q, k) * scale
    seen = np.ones(scores.shape, bool)
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    if causal:
        seen &= np.tri(*scores.shape[2:], dtype=bool)
    top = np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True, initial=-1e300)
    weights = np.where(seen, np.exp(np.where(seen, scores - top, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    some = np.where(total, total, 1)
    return weights / some, np.where(total, top + np.log(some), -np.inf)[..., 0]


def attention(inputs, scale, causal):
    weights, sums = weights_of(inputs, *(inputs[3:] or [None]), scale, causal)
    v = inputs[2].astype(np.float64)
    v = np.repeat(v, weights.shape[1] // v.shape[1], axis=1)
    return np.einsum("bhls,bhsf->bhlf", weights, v), sums


CASES = {
    "plain": Case(padded=20),
    "odd": Case(rows=17, columns=19, query=5, value=9, padded=32, offset=3),
    "whole": Case(rows=16, columns=128, heads=1, groups=1, batch=1),
    "causal": Case(rows=37, columns=37, causal=True, rows_first=True, padded=37),
    "wider": Case(rows=20, columns=40, causal=True),
    "longer": Case(rows=40, columns=20, causal=True),
    "boolean": Case(mask=DType.BOOL, padded=20),
    "columns": Case(mask=DType.BOOL, broadcast="rows", batch=1),
    "added": Case(mask=DType.F32, broadcast="heads", padded=20, causal=True),
    "same": Case(mask=DType.F32, broadcast="all", batch=1),
    "turned": Case(scale=-0.5, padded=20),
    "nothing": Case(scale=0.0),
    "shared": Case(heads=4, groups=2, dtype=DType.F16, value=8, padded=20),
    "single": Case(heads=3, groups=1, dtype=DType.BF16, causal=True, rows_first=True),
    "narrow": Case(dtype=DType.BF16, mask=DType.BF16, broadcast="heads"),
    "dynamic": Case(rows=S0, columns=S1, padded=S0 + S0 % 2, rows_first=True, causal=True),
    "no keys": Case(columns=0, padded=20),
    "no queries": Case(rows=0, padded=0),
}
SIZES = {"s0": 19, "s1": 26}
ERRORS = {DType.F32: 2e-6, DType.F16: 2e-3, DType.BF16: 1.6e-2}


def run(kernel, interpreter, folder, arrays, sizes, facts=None):
    assert TritonBackend().refuses_template(kernel, OFFERS) is None
    (unit,) = TritonBackend().emit([kernel], facts or ShapeFacts(), (), OFFERS)
    path = folder / f"attend{abs(hash(unit.text)):x}.py"
    path.write_text(unit.text, encoding="utf-8")
    (source,) = unit.kernels
    kinds = [p.dtype for p in kernel.parameters]
    result = [a.copy() for a in arrays]
    numbers = [sizes[s.name] for s in kernel.sizes]
    blocks = {n: 16 for n, _ in source.candidates[0].values if n.endswith("BLOCK")}
    grid = grid_of(source, numbers, blocks)
    interpreter.run(str(path), source.symbol, result, kinds, numbers, blocks, grid)
    return result


@pytest.mark.parametrize("name", CASES)
def test_attention(name, interpreter, text_folder):
    case = CASES[name]
    kernel = case.kernel()
    rng = np.random.default_rng(3)
    arrays = arrays_of(kernel, SIZES, rng)
    if case.mask is DType.BOOL:
        views(kernel, SIZES, arrays)[0][3][:, :, 1:3] = False  # rows that look nowhere
    elif case.mask is not None and case.broadcast != "all":
        views(kernel, SIZES, arrays)[0][3][:, :, 1] = float(ml_dtypes.finfo(NUMPY[case.mask]).min)
    inputs, _ = views(kernel, SIZES, arrays)
    out, sums = attention(inputs, case.scale, case.causal)
    result = run(kernel, interpreter, text_folder, arrays, SIZES)

    (got, *more), error = views(kernel, SIZES, result)[1], ERRORS[case.dtype]
    np.testing.assert_allclose(got.astype(np.float64), out, rtol=error, atol=4 * error)
    for total in more:
        rows = sums.shape[2]
        np.testing.assert_allclose(total[:, :, :rows], sums, rtol=2e-6, atol=2e-6)
        assert (total[:, :, rows:] == np.inf).all()

    buffers = {p.name: a.copy() for p, a in zip(kernel.parameters, arrays, strict=True)}
    run_template(kernel, buffers, SIZES)
    reference = views(kernel, SIZES, [buffers[p.name] for p in kernel.parameters])[1]
    np.testing.assert_allclose(reference[0].astype(np.float64), out, rtol=error, atol=4 * error)
    for total in reference[1:]:
        np.testing.assert_allclose(total[:, :, : sums.shape[2]], sums, rtol=2e-6, atol=2e-6)


GRADIENTS = ("plain", "odd", "causal", "longer", "wider", "boolean", "added", "same", "turned")
GRADIENTS += ("shared", "single", "narrow", "dynamic", "no queries")


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, interpreter, text_folder):
    case = CASES[name]
    kernel = case.kernel(gradients=True)
    arrays = arrays_of(kernel, SIZES, np.random.default_rng(5))
    inputs, _ = views(kernel, SIZES, arrays)
    mask = inputs[6] if case.mask is not None else None
    if case.mask is DType.BOOL:
        mask[:, :, 1:3] = False
    weights, sums = weights_of(inputs, mask, case.scale, case.causal)
    q, k, v, grad = (x.astype(np.float64) for x in inputs[:4])
    ratio = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, ratio, axis=1) for x in (k, v))
    slopes = np.einsum("bhlf,bhsf->bhls", grad, v)
    mean = (weights * slopes).sum(axis=-1)
    inputs[4][...], inputs[5][...] = np.inf, mean
    inputs[4][:, :, : sums.shape[2]] = sums
    slopes = weights * (slopes - mean[..., None]) * case.scale
    expected = [
        np.einsum("bhls,bhse->bhle", slopes, k),
        np.einsum("bhls,bhle->bhse", slopes, q),
        np.einsum("bhls,bhlf->bhsf", weights, grad),
    ]
    for n in (1, 2):
        shape = expected[n].shape
        expected[n] = expected[n].reshape(shape[0], -1, ratio, *shape[2:]).sum(axis=2)
    buffers = {p.name: a.copy() for p, a in zip(kernel.parameters, arrays, strict=True)}
    run_template(kernel, buffers, SIZES)
    reference = [buffers[p.name] for p in kernel.parameters]
    for result in (run(kernel, interpreter, text_folder, arrays, SIZES), reference):
        for got, want in zip(views(kernel, SIZES, result)[1], expected, strict=True):
            error = 4 * ERRORS[case.dtype] * max(1, np.abs(want).max(initial=0))
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=error)


def test_what_is_not_a_number_stays_so(interpreter, text_folder):
    case = Case(batch=1, heads=1, groups=1, rows=16, columns=16)
    kernel = case.kernel()
    arrays = arrays_of(kernel, {}, np.random.default_rng(0))
    views(kernel, {}, arrays)[0][0][0, 0, 5, 2] = np.nan
    got = views(kernel, {}, run(kernel, interpreter, text_folder, arrays, {}))[1][0]
    assert np.isnan(got[0, 0, 5]).all() and np.isfinite(np.delete(got[0, 0], 5, axis=0)).all()


def test_addresses_have_64_bits_where_32_are_not_enough():
    for facts, wide in ((ShapeFacts(), True), (ShapeFacts().with_range(S0, 0, 4096), False)):
        kernel = Case(rows=S0, columns=S0).kernel()
        (unit,) = TritonBackend().emit([kernel], facts, (), OFFERS)
        (source,) = unit.kernels
        assert ("tl.int64" in unit.text) == wide
        assert source.arguments[-1].type == ("i64" if wide else "i32")


def test_candidates_fit_the_shared_memory_and_the_work():
    def blocks(shared, gradients=False, **sizes):
        wide = evolve(OFFERS, heuristics=evolve(OFFERS.heuristics, shared_bytes=shared))
        kernel = Case(dtype=DType.BF16, query=128, value=128, **sizes).kernel(gradients)
        (unit,) = TritonBackend().emit([kernel], ShapeFacts(), (), wide)
        return [dict(c.values) for c in unit.kernels[0].candidates]

    for shared in (1 << 16, 227 << 10):
        for c in blocks(shared, rows=4096, columns=4096, heads=16, groups=16):
            assert (c["XBLOCK"] + 2 * c["num_stages"] * c["RBLOCK"]) * 256 <= shared
    assert blocks(227 << 10, rows=4096, columns=4096, heads=16, groups=16)[0]["XBLOCK"] == 64
    assert blocks(227 << 10, rows=1, columns=4096, heads=16, groups=16)[0]["XBLOCK"] == 16
    (least, *_) = blocks(1, rows=64, columns=64)
    assert least["XBLOCK"] == least["RBLOCK"] == 16
    for c in blocks(227 << 10, gradients=True, rows=4096, columns=4096):
        vectors = c["num_stages"] * c["KBLOCK"] + c["RBLOCK"]
        assert vectors * 512 + 2 * c["KBLOCK"] * c["RBLOCK"] <= 227 << 10


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(dtype=DType.F64), "attention of f64 has no kernel"),
        (Case(mask=DType.I64), "attention of i64 has no kernel"),
        (Case(query=S0), "vectors of dynamic length s0"),
        (Case(value=1024), "vectors of length 1024"),
        (Case(query=0), "vectors of length 0"),
        (Case(heads=0, groups=0), "without heads"),
    ],
)
def test_refusals(case, message):
    result = TritonBackend().refuses_template(case.kernel(), OFFERS)
    assert result is not None and result.code == "GY-TRITON-007" and message in result.message


def test_vectors_that_no_block_can_hold_are_refused():
    kernel = Case(query=512, value=512).kernel(gradients=True)
    reason = "needs 197632 bytes of shared memory; a program has 101376"
    for shared, message in ((99 << 10, reason), (227 << 10, "")):
        bound = evolve(OFFERS, heuristics=evolve(OFFERS.heuristics, shared_bytes=shared))
        result = TritonBackend().refuses_template(kernel, bound)
        assert message in (result.message if result else "")
        assert bool(result) == bool(message)


def test_a_tensor_that_reads_other_bits_is_refused():
    kernel = Case(dtype=DType.F16).kernel()
    changed = tuple(evolve(p, dtype=DType.BF16) for p in kernel.parameters)
    result = TritonBackend().refuses_template(evolve(kernel, parameters=changed), OFFERS)
    assert result is not None and "reinterprets bf16 as another dtype" in result.message


def test_constant_sizes_stand_in_the_text():
    kernel = CASES["whole"].kernel()
    assert kernel.inputs[1].shape[2] is Const(128)
    (unit,) = TritonBackend().emit([kernel], ShapeFacts(), (), OFFERS)
    assert unit.text.count("for start in") == 1 and "r_mask" not in unit.text


@pytest.mark.parametrize("gradients", [False, True])
def test_its_choices_are_in_tile_ir(gradients):
    backend, kernel = TritonBackend(), Case().kernel(gradients)
    program = verify(backend.tile([kernel], ShapeFacts(), (), OFFERS))
    assert parse(show(program)) == program
    (tiled,) = program.kernels
    blocks = ["XBLOCK", "RBLOCK", *["KBLOCK"] * gradients]
    assert [c.name for c in tiled.choices] == [*blocks, "num_warps", "num_stages"]
    first, *others = tiled.candidates
    second = evolve(program, kernels=(with_candidates(tiled, others[:1]),))
    (one,), (two,) = (backend.emit_tiled(p, OFFERS) for p in (program, second))
    assert one.text == two.text
    assert [u.kernels[0].candidates for u in (one, two)] == [(first, *others), (others[0],)]


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_machine_code(tmp_path, arch):
    """The texts become machine code with matrix units' instructions, without a GPU at hand."""
    case = Case(rows=S0, columns=S0, query=32, value=24, dtype=DType.BF16, causal=True, padded=S0)
    jobs = []
    for gradients in (False, True):
        (unit,) = TritonBackend().emit([case.kernel(gradients)], ShapeFacts(), (), OFFERS)
        (path := tmp_path / f"attend{gradients}.py").write_text(unit.text, encoding="utf-8")
        (source,) = unit.kernels
        types = [a.type for a in source.arguments]
        walked = (("KBLOCK", 32),) if gradients else ()
        values = (("XBLOCK", 64), ("RBLOCK", 32), *walked, ("num_warps", 4), ("num_stages", 2))
        job = {"path": str(path), "symbol": "attend", "types": types, "values": values}
        jobs.append(job | {"units": True, "waits": False})
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_compile.py")), arch],
        input=pickle.dumps(jobs),
        stdout=subprocess.PIPE,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
        check=True,
    )
    sizes = pickle.loads(done.stdout)
    assert len(sizes) == len(jobs)
    assert not {key: size for key, size in sizes.items() if not isinstance(size, int) or size <= 0}
