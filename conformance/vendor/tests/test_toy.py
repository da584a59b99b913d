"""A device that is not ours, driven with every Gyrator module frozen.

The device can be registered once a process, and stays: the checks run in a child, and report.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

SCRIPT = r"""
import copy, json, sys, threading, types, warnings
import torch
from gyrator.config import read_config
from gyrator.session import Session
from gyrator.targets import discover
from gyrator_lowering.default import FAMILIES
from gyrator_lowering.table import TableBuilder

torch.manual_seed(int(sys.argv[1]))
caught = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, *rest: caught.append(str(message))
report = {}
f = lambda x, w: torch.softmax(x @ w, -1).relu() + torch.erf(x).sum()
x, w = torch.randn(5, 7), torch.randn(7, 9)
want = f(x, w)

# A device type that nobody serves: one warning, eager results.
ordinary = discover(read_config({"GYRATOR_CACHE_DIR": sys.argv[2]}))
assert "toy" not in ordinary, "the toy must be asked for"
from gyrator_toy.device import start
runtime = start()
with Session(targets=ordinary) as session:
    compiled = torch.compile(f, backend=session.backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("toy"), w.to("toy")).cpu(), want)
report["strange"] = [m for m in caught if "GY-" in m]
caught.clear()
torch._dynamo.reset()

class Frozen(types.ModuleType):
    def __setattr__(self, name, value):
        # The import of a submodule is no assignment of ours.
        if sys.modules.get(f"{self.__name__}.{name}") is not value:
            raise AttributeError(f"{self.__name__} is frozen: {name}")
        super().__setattr__(name, value)

def freeze():
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0].startswith("gyrator") and not isinstance(module, Frozen):
            module.__class__ = Frozen

freeze()
try:
    sys.modules["gyrator.session"].Session = 0
except AttributeError as error:
    report["frozen"] = str(error)

config = read_config({"GYRATOR_CACHE_DIR": sys.argv[2], "GYRATOR_TARGETS": "toy"})
records = []
with Session(config=config, options={"strict": True}, observer=records.append) as session:
    compiled = torch.compile(f, backend=session.backend)
    torch.testing.assert_close(compiled(x.to("toy"), w.to("toy")).cpu(), want)
    freeze()
    report["languages"] = sorted({k.language for r in records for k in r.kernels})
    report["calls"] = {e.target: e.reason for r in records for e in r.externs}

    # Two targets in one graph.
    records.clear()
    def both(a, b):
        return (a.to("toy") * 2 + b).cpu().exp() + a
    b = torch.randn(5, 7)
    mixed = torch.compile(both, backend=session.backend, fullgraph=True)
    torch.testing.assert_close(mixed(x, b.to("toy")), (x * 2 + b).exp() + x)
    # Tensors of the host in a graph of the device: indices, and numbers.
    def indexed(a, i, n):
        return a[i] * n + a.index_put((i,), n).sum() + a.exp()[i[:1]]
    i, n = torch.tensor([3, 1, 3, 0, 2])[::2], torch.tensor(0.5)
    found = torch.compile(indexed, backend=session.backend, fullgraph=True)(x.to("toy"), i, n)
    torch.testing.assert_close(found.cpu(), indexed(x, i, n))
    report["mixed"] = sorted({k.language for r in records for k in r.kernels})
    # Indices that the graph makes on the host are made on the device, where it has the op.
    def paired(a):
        k = (torch.arange(2)[:, None] * 2 + torch.arange(3)).flatten()
        pairs = torch.triu_indices(5, 5, 1)
        return (a[k] * 2).sum() + torch.exp(a @ a.t())[pairs[0], pairs[1]]
    for take in (paired, lambda a: a[torch.arange(3) + 1] * 2):
        records.clear()
        y, z = x.clone().requires_grad_(), x.to("toy").requires_grad_()
        right = take(y)
        right.sum().backward()
        found = torch.compile(take, backend=session.backend, fullgraph=True)(z)
        found.sum().backward()
        torch.testing.assert_close(found.cpu(), right)
        torch.testing.assert_close(z.grad.cpu(), y.grad)
    report["made"] = sorted({k.language for r in records for k in r.kernels})

    # The second device, and a stream of one's own.
    s = torch.Stream(device="toy:1")
    before = runtime.toy_launched(1, s.stream_id)
    torch._dynamo.reset()
    g = torch.compile(lambda t: torch.tanh(t) * 3, backend=session.backend)
    with s:
        y = g(x.to("toy:1"))
    torch.testing.assert_close(y.cpu(), torch.tanh(x) * 3)
    report["launched"] = runtime.toy_launched(1, s.stream_id) - before
    report["device"] = str(y.device)

    # Memory comes back.
    del y
    t = torch.randn(1000, device="toy")
    held = runtime.toy_bytes_held(0)
    for _ in range(20):
        g(t)
    report["leaked"] = runtime.toy_bytes_held(0) - held

    # AOTAutograd copies graphs with their constants.
    twisted = t.view(10, 100).t()
    twin = copy.deepcopy(twisted)
    report["copied"] = twin.stride() == (1, 100) and torch.equal(twin.cpu(), twisted.cpu())

    # Errors of indices are eager's.
    torch._dynamo.reset()
    pick = torch.compile(lambda t, k: t[k] + 1, backend=session.backend)
    try:
        pick(t, torch.tensor([2000], device="toy"))
    except IndexError as error:
        report["index"] = "out of range" in str(error)

