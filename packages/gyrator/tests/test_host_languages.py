"""Every instruction of the Wrapper IR in every host language, and what others' FX wrappers lack."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_faults
from attrs import evolve
from host_forms import WRAPPERS, Forms, externs, tensor

from gyrator.config import Config, read_config
from gyrator.reports.records import GraphRecord
from gyrator.session import Session
from gyrator.targets.cpu import CPU
from gyrator.wrappers import cpp
from gyrator_ir.host import nodes as h
from gyrator_ir.host.parse import parse
from gyrator_ir.host.verify import verify
from gyrator_ir.host.walk import programs, walk
from gyrator_ir.loop.nodes import Literal
from gyrator_runtime.cache import Cache
from gyrator_runtime.host.memory_tracker import MemoryUseError
from gyrator_runtime.toolchain import ToolchainError
from gyrator_testing.host_cases import CHECKS, LIBRARY, REFUSED_ELSEWHERE, X
from gyrator_testing.host_cases import HEAD as ONE
from gyrator_testing.interp.host import run_host

F32 = np.float32
TRUE, FALSE = np.asarray(True), np.asarray(False)
HEAD = "host.program 1 @main\n"
TENSORS = HEAD + "  parameter x tensor\n  parameter n size\n  parameter flag tensor\n  do\n"


@pytest.fixture(scope="module")
def forms(cache_root: Any) -> Forms:
    """The loaders of all host languages."""

    def mine(x: np.ndarray, N: int, other: np.ndarray | None = None) -> None:
        x += N

    return Forms(Cache(cache_root), {"mine": mine})


@pytest.fixture(scope="module")
def plain(cache_root: Any) -> Forms:
    """The loaders without users' kernels: FX graphs run by their own code."""
    return Forms(Cache(cache_root))


@pytest.fixture(scope="module", autouse=True)
def ops() -> Iterator[None]:
    """Ops for the programs of this file."""
    lib = torch.library.Library("hosttest", "DEF")
    lib.define("parts(Tensor[] xs, SymInt n, Tensor? t, *, int dim) -> (Tensor[], SymInt, Tensor)")
    lib.impl(
        "parts",
        lambda xs, n, t, *, dim: ([x.sum(dim) for x in xs], n + 1, xs[0].sum()),
        "CompositeExplicitAutograd",
    )
    lib.define("scaled(Tensor x, Scalar by, *, Scalar? more=None) -> (Tensor, Tensor[])")
    lib.impl(
        "scaled",
        lambda x, by, *, more=None: (x * by, [x + (more or 0), x.clone()]),
        "CompositeExplicitAutograd",
    )
    lib.define("lacking(Tensor x, Tensor y) -> Tensor")
    lib.impl("lacking", lambda x, y: x + 1 if y is None else x + y, "CompositeExplicitAutograd")
    lib.define("letters(Tensor x, str text) -> Tensor")
    letters = lambda x, text: x.new_tensor(list(map(ord, text)))  # noqa: E731
    lib.impl("letters", letters, "CompositeExplicitAutograd")
    for schema in LIBRARY.values():
        lib.define(schema)
    lib.impl("add_one_", lambda x: (x.add_(1), None)[1], "CompositeExplicitAutograd")
    lib.impl("two", lambda x: (x + 1, x * 2), "CompositeExplicitAutograd")

    def two_out(x: torch.Tensor, *, a: torch.Tensor, b: torch.Tensor) -> object:
        return a.copy_(x + 1), b.copy_(x * 2)

    lib.impl("two.out", two_out, "CompositeExplicitAutograd")
    yield
    lib._destroy()


@pytest.fixture
def group() -> Iterator[str]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


KERNEL = """  kernel {name} on cpu (i0 < s0) sizes (s0)
    parameter p0: f32[s0] strides [1] on cpu
    parameter p1: f32[s0] strides [1] on cpu
    outer
      a = load p0[i0]
      b: f32 = add a, a
      store p1[i0], b
"""

