"""The corpus becomes machine code for NVIDIA and AMD GPUs on a machine without either."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from triton_corpus import corpus
from triton_harness import target

from gyrator_codegen_triton.dtypes import POINTERS
from gyrator_codegen_triton.stage import TritonBackend
from gyrator_ir.expr import ShapeFacts

KERNELS = {k.name: k for k in corpus()}
ARCHS = ("sm_90", "gfx942")


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("units")
    backend, bound = TritonBackend(), target()
    units = backend.emit(list(KERNELS.values()), ShapeFacts(), (), bound)
    jobs = []
    for unit in units:
        path = folder / f"{unit.name}.py"
        path.write_text(unit.text, encoding="utf-8")
        for source in unit.kernels:
            kernel = KERNELS[source.kernel]
            types = [POINTERS[b.dtype] for b in kernel.parameters] + ["i64"] * len(kernel.sizes)
            values = source.candidates[0].values
            jobs.append(
                {"path": str(path), "symbol": source.symbol, "types": types, "values": values}
            )
    script = Path(__file__).with_name("triton_compile.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, str(script)],
        input=pickle.dumps(jobs),
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", KERNELS)
def test_machine_code(machine_code, name, arch):
    size = machine_code[name, arch]
    assert isinstance(size, int), size
    assert size > 0