# A warm session: no kernel is written again.
torch._dynamo.reset()
again = []
with Session(config=config, options={"strict": True}, observer=again.append) as session:
    compiled = torch.compile(f, backend=session.backend)
    torch.testing.assert_close(compiled(x.to("toy"), w.to("toy")).cpu(), want)
report["cached"] = [r.cached for r in again]

# The same in C++, and a guard of the second device in each host language.
torch._dynamo.reset()
records.clear()
options = {"strict": True, "wrapper": "cpp"}
with Session(config=config, options=options, observer=records.append) as session:
    compiled = torch.compile(f, backend=session.backend)
    torch.testing.assert_close(compiled(x.to("toy"), w.to("toy")).cpu(), want)
    g = torch.compile(lambda t: torch.tanh(t) * 3, backend=session.backend)
    before = runtime.toy_launched(1, s.stream_id)
    with s:
        y = g(x.to("toy:1"))
    torch.testing.assert_close(y.cpu(), torch.tanh(x) * 3)
    report["cpp"] = [runtime.toy_launched(1, s.stream_id) - before, str(y.device)]
    report["cpp"] += ["gy_main" in r.host_text for r in records]
    held = runtime.toy_bytes_held(0)
    for _ in range(20):
        g(t)
    report["cpp leaked"] = runtime.toy_bytes_held(0) - held

import ctypes
from pathlib import Path
from gyrator.store.programs import host_runner
from gyrator.wrappers.cpp import TorchCppWrapper, calling, cpp_host, load
from gyrator_ir.host.parse import parse
from gyrator_runtime.cache import Cache
from gyrator_runtime.progress import ProgressReporter
from gyrator.wrappers.fx import load_graph
from gyrator_ir.host.print import show
from gyrator_runtime.host.debug import load_text
from gyrator_runtime.native import LoadedKernel
from gyrator_runtime.plan.link import Linker
from gyrator_runtime.plan.lower import lower
from gyrator_wrapper_python.stage import PythonWrapper

GUARDED = '''host.program 1 @main
  parameter x tensor
  kernel k0 on toy:1 (i0 < 4)
    parameter p0: f32[4] strides [1] on toy:1
    outer
      a = load p0[i0]
      store p0[i0], a
  do
    y = allocate f32[4] strides [1] on toy:1
    copy x -> y
    with_device toy:1
      extern aten.add.Scalar (y, 1) -> (z)
      launch k0 (z)
    launch k0 (z)
    return z
'''
program = parse(GUARDED)
cache = Cache(Path(sys.argv[2]))
places = []
@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
def kernel(buffers, sizes):
    places.append(torch.accelerator.current_device_index())
    return 0