PROGRAMS: dict[str, str] = {
    # Sizes, checks, memory: symbols of all kinds, pools, views across element types, reuse.
    "memory": """host.program 1 @main
  constant w: f32[2] strides [1] on cpu key layer.weight
  parameter x tensor
  parameter n size
  parameter flag tensor
  do
    note "sizes, then memory"
    s0 = parameter n
    s1 = dim x 1
    s2 = dim x 0 stride
    s3 = expr min(s0*s1 + 1, 7) + s0 // s1 + s2 % 5 - max(s0, s1, 4)
    s4 = expr where(s0 < 2, 1, s1 // (s0 - 1))
    w = constant layer.weight
    conform x to f32[s0, s1] strides [s2, 1] on cpu mend nothing
    conform x to f32[s0, s1] strides [s2, 1] on cpu mend pending
    separate (x, x) from (w)
    assert_finite x from "x"
    assert_finite flag
    assert (s0 < 9 and s1 != 7) "too long"
    a = allocate f32[s0, s1] strides [s1, 1] on cpu
    copy x -> a
    pool = pool 64*s0 + 64 on cpu
    b = place pool at 64 as f32[s0, s1] strides [1, s0]
    copy a -> b
    ws2 = pool 4*s0 on cpu
    u0 = read flag
    v = view a as f32[s1] strides [1] offset s0*s1 - s1
    v2 = view v as i32[1] strides [1] offset 1
    c = view b as f32[s0] strides [1] offset 0
    d = allocate i64[s0] strides [1] on cpu
    free ws2
    e = reuse d as f32[s0] strides [2]
    copy c -> e
    k = reuse a as f32[2] strides [1]
    return (s3), (s4), (2*s0), none, x, b, v, v2, c, [e, (u0), [k]], w
""",
    # The dispatcher: out=, lists, optionals, results that are lists, sizes or nothing, mutation,
    # scalars and types; a user's kernel on a descriptor.
    "calls": """host.program 1 @main
  parameter x tensor
  parameter n size
  parameter flag tensor
  user_kernel mine (x, N)
    | @triton.jit
    | def mine(x, N):
    |     pass
  do
    s0 = parameter n
    s1 = dim x 1
    a = allocate f32[s0, s0] strides [s0, 1] on cpu
    y = allocate f32[s0, s1] strides [s1, 1] on cpu
    copy x -> y
    t = view y as f32[s1, s0] strides [1, s1] offset 0
    extern aten.mm.default (y, t) -> (a) out aten.mm.out names (out)
    extern hosttest.parts.default ([y, x], (s0), none) with {dim=1} -> ([pl, pr], (u0), none)
    extern hosttest.scaled.default (y, 2.5) with {more=3} -> (scaled, [more, same])
    extern hosttest.scaled.default (y, (s0)) -> (whole, none)
    extern hosttest.lacking.default (y, none) -> (plus)
    extern hosttest.add_one_.default (y)
    extern hosttest.two.default (y) -> (one, none)
    extern hosttest.two.default (y) -> (none, two)
    o1 = allocate f32[s0, s1] strides [s1, 1] on cpu
    o2 = allocate f32[s0, s1] strides [s1, 1] on cpu
    extern hosttest.two.default (y) -> (o1, o2) out hosttest.two.out names (a, b)
    extern aten.full.default ([(u0), 2], 1.5) with {dtype=<dtype float64>} -> (full)
    extern aten.argmax.default (y, 1) -> (t0)
    extern aten.index.Tensor (y, [none, t0]) -> (last)
    d = tma full [u0, 2] block [2, 2] bytes 8 stable
    triton mine grid [[s0]] {x=d} constants {N=3}
    return a, pl, [pr, (u0), none], y, one, two, o1, o2, full, scaled, more, same, whole, last, plus
""",
    # Guards, ranges, branches, loops.
    "structure": """host.program 1 @main
  parameter x tensor
  parameter n size
  parameter flag tensor
  do
    s0 = parameter n
    with_device cpu
      profile "part"
        extern aten.add.Scalar (x, 1) -> (y)
        u0 = read flag
        extern aten.add.Scalar (y, 2) -> (gone)
        free gone
    extern aten.add.Scalar (y, (u0)) -> (z)
    branch flag then (a) else (x) -> (b)
      then
        a = view x as f32[s0] strides [1] offset 0
        extern hosttest.add_one_.default (x)
      else
    branch (s0 < 3 or s0 == 4) then (b) else (x) -> (c)
      then
        profile "inner"
          copy z -> z
      else
    k = allocate i64[] strides [] on cpu
    extern aten.sum.default (flag) -> (zero)
    copy zero -> k
    extern aten.add.Scalar (x, 0) -> (first)
    loop (i, v) from (k, first) while test next (j, w) -> (last, value)
      condition
        extern aten.lt.Scalar (i, (s0 + 2)) -> (test)
      body
        extern aten.add.Scalar (i, 1) -> (j)
        extern aten.mul.Tensor (v, x) -> (w)
    return z, (u0), b, c, last, value
""",
    # Kernels in programs and subprograms that are called twice.
    "launches": f"""host.program 1 @main
  constant w: f32[8] strides [1] on cpu key layer.weight
  parameter x tensor
  parameter n size
{KERNEL.format(name="k0")}  do
    s0 = parameter n
    y = allocate f32[s0] strides [1] on cpu
    launch k0 (x, y) sizes [s0]
    z = reuse y as f32[s0] strides [1]
    launch k0 (z, z) sizes [s0]
    w0 = constant layer.weight
    part = view w0 as f32[2] strides [1] offset 3
    pool = pool 64 on cpu
    last = place pool at 16 as f32[2] strides [1]
    launch k0 (part, last) sizes [2]
    call sub (z, (2*s0)) -> (o0, o1)
    call_partition piece (o0) -> (o2)
    return z, (s0), none, part, last, o1, o2
  host.program 1 @sub
    parameter t tensor
    parameter n size
{"".join(f"  {line}" + chr(10) for line in KERNEL.format(name="k1").splitlines())}    do
      s0 = parameter n
      launch k1 (t, t) sizes [2]
      call deep (t) -> (u)
      return u, (s0 + 1)
    host.program 1 @deep
      parameter t tensor
      do
        v = view t as f32[2] strides [1] offset 0
        return v
  host.program 1 @piece
    parameter t tensor
    capture cpu mutates (0)
{"".join(f"  {line}" + chr(10) for line in KERNEL.format(name="k2").splitlines())}    do
      launch k2 (t, t) sizes [2]
      return t
""",
}  # fmt: skip

