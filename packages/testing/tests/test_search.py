"""The search for kernels that a language gets wrong: planted faults are found and made small."""

import numpy as np
import pytest
from attrs import evolve

from gyrator_ir.body.nodes import Let, Load, Reduce, ScanStep, Store
from gyrator_ir.host.parse import parse
from gyrator_ir.modes import ATOMIC_MODES
from gyrator_ir.target import Capabilities
from gyrator_ir.types import DType
from gyrator_testing.interp.dtypes import NUMPY
from gyrator_testing.interp.kernel import run_kernel
from gyrator_testing.kernels.random import FORMS, Limits, random_case
from gyrator_testing.kernels.search import Refused, Search, lacking
from gyrator_testing.kernels.validate import GUARD
from gyrator_testing.kernels.write import CPU

INTEGERS = (DType.I32, DType.I64)
EVERYTHING = Capabilities(
    dtypes=frozenset(DType),
    atomics=frozenset((t, m) for t in INTEGERS for m in ATOMIC_MODES),
)


def interpreter(change=lambda statement: statement):
    """Return a language that the interpreter runs, which mistakes statements for others."""

    def build(kernel, facts):
        stages = tuple(evolve(g, body=tuple(map(change, g.body))) for g in kernel.stages)
        mistaken = evolve(kernel, stages=stages)

        def run(memories, sizes):
            inside = {
                p.name: m[GUARD : m.size - GUARD].view(NUMPY[p.dtype])
                for p, m in zip(kernel.parameters, memories, strict=True)
            }
            with np.errstate(all="ignore"):
                run_kernel(mistaken, inside, {s.name: n for s, n in zip(kernel.sizes, sizes)})  # noqa: B905
            return memories

        return run

    return build


def search(build, **more):
    more = {"capabilities": EVERYTHING, "device": CPU, "limits": Limits(points=400), **more}
    return Search(build=build, **more)


def swapped(s):
    return evolve(s, op="minimum") if isinstance(s, Let) and s.op == "maximum" else s


def unmasked(s):
    return evolve(s, mask=None) if isinstance(s, Load) else s


def backwards(s):
    return evolve(s, reverse=not s.reverse) if isinstance(s, ScanStep) else s


@pytest.mark.parametrize(
    ("change", "kind", "most"), [(swapped, Let, 6), (unmasked, Load, 8), (backwards, ScanStep, 4)]
)
def test_a_planted_fault_is_found_and_made_small(change, kind, most):
    findings = search(interpreter(change)).run(200)
    (fault,) = findings.faults
    body = [s for stage in fault.kernel.stages for s in stage.body]
    assert len(body) <= most < sum(len(stage.body) for stage in fault.whole.stages)
    assert any(isinstance(s, kind) and change(s) is not s for s in body)
    assert " is " in fault.problem
    program = parse(fault.text)  # a text of the IR, and still one that shows it
    (kernel,) = program.kernels
    tried = search(interpreter(change)).tried(kernel, program.facts)
    assert tried.difference
    assert not search(interpreter()).tried(kernel, program.facts).difference


def test_what_is_right_is_left_alone(tmp_path):
    findings = search(interpreter(), folder=tmp_path).run(40)
    assert not findings.faults and findings.ran > 25
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_built_is_a_fault_and_what_is_refused_is_none():
    def build(kernel, facts):
        body = [s for stage in kernel.stages for s in stage.body]
        if any(isinstance(s, Reduce) for s in body):
            raise Refused("no folds here")
        if any(s.dtype is DType.BF16 for s in kernel.parameters):
            raise KeyError("bf16")
        return interpreter()(kernel, facts)

    findings = search(build, forms=("pointwise", "reduction")).run(24, faults=24)
    assert findings.left_out["refused: no folds here"] > 3
    fault = findings.faults[0]
    assert fault.problem == "it cannot be built: KeyError: 'bf16'"
    assert DType.BF16 in {p.dtype for p in fault.kernel.parameters}
    assert sum(isinstance(s, Store) for g in fault.kernel.stages for s in g.body) == 1


def test_the_text_of_what_runs_is_there_while_it_runs(tmp_path):
    seen = []

    def build(kernel, facts):
        seen.append((tmp_path / "running.gy").read_text())
        return interpreter()(kernel, facts)

    search(build, folder=tmp_path).run(1)
    assert seen[0].startswith("host.program 1")


LESS = {
    "reductions": {"reductions": False},
    "scans": {"scans": False},
    "sorts": {"sorts": False},
    "addresses": {"indirect": False},
    "checks": {"device_checks": False},
    "the op 'tanh'": {"ops_lacking": frozenset({"tanh"})},
    "the element type bf16": {"dtypes": frozenset(DType) - {DType.BF16}},
    "atomic stores": {"atomics": frozenset()},
    "a range longer than 4": {"sort_extent": 4, "scan_extent": 4},
}


@pytest.mark.parametrize("what", LESS)
def test_kernels_that_a_device_would_not_be_given_are_left_out(what):
    less = evolve(EVERYTHING, **LESS[what])
    cases = [random_case(seed, FORMS[seed % 4], limits=Limits(points=300)) for seed in range(200)]
    assert not any(lacking(case.kernel, EVERYTHING) for case in cases)
    assert any(what in lacking(case.kernel, less) for case in cases)
