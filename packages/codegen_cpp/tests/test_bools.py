"""Bytes that are read as `bool`."""

import numpy as np
import pytest
from harness import ARCHS, Library, lacking

from gyrator_ir.body.nodes import Let, Load, Store
from gyrator_testing.kernels.write import BOOL, I0, kernel, outer


@pytest.mark.parametrize("arch", ARCHS)
def test_every_byte_but_zero_is_true(arch, tmp_path):
    if missing := lacking(arch):
        pytest.skip(missing)
    body = [
        Load("a", "x", I0), Let("b", "bit_not", ("a",), BOOL), Let("c", "eq", ("a", "b"), BOOL),
        Store("y", I0, "b"), Store("z", I0, "c"),
    ]  # fmt: skip
    library = Library(
        [kernel("k", [(I0, 100)], [], [outer(*body)], dict.fromkeys("xyz", BOOL))], arch, tmp_path
    )
    x = np.arange(100, dtype=np.uint8) % 5
    y, z = np.ones(100, np.uint8), np.ones(100, np.uint8)

    assert library("k", {"x": x.view(bool), "y": y.view(bool), "z": z.view(bool)}) == 0

    np.testing.assert_array_equal(y, x == 0)
    np.testing.assert_array_equal(z, 0)