COLLECTIVES = (
    HEAD
    + """  parameter x tensor
  do
    start _c10d_functional.all_reduce.default (x, "sum", "GROUP") -> (a)
    profile "between"
      extern aten.add.Scalar (x, 1) -> (y)
    finish a
    start _c10d_functional.all_gather_into_tensor_coalesced.default ([a, y], 1, "GROUP") -> (b, c)
    finish b
    finish c
    return a, y, b, c
"""
)
WEIGHT = {"layer.weight": np.arange(1, 9, dtype=F32)}


def test_the_programs_here_have_every_instruction() -> None:
    shared = (ONE + lines for lines, _ in REFUSED_ELSEWHERE.values())
    texts = [*PROGRAMS.values(), *shared, COLLECTIVES]
    actual = {
        type(i) for text in texts for p in programs(parse(text)) for i in walk(p.instructions)
    }
    assert actual == set(h.INSTRUCTIONS)
    assert len(h.INSTRUCTIONS) == 31


@pytest.mark.parametrize("flag", [TRUE, FALSE], ids=str)
@pytest.mark.parametrize("rows", [4, 1])
@pytest.mark.parametrize("name", ["memory", "calls", "structure"])
def test_every_instruction(forms: Forms, name: str, rows: int, flag: np.ndarray) -> None:
    weight = {"layer.weight": np.asarray([1, 2], F32)}
    forms.check(PROGRAMS[name], [X[:rows], rows, flag], weight)