kernels = {"k0": LoadedKernel(ctypes.cast(kernel, ctypes.c_void_p).value)}
built = cpp_host(cache)
report["places"] = {}
linker = Linker(host_runner(cache), kernels, {})
emitted = TorchCppWrapper().emit(program)
units = built.submit(emitted.units, cache, 1, ProgressReporter())
plans = {
    "python": linker.link(lower(program)),
    "text": load_text(PythonWrapper().emit(program).text, linker),
    "cpp": load(built.caller, calling(program, emitted), units.addresses(), kernels, []),
    "fx": load_graph(show(program), linker, None),
}
for name, plan in plans.items():
    places.clear()
    (z,) = plan([torch.arange(4.0)])
    torch.testing.assert_close(z.cpu(), torch.arange(1.0, 5.0))
    report["places"][name] = list(places)

# Two sessions with different tables, in two threads at once.
def table(factor):
    builder = TableBuilder()
    for family in FAMILIES:
        family(builder)
    builder.rule("aten.relu.default", replace=True)(
        lambda b, t: b.pointwise(lambda ops, index: ops.get(t, index) * factor))
    return builder.build()

found = {}
barrier = threading.Barrier(2)
def work(factor, device):
    with Session(config=config, rules=table(factor), options={"strict": True}) as session:
        def relu(t):
            return torch.relu(t) + 1
        barrier.wait()
        compiled = torch.compile(relu, backend=session.backend)
        found[factor] = torch.equal(compiled(x.to(device)).cpu(), x * factor + 1)
threads = [threading.Thread(target=work, args=a) for a in ((2.0, "toy"), (4.0, "cpu"))]
[t.start() for t in threads]
[t.join() for t in threads]
report["sessions"] = found == {2.0: True, 4.0: True}
print("REPORT " + json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    if shutil.which("c++") is None and "CXX" not in os.environ:
        pytest.fail("the toy's runtime needs a C++ compiler")
    folder = tmp_path_factory.mktemp("toy")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "7", str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("REPORT "))


def test_an_unknown_device_runs_eagerly_with_one_warning(report):
    (message,) = report["strange"]
    assert "GY-TARGET-003" in message and "toy" in message


def test_the_device_needs_no_assignment_into_our_modules(report):
    assert report["frozen"] == "gyrator.session is frozen: Session"
    assert report["languages"] == ["toy"]


def test_what_the_device_lacks_is_a_call_with_a_reason(report):
    assert "the op 'erf' on f32" in report["calls"]["aten.erf.default"]


def test_indices_are_made_where_they_are_read(report):
    assert report["made"] == ["toy"]


def test_two_targets_share_one_graph(report):
    assert report["mixed"] == ["c++", "toy"]


def test_kernels_run_on_the_current_stream_and_device(report):
    assert report["launched"] == 1 and report["device"] == "toy:1"


def test_memory_comes_back(report):
    assert report["leaked"] == 0


def test_tensors_of_the_device_can_be_copied_deeply(report):
    assert report["copied"] is True


def test_a_bad_index_raises_what_eager_raises(report):
    assert report["index"] is True


def test_a_warm_session_finds_its_programs(report):
    assert report["cached"] and all(report["cached"])


def test_host_programs_in_cpp_drive_the_device(report):
    assert report["cpp"] == [1, "toy:1", True, True]
    assert report["cpp leaked"] == 0


def test_streams_are_those_of_the_program_in_every_host_language(report):
    assert report["places"] == {name: [1, 0] for name in ("python", "text", "cpp", "fx")}


def test_two_sessions_with_different_tables_run_in_two_threads(report):
    assert report["sessions"] is True
