"""Products of rows and columns on matrix units: every layout and type, tails, masks, batches."""

import numpy as np
import pytest
from triton_corpus import convolved, product
from triton_harness import NUMPY, Library

from gyrator_ir.expr import ShapeFacts
from gyrator_ir.types import DType
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.write import I32, S0, S1, S2

BF16, F16, I8 = DType.BF16, DType.F16, DType.I8
KERNELS = {
    "plain": product("plain", 20, 33, 40),
    "turned": product("turned", 20, 33, 40, left="mk,1m", right="k,1"),
    "bf16": product("bf16", 20, 33, 40, dtype=BF16),
    "f16": product("f16", 17, 16, 32, dtype=F16),
    "bytes": product("bytes", 20, 33, 40, dtype=I8, total=I32),
    "batches": product("batches", 9, 10, 50, batches=3, dtype=BF16),
    "computed": product("computed", 20, 33, 40, before="exp"),
    "any": product("any", S0, S1, S2),
    "wide": product("wide", S0, S1, S2, dtype=BF16),
    "convolved": convolved("convolved", 2, 32, 5, 8),
    "convolved_few": convolved("convolved_few", 2, 3, 6, 8),
}
FACTS = ShapeFacts().with_range(S0, 0, 64).with_range(S1, 0, 64).with_range(S2, 0, 64)


@pytest.fixture(scope="module")
def library(interpreter, text_folder):
    known = [k for k in KERNELS.values() if k.name != "wide"]
    return Library(known, interpreter, text_folder, FACTS)


def compare(library, kernel, **sizes):
    rng = np.random.default_rng(sum(map(ord, kernel.name)) + sum(sizes.values()))
    arrays = {}
    for b in kernel.parameters:
        kind = NUMPY[b.dtype]
        if b.dtype.is_int:
            arrays[b.name] = rng.integers(-100, 100, 4096).astype(kind)
        else:
            arrays[b.name] = rng.standard_normal(4096).astype(kind)
    actual = {n: a.copy() for n, a in arrays.items()}
    library(kernel.name, actual, **sizes)
    run_kernel(kernel, arrays, sizes)
    for name, want in arrays.items():
        got, want = (a.astype(np.float64) for a in (actual[name], want))
        step = 1e-2 if kernel.parameters[0].dtype.is_narrow_float else 1e-5
        np.testing.assert_allclose(got, want, rtol=step, atol=step * np.abs(want).max())


@pytest.mark.parametrize("name", [n for n in KERNELS if n not in ("any", "wide")])
def test_constant_sizes(library, name):
    assert library.tiled[name].contraction is not None
    assert "tl.dot" in library.sources[name].text
    compare(library, KERNELS[name])


@pytest.mark.parametrize("sizes", [(20, 33, 40), (1, 5, 3), (17, 1, 64), (5, 6, 0), (0, 4, 4)])
def test_any_sizes(library, sizes):
    compare(library, KERNELS["any"], **dict(zip(("s0", "s1", "s2"), sizes, strict=True)))


def test_indices_of_64_bits(interpreter, text_folder):
    library = Library([KERNELS["wide"]], interpreter, text_folder, ShapeFacts())
    assert "tl.cast(start, tl.int64)" in library.sources["wide"].text
    compare(library, KERNELS["wide"], s0=20, s1=18, s2=33)


def test_candidates_fit_and_follow_the_shape(text_folder):
    kernels = [
        product("large", 4096, 4096, 4096, dtype=BF16),
        product("thin", 16, 4096, 4096, dtype=BF16),
    ]
    library = Library(kernels, None, text_folder, shared_bytes=227 << 10)
    first = {n: dict(s.candidates[0].values) for n, s in library.sources.items()}
    assert first["large"]["XBLOCK"] * first["large"]["RBLOCK"] >= 128 * 128
    assert first["thin"]["XBLOCK"] == 16
    for source in library.sources.values():
        assert len(source.candidates) > 1
        for c in source.candidates:
            v = dict(c.values)
            shared_bytes = v["KBLOCK"] * (v["XBLOCK"] + v["RBLOCK"]) * 2 * v["num_stages"]
            assert shared_bytes <= 227 << 10