@pytest.mark.parametrize("n", [3, 8])
def test_launches(plain: Forms, n: int) -> None:
    plain.check(PROGRAMS["launches"], [np.arange(8, dtype=F32)[:n], n], WEIGHT)


def test_collectives(plain: Forms, group: str) -> None:
    plain.check(COLLECTIVES.replace("GROUP", group), [X])


@pytest.mark.parametrize("text", ["", "a\0b", "\0", "Größe λ"])
def test_strings_are_whole(plain: Forms, text: str) -> None:
    args = (h.Ref("x"), Literal(text))
    call = h.ExternCall("hosttest.letters.default", args, (), ("y",))
    instructions = (call, h.Return((h.Ref("y"),)))
    program = h.HostProgram("main", (h.Parameter("x", "tensor"),), (), (), instructions)
    for wrapper in WRAPPERS:
        (actual,) = plain.load(wrapper, verify(program), {})([torch.ones(1)])
        assert "".join(map(chr, actual.int().tolist())) == text, wrapper


# What FX wrappers elsewhere refuse, drop or get wrong ---------------------------------------------


@pytest.mark.parametrize("name", REFUSED_ELSEWHERE)
def test_what_others_refuse(plain: Forms, name: str) -> None:
    body, x = REFUSED_ELSEWHERE[name]
    plain.check(ONE + body, [x])


def test_results_that_are_an_input_are_that_object(plain: Forms) -> None:
    program = verify(parse(ONE + "    return x, x\n"))
    x = torch.ones(3)
    for wrapper in WRAPPERS:
        a, b = plain.load(wrapper, program, {})([x])
        assert a is x and b is x, wrapper


@torch_faults.ERRORS_IN_C
def test_devices_keep_their_ordinals(plain: Forms) -> None:
    """An allocation on a device that is not there names that device, in all three."""
    text = ONE + "    a = allocate f32[2] strides [1] on cuda:7\n"
    program = verify(parse(text + "    return a\n"))
    for wrapper in WRAPPERS:
        with pytest.raises((RuntimeError, AssertionError, NotImplementedError)) as error:
            plain.load(wrapper, program, {})([torch.ones(2)])
        assert "cuda" in str(error.value).lower(), wrapper


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=torch_faults.ERRORS_IN_C if n == "an op" else ()) for n in CHECKS],
)
def test_checks_fail_alike(plain: Forms, name: str) -> None:
    """No check is dropped; each language raises the same exception, and stays usable."""
    case = CHECKS[name]
    program = verify(parse(ONE + case.lines + "    return none\n"))
    inputs = -np.abs(X)
    if case.interpreted:
        with pytest.raises(case.error):
            run_host(program, [inputs.copy()], externs=externs({}))
    for wrapper in WRAPPERS:
        run = plain.load(wrapper, program, {})
        for _ in range(2):
            with pytest.raises(case.error) as error:
                run([tensor(inputs)])
            assert case.message in str(error.value), wrapper


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.complex64], ids=str)
def test_nan_checks_take_every_type(plain: Forms, dtype: torch.dtype) -> None:
    text = ONE + '    assert_finite x from "q"\n    return x\n'
    program = verify(parse(text))
    for wrapper in WRAPPERS:
        run = plain.load(wrapper, program, {})
        run([torch.ones(3).to(dtype)])
        with pytest.raises(AssertionError, match="buffer q holds 1 NaN and 0 infinite of 3"):
            run([torch.tensor([1, torch.nan, 2]).to(dtype)])


def test_a_kernels_check_fails_alike(plain: Forms) -> None:
    text = """host.program 1 @main
  parameter x tensor
  parameter i tensor
  kernel k0 on cpu (i0 < 2)
    parameter p0: i64[2] strides [1] on cpu
    parameter p1: f32[12] strides [1] on cpu
    parameter p2: f32[2] strides [1] on cpu
    outer
      j = load p0[i0]
      t0 = bind j below 12 check
      a = load p1[t0]
      store p2[i0], a
  do
    y = allocate f32[2] strides [1] on cpu
    launch k0 (i, x, y)
    return y
"""
    program = verify(parse(text))
    plain.check(program, [X, np.asarray([3, 11])])
    for wrapper in WRAPPERS:
        with pytest.raises(IndexError, match="out of range"):
            plain.load(wrapper, program, {})([tensor(X), torch.tensor([3, 12])])


