"""Collectives move, results do not."""

import numpy as np
import pytest
from gyrator_overlap import OverlapCollectives, overlapping

from gyrator_ir.host.nodes import CollectiveFinish, CollectiveStart, Launch
from gyrator_ir.loop.nodes import CollectiveCall, CollectiveWait
from gyrator_ir.loop.parse import parse
from gyrator_ir.loop.verify import verify
from gyrator_ir.target import Capabilities, Target
from gyrator_ir.types import DType
from gyrator_scheduler.options import SchedulerOptions
from gyrator_scheduler.stage import plan_host, schedule
from gyrator_testing.interp.host import run_host
from gyrator_testing.interp.loop import run_loop

STEP = """
  pointwise {name} (i0 < 8)
    a = load {source}[i0]
    b: f32 = {verb} a, a
    store {target}[i0], b
"""


def program():
    steps = [
        STEP.format(name="op0", source="x", verb="add", target="b0"),
        '  collective op1 _c10d_functional.all_reduce.default (b0, "sum", "0") -> (c0)\n',
        "  wait op2 c0\n",
        STEP.format(name="op3", source="x", verb="mul", target="b1"),
        '  collective op4 _c10d_functional.all_reduce.default (b1, "sum", "0") -> (c1)\n',
        "  wait op5 c1\n",
        STEP.format(name="op6", source="c0", verb="mul", target="b2"),
        STEP.format(name="op7", source="x", verb="sub", target="b3"),
        STEP.format(name="op8", source="c1", verb="add", target="b4"),
    ]
    names = ("b0", "c0", "b1", "c1", "b2", "b3", "b4")
    buffers = "".join(f"  buffer {n}: f32[8] strides [1] on cpu\n" for n in names)
    head = "loop.program 1 @main\n  in x: f32[8] strides [1] on cpu\n"
    return verify(parse(head + buffers + "".join(steps) + "  return b2, b3, b4\n"))


def all_reduce(x, *_):
    return x * 3


EXTERNS = {"_c10d_functional.all_reduce.default": all_reduce}


def test_starts_come_early_and_waits_late():
    before = program()
    after = verify(OverlapCollectives().run(before))
    names = [o.name for o in after.operations]
    assert sorted(names) == sorted(o.name for o in before.operations)
    assert names.index("op3") < names.index("op2")  # work between the first start and its wait
    assert names.index("op4") < names.index("op2")  # both collectives are under way together
    assert names.index("op7") < names.index("op2")
    kinds = [type(o) for o in after.operations if isinstance(o, CollectiveCall | CollectiveWait)]
    assert kinds == [CollectiveCall, CollectiveCall, CollectiveWait, CollectiveWait]
    assert OverlapCollectives().run(after) is after


@pytest.mark.parametrize("seed", range(3))
def test_results_stay(seed):
    x = np.random.default_rng(seed).standard_normal(8).astype(np.float32)
    want = run_loop(program(), [x.copy()], externs=EXTERNS)
    got = run_loop(OverlapCollectives().run(program()), [x.copy()], externs=EXTERNS)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_scheduler_takes_the_pass_in_its_pipeline():
    capabilities = Capabilities(dtypes=frozenset(DType))
    targets = {"cpu": Target(device="cpu", arch="x", kernel_backend="c", capabilities=capabilities)}
    plain = SchedulerOptions(fusion=False, reorder=False)

    def host(options):
        return plan_host(schedule(program(), options, targets), options, targets)

    def between(made):
        work = [
            i
            for i in made.instructions
            if isinstance(i, Launch | CollectiveStart | CollectiveFinish)
        ]
        first = next(k for k, i in enumerate(work) if isinstance(i, CollectiveStart))
        end = next(k for k, i in enumerate(work) if isinstance(i, CollectiveFinish))
        return sum(isinstance(i, Launch) for i in work[first:end])

    before, after = host(plain), host(overlapping(plain))
    assert between(before) == 0 < between(after)
    x = np.arange(8, dtype=np.float32)
    for a, b in zip(
        run_host(before, [x.copy()], externs=EXTERNS),
        run_host(after, [x.copy()], externs=EXTERNS),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
