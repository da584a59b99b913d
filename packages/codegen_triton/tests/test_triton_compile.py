"""The corpus becomes machine code for NVIDIA and AMD GPUs on a machine without either."""

import os
import pickle
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from attrs import evolve
from triton_corpus import corpus, products
from triton_harness import target

from gyrator_codegen_triton.dtypes import pointer
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.expr import ShapeFacts
from gyrator_ir.kernel.nodes import KernelGroup

KERNELS = {k.name: k for k in corpus()}
PRODUCTS = {k.name for k in products()}
"""Those that must use matrix units."""
GROUPS = {
    f"group_{k.name}": KernelGroup(f"group_{k.name}", k.device, (k,), (0,) * 30)
    for k in corpus()
    if k.name in ("softmax_any", "layer_norm_any", "turned_any")
}
PARTS = 4
"""The tests among which the kernels are divided. Those that are not marked `long` compile each of
half of the kernels for one of the two architectures."""
OVERLAPPED = {
    f"overlapped_{k.name}": evolve(k, name=f"overlapped_{k.name}", overlap=())
    for k in corpus()
    if k.name in ("softmax_any", "layer_norm_any", "turned_any")
}
"""Kernels that wait for the previous launch, which only the first architecture can do."""
SPECIALIZED = ("softmax_any", "layer_norm_any", "turned_any")
"""Kernels that are also compiled for sizes of 1, which Triton makes constants."""


def jobs_of(units):
    for path, unit in units.items():
        for source in unit.kernels:
            kernel = {**KERNELS, **GROUPS, **OVERLAPPED}[source.kernel]
            job = {
                "path": str(path),
                "symbol": source.symbol,
                "types": [pointer(b.dtype) for b in kernel.parameters],
                "values": source.candidates[0].values,
                "units": source.kernel in PRODUCTS,
                "waits": source.kernel in OVERLAPPED,
            }
            yield job | {"types": job["types"] + ["i64"] * len(kernel.sizes)}
            if kernel.name in SPECIALIZED:
                yield job | {"types": job["types"] + ["1"] * len(kernel.sizes)}


@pytest.mark.parametrize(
    ("arch", "part"),
    [
        pytest.param(arch, part, marks=() if part == turn else pytest.mark.long)
        for turn, arch in enumerate(("sm_90", "gfx942"))
        for part in range(PARTS)
    ],
)
def test_machine_code(tmp_path, arch, part):
    backend, bound = TritonBackend(), target()
    assert not [k.name for k in KERNELS.values() if backend.refuses(k, bound)]
    units = {}
    overlapped = OVERLAPPED if arch == "sm_90" else {}
    for unit in chain.from_iterable(
        backend.emit(list(kernels.values()), ShapeFacts(), (), bound)
        for kernels in (KERNELS, GROUPS, overlapped)
        if kernels
    ):
        units[path := tmp_path / f"{unit.name}.py"] = unit
        path.write_text(unit.text, encoding="utf-8")
    jobs = list(jobs_of(units))[part::PARTS]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")

    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_compile.py")), arch],
        input=pickle.dumps(jobs),
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )

    sizes = pickle.loads(done.stdout)
    assert len(sizes) == len(jobs)
    assert not {key: size for key, size in sizes.items() if not isinstance(size, int) or size <= 0}