# Memory -------------------------------------------------------------------------------------------

MEMORY = """host.program 1 @main
  constant w: f32[8, 4] strides [4, 1] on cpu key weight
  parameter x tensor
  parameter n size
  do
    s0 = dim x 0
    w = constant weight
    conform x to f32[s0, 8] strides [8, 1] on cpu mend nothing
    pool = pool 16*s0 + 64 on cpu
    a = place pool at 64 as f32[s0, 4] strides [4, 1]
    extern aten.mm.default (x, w) -> (a) out aten.mm.out names (out)
    extern aten.gelu.default (a) with {approximate="tanh"} -> (g)
    extern aten.sum.dim_IntList (g, [1], true) with {dtype=<dtype float64>} -> (s)
    extern aten.split.Tensor (g, 2, 1) -> ([left, right])
    extern aten.topk.default (g, 2) -> (v, i)
    i0 = view i as i64[s0] strides [2] offset 0
    extern aten.index.Tensor (g, [none, i0]) -> (picked)
    extern hosttest.scaled.default (x, 2.5) with {more=3} -> (scaled, [more, none2])
    profile "range"
      extern aten.cat.default ([left, right], 1) -> (c)
    extern aten.var_mean.dim (g, none, false) -> (var, mean)
    assert_finite var from "var"
    s1 = parameter n
    extern aten.narrow.default (c, 1, 0, (s1)) -> (last)
    return s, left, [v, (s0)], i, picked, scaled, more, c, mean, last, x
"""


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def check_growth(some: Callable[[int], None], calls: int) -> None:
    """Check that `calls` calls, made by `some`, leave less than 8 bytes each.

    A leak shows in each of three rounds; what else a process allocates does not.
    """
    grown = []
    for _ in range(3):
        before = resident()
        some(calls)
        grown.append(resident() - before)
    assert min(grown) <= 8 * calls + (1 << 17)


@pytest.mark.parametrize("failing", ["nothing", "a size", "NaN", "an op", "a hook"])
def test_many_calls_leave_nothing(
    plain: Forms, failing: str, request: pytest.FixtureRequest
) -> None:
    """Whether they end well or in an error; `nox -s leaks` makes 10,000 calls of each kind."""
    program = verify(parse(MEMORY))
    run = plain.load("cpp", program, {"weight": torch.randn(8, 4)})
    x, n = torch.randn(5, 8), 2
    match failing:
        case "a size":
            x = torch.randn(5, 7)
        case "NaN":
            x = torch.full((5, 8), torch.nan)
        case "an op":
            n = 99
        case "a hook":
            x = torch.randn(5, 8, dtype=torch.float64)
    slow = failing in ("an op", "a hook")  # torch looks up a backtrace for each exception
    calls = int(request.config.getoption("--calls", None) or (100 if slow else 2000))

    def some(count: int) -> None:
        for turn in range(count):  # an argument that the caller keeps, then one that it does not
            if failing == "nothing":
                run([x if turn % 2 else x.clone(), n])
                continue
            with pytest.raises((RuntimeError, AssertionError, IndexError)):
                run([x if turn % 2 else x.clone(), n])

    some(min(calls, 500))
    check_growth(some, calls)


def test_results_leave_nothing_where_torch_tells_no_way_to_wrap_them(
    plain: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.11, which takes tensors over from capsules only."""
    monkeypatch.setattr(cpp, "_wrap_address", lambda: 0)
    program = verify(parse(MEMORY))
    run = plain.load("cpp", program, {"weight": torch.randn(8, 4)})
    retained = [run([torch.randn(5, 8), 2]) for _ in range(500)]

    def some(count: int) -> None:
        for _ in range(count):
            run([torch.randn(5, 8), 2])

    check_growth(some, 2000)
    actual = torch.utils._pytree.tree_leaves(retained)
    assert all(torch.isfinite(t).all() for t in actual if isinstance(t, torch.Tensor))


# Machines without a compiler ----------------------------------------------------------------------


def test_without_a_compiler_host_programs_are_in_python(
    cache_root: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """One warning; kernels that another way provides still run."""

    def find(*_: Any) -> None:
        raise ToolchainError.of("GY-BUILD-001", "no compiler")

    monkeypatch.setattr(cpp, "find_toolchain", find)
    torch._dynamo.reset()
    options = {"strict": True, "progress": False, "wrapper": "cpp"}
    records: list[GraphRecord] = []
    config = Config(cache_root / "bare", 1 << 30, "")
    with Session(options=options, config=config, observer=records.append) as session:
        compiled = torch.compile(lambda x: x.sin() + 1, backend=session.backend)
        for size in (3, 4):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert records and all(r.host_text.startswith('"""Host program') for r in records)
    assert len([w for w in recwarn if "GY-WRAPPER-001" in str(w.message)]) == 1


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_integers_that_nothing_uses_may_be_symbolic(wrapper: str) -> None:
    """The ragged size of a nested tensor is a symbol at run time, too."""
    options = {"strict": True, "progress": False, "cache": False, "wrapper": wrapper}
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with Session(options=options) as session:
        torch._dynamo.reset()
        run = torch.compile(lambda n: n.sin() * 2, backend=session.backend, dynamic=True)
        result = run(nested)
    for actual, part in zip(result.unbind(), parts, strict=True):
        torch.testing.assert_close(actual, part.sin() * 2)


def test_a_device_that_a_host_language_cannot_drive_gets_python(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """One warning that names the device, and no failure."""
    torch._dynamo.reset()
    target = evolve(CPU.probe(read_config()), wrapper_backends=("python",))
    options = {"strict": True, "progress": False, "cache": False, "wrapper": "cpp"}
    records: list[GraphRecord] = []
    with Session(
        options=options, targets={"cpu": (CPU, target)}, observer=records.append
    ) as session:
        x = torch.randn(5)
        got = torch.compile(lambda x: x.cos() - 1, backend=session.backend)(x)
        torch.testing.assert_close(got, x.cos() - 1)
    assert records and all(r.host_text.startswith('"""Host program') for r in records)
    (message,) = [w for w in recwarn if "GY-WRAPPER-002" in str(w.message)]
    assert "cpu kernels" in str(message.message)


def test_a_program_of_the_cache_starts_no_compiler(child: Any, tmp_path: Any) -> None:
    """Host program, kernels, and what calls them are found; only `find_toolchain` is answered."""
    script = """
import subprocess
from gyrator import Session
started = []
popen = subprocess.Popen
class Popen(popen):
    def __init__(self, args, *rest, **more):
        started.append(args[0] if isinstance(args, (list, tuple)) else args)
        super().__init__(args, *rest, **more)
subprocess.Popen = Popen
with Session(options={"strict": True, "wrapper": "cpp"}, observer=records.append) as session:
    y = torch.compile(f, backend=session.backend)(x, w)
torch.testing.assert_close(y, f(x, w))
report(started=[str(s) for s in started if "g++" in str(s) or "cc" in str(s)],
       cpp="gy_main" in records[0].host_text)
"""
    cold = child(script, cache=tmp_path / "cache")
    warm = child(script, cache=tmp_path / "cache")
    assert cold["cpp"] and warm["cpp"]
    assert cold["started"] and not warm["started"]
    assert not cold["warnings"] and not warm["warnings"]
    assert [r[2] for r in warm["records"]] == [True]


@pytest.mark.parametrize("wrapper", ["python", "fx"])
def test_a_start_executes_no_text_of_a_host_program(
    child: Any, tmp_path: Any, wrapper: str
) -> None:
    """Neither one that compiles nor one that finds the program stored."""
    script = f"""
import sys
from gyrator import Session
executed = []
def hook(event, args):
    if event in ("exec", "compile"):
        name = sys._getframe(1).f_globals.get("__name__", "")
        if name.startswith("gyrator"):
            executed.append(name)
sys.addaudithook(hook)
options = {{"strict": True, "wrapper": {wrapper!r}}}
with Session(options=options, observer=records.append) as session:
    y = torch.compile(f, backend=session.backend, dynamic=True)(x, w)
torch.testing.assert_close(y, f(x, w))
report(executed=executed)
"""
    starts = [child(script, cache=tmp_path / "cache") for _ in range(2)]
    assert [[r[2] for r in s["records"]] for s in starts] == [[False], [True]]
    assert [s["executed"] for s in starts] == [[], []]


def test_the_printed_python_computes_the_same(cache_root: Any) -> None:
    """With `debug_python`, whether compiled or stored: sizes, kernels, calls and loops."""
    config = Config(cache_root / "debugged", 1 << 30, "")

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actual = torch.nonzero(x.sum(0))
        y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
        return (y @ w).relu().softmax(-1), actual + x.shape[0]

    for options in ({}, {"debug_python": True}, {"debug_python": True, "timed": True}):
        torch._dynamo.reset()
        records: list[GraphRecord] = []
        chosen = {"strict": True, "progress": False} | options
        with Session(options=chosen, config=config, observer=records.append) as session:
            compiled = torch.compile(f, backend=session.backend, dynamic=True)
            for rows in (3, 5):
                x, w = torch.randn(rows, 4), torch.randn(4, 6)
                torch.testing.assert_close(compiled(x, w), f(x, w))
        assert {r.cached for r in records} == {bool(options)}
        timings = [r.timings() for r in records if r.timings is not None]
        assert all(calls == 2 for t in timings for calls, _ in t.values()), timings
        assert bool(timings) == ("timed" in options)


def _pooled(x: torch.Tensor) -> torch.Tensor:
    a, b = x.sum(0), x.sum(1)
    c = torch.sort(a.exp() + b.amax())[0]
    return torch.sort(c + b.cumsum(0)[0])[0] * a.amin()


def _watched(f: Any, *args: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    chosen = {"strict": True, "progress": False, "cache": False, "memory_asserts": True} | options
    with Session(options=chosen) as session:
        return torch.compile(f, backend=session.backend)(*args)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_memory_of_a_plan_passes_its_tracker(dynamic: bool) -> None:
    torch._dynamo.reset()
    options = {"strict": True, "progress": False, "cache": False, "memory_asserts": True}
    with Session(options=options) as session:
        compiled = torch.compile(_pooled, backend=session.backend, dynamic=dynamic)
        for n in (7, 12):
            x = torch.randn(n, n + 1, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            torch.testing.assert_close(compiled(x), _pooled(y), rtol=1e-4, atol=1e-4)
            compiled(x).sum().backward()
            _pooled(y).sum().backward()
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_memory_given_away_while_in_use_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from gyrator_scheduler.host import memory

    monkeypatch.setattr(memory, "assign_offsets", lambda lives, limit: [0] * len(lives))
    with pytest.raises(MemoryUseError, match=r"GY-RUNTIME-005: `.* = rt.from_pool.* in use since"):
        _watched(_pooled, torch.randn(7, 8))


def test_memory_that_an_op_keeps_is_found() -> None:
    retained: list[torch.Tensor] = []
    with torch.library._scoped_library("gyrator_keeps", "DEF") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", lambda x: retained.append(x) or x.sum(), "CPU")
        library.impl("look", lambda x: x.sum(), "Meta")

        def f(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.gyrator_keeps.look(x.exp()) + 1

        with pytest.raises(MemoryUseError, match=r"GY-RUNTIME-006: .*`.* = rt.allocate"):
            _watched(f, torch.randn(5))
    assert len(retained) == 1
