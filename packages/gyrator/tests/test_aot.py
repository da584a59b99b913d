"""Packages: files that give what eager mode gives, and for anything else an error with a code."""

import gc
import itertools
import json
import operator
import os
import platform
import struct
import subprocess
import sys
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import sympy
import torch
from attrs import evolve
from forked import run_forked
from safetensors.torch import load as load_safetensors
from safetensors.torch import save_file
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.functions import Mod

import gyrator.aot as aot
from gyrator.aot.trace import size_limits
from gyrator.autotune.library import Measure
from gyrator.options import OptionError
from gyrator_ir.diagnostics import GyratorError, UnsupportedError
from gyrator_runtime.host.externs import overload
from gyrator_runtime.package import loader as loading
from gyrator_runtime.package import model as models
from gyrator_runtime.package.archive import ALIGNMENT, Archive, Raw, file_hash, write_archive
from gyrator_runtime.package.manifest import MANIFEST, WEIGHTS, PackageManifest
from gyrator_runtime.warn import GyratorWarning

BATCH = Dim("batch", min=1, max=64)


class Block(nn.Module):
    """Weights, a counter that is written, a constant, arguments by name, and nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.table = torch.arange(12.0)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, power: int = 2) -> Any:
        self.calls.add_(1)
        y = torch.softmax(self.inner(x) * scale + self.table, -1) ** power
        return {"y": y, "size": x.shape[0], "same": x}, y.sum(0)


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> tuple[Block, Path]:
    """A module, and its package with a dynamic batch."""
    torch.manual_seed(0)
    model = Block().eval()
    path = tmp_path_factory.mktemp("block") / "block.gya"
    shapes = {"x": {0: BATCH}, "scale": None, "power": None}
    inputs = {"scale": torch.ones(12), "power": 3}
    aot.compile(model, (torch.randn(3, 12),), kwargs=inputs, dynamic_shapes=shapes, package=path)
    model.calls.zero_()
    return model, path


def _package(tmp_path: Path, model: nn.Module, *inputs: Any, **more: Any) -> aot.Model:
    return aot.load(aot.compile(model, inputs, package=tmp_path / "model.gya", **more))


def _rewritten(path: Path, to: Path, **changes: Any) -> Path:
    """Write a package with fields of its manifest replaced."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = PackageManifest.from_json(members[MANIFEST])
    weights = members.pop(WEIGHTS)
    members[MANIFEST] = evolve(manifest, **changes).to_json().encode()
    stored = Raw(len(weights), "", lambda file: file.write(weights))
    write_archive(to, {**members, WEIGHTS: stored})
    return to


def test_a_package_gives_what_the_module_gives(block: tuple[Block, Path]) -> None:
    model, path = block
    fast = aot.load(path)
    model.calls.zero_()

    for n in (1, 2, 5, 64):
        x, scale = torch.randn(n, 12), torch.randn(12)
        with torch.no_grad():
            expected = model(x, scale=scale, power=3)
        inputs = fast(x, power=3, scale=scale)
        torch.testing.assert_close(inputs, expected)
        assert inputs[0]["same"] is x

    assert fast.runner == "native"
    assert int(fast.weights["calls"]) == 4


@pytest.mark.parametrize("option", ["max_autotune", "freezing"])
def test_what_is_timed_is_not_in_the_package(tmp_path: Path, option: str) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    x = torch.randn(32, 64)
    packaged = _package(tmp_path, model, x, options={option: True})
    with torch.no_grad():
        torch.testing.assert_close(packaged(x), model(x))
    with zipfile.ZipFile(tmp_path / "model.gya") as archive:
        names = archive.namelist()
    assert sum(name.startswith("plans/") for name in names) == 1, names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (0, 6)])
def test_types_and_sizes(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    class Mixed(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (a * b + a, a.amax(1))

    def made(of: tuple[int, ...]) -> torch.Tensor:
        return (torch.randn(of) * 8).to(dtype)

    def strided() -> tuple[torch.Tensor, torch.Tensor]:
        return made(shape[::-1]).t(), made((shape[0], 12))[:, ::2]

    plain = made(shape), made(shape)
    for kind, (first, second) in enumerate(
        ((plain, (made(shape), plain[0])), (strided(), strided()))
    ):
        (tmp_path / str(kind)).mkdir()
        fast = _package(tmp_path / str(kind), Mixed(), *first)
        torch.testing.assert_close(fast(*second), Mixed()(*second))
    if shape == (4, 6):
        with pytest.raises(GyratorError, match=r"GY-RUNTIME-090: the input a is .* strides"):
            fast(*plain)


def test_results_with_names_of_torch_are_tuples(tmp_path: Path) -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"sorted": x.sort(stable=True), "both": [x.aminmax(), x + 1]}

    x = torch.randn(5, 7)
    package = aot.compile(
        Sorted(), (torch.randn(4, 7),), dynamic_shapes=({0: BATCH},), package=tmp_path / "m.gya"
    )
    got, want = aot.load(package)(x), Sorted()(x)
    assert type(got["sorted"]) is tuple and type(got["both"][0]) is tuple
    got, want = (tree_leaves(results) for results in (got, want))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_nothing_that_compiles_is_imported(block: tuple[Block, Path]) -> None:
    program = """
import json, sys
import torch
import gyrator.aot
fast = gyrator.aot.load(sys.argv[1])
fast(torch.ones(2, 12), scale=torch.ones(12), power=3)
print(json.dumps([fast.runner, sorted(sys.modules)]))
"""
    command = [sys.executable, "-W", "error", "-c", program, str(block[1])]
    environment = {**os.environ, "PATH": "", "GYRATOR_CACHE_DIR": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    runner, modules = json.loads(done.stdout)

    ours = {m.partition(".")[0] for m in modules if m.startswith("gyrator")}
    assert runner == "native"
    assert ours == {"gyrator", "gyrator_ir", "gyrator_runtime"}
    assert not {"triton", "torch._dynamo", "torch._inductor", "gyrator.session"} & set(modules)


def _calls(model: aot.Model) -> dict[str, tuple[str, Any]]:
    x, scale = torch.randn(3, 12), torch.randn(12)
    return {
        "too few": ("GY-PACKAGE-006", lambda: model(x)),
        "too many": ("GY-PACKAGE-006", lambda: model(x, scale, 3, 4)),
        "unknown name": ("GY-PACKAGE-006", lambda: model(x, scale=scale, power=3, more=1)),
        "twice": ("GY-PACKAGE-006", lambda: model(x, scale, 3, x=x)),
        "structure": ("GY-PACKAGE-006", lambda: model([x], scale=scale, power=3)),
        "constant": ("GY-PACKAGE-007", lambda: model(x, scale=scale, power=2)),
        "constant's type": ("GY-PACKAGE-007", lambda: model(x, scale=scale, power=3.0)),
        "no tensor": ("GY-PACKAGE-007", lambda: model(3, scale=scale, power=3)),
        "element type": ("GY-PACKAGE-007", lambda: model(x.double(), scale=scale, power=3)),
        "device": ("GY-PACKAGE-007", lambda: model(x.to("meta"), scale=scale, power=3)),
        "sparse": ("GY-PACKAGE-007", lambda: model(x.to_sparse(), scale=scale, power=3)),
        "rank": ("GY-PACKAGE-007", lambda: model(x[0], scale=scale, power=3)),
        "size": ("GY-PACKAGE-007", lambda: model(x[:, :5], scale=scale, power=3)),
        "above": ("GY-PACKAGE-007", lambda: model(torch.zeros(65, 12), scale=scale, power=3)),
        "below": ("GY-PACKAGE-007", lambda: model(torch.zeros(0, 12), scale=scale, power=3)),
        "entry": ("GY-PACKAGE-005", lambda: model.entry("backward")),
        "unknown weight": ("GY-PACKAGE-008", lambda: model.replace({"outer": x})),
        "weight's size": ("GY-PACKAGE-008", lambda: model.replace({"inner.bias": x})),
        "weight's type": ("GY-PACKAGE-008", lambda: model.replace({"inner.bias": 3})),
        "missing weight": ("GY-PACKAGE-008", lambda: model.load_weights({"inner.bias": scale})),
    }


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


class Nested(torch.nn.Module):
    def forward(self, d: dict[str, Any], *, pair: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return d["u"][0] + d["v"] * pair[1]


def test_an_argument_of_another_structure_is_named(tmp_path: Path) -> None:
    x = torch.randn(3)
    right: Any = ({"u": [x], "v": x}, (x, x))
    path = aot.compile(Nested(), right[:1], kwargs={"pair": (x, x)}, package=tmp_path / "m.gya")
    model = aot.load(path)
    torch.testing.assert_close(model(right[0], pair=right[1]), x + x * x)
    wrong: list[tuple[Any, Any, str]] = [
        ({"u": [x, x], "v": x}, (x, x), r"d\['u'\] is list\[2\], not list\[1\]"),
        ({"u": x, "v": x}, (x, x), r"d\['u'\] is a single value, not list\[1\]"),
        ({}, (x, x), r"d is dict\[\], not dict\['u', 'v'\]"),
        (right[0], [x, x], r"pair is list\[2\], not tuple\[2\]"),
        (right[0], Pair(x, x), r"pair is namedtuple\[2\], not tuple\[2\]"),
    ]
    for d, pair, message in wrong:
        with pytest.raises(aot.PackageError, match=f"the argument {message}"):
            model(d, pair=pair)


def test_dicts_in_another_order_are_those_of_the_exported_module(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def forward(self, d: dict[str, Any]) -> torch.Tensor:
            return d["u"][0]["a"] - 2 * d["u"][0]["b"] + 3 * d["v"]

    a, b, v = torch.randn(3, 5)
    right: Any = {"u": [{"a": a, "b": b}], "v": v}
    program = export(Chosen(), (right,))
    model = aot.load(aot.compile(program, package=tmp_path / "m.gya"))
    inside: Any = {"u": [{"b": b, "a": a}], "v": v}
    other: Any = {"v": v, "u": inside["u"]}  # whose parts the module compares by place
    torch.testing.assert_close(program.module()(inside), Chosen()(right))
    for d in (inside, other):
        torch.testing.assert_close(model(d), Chosen()(right))
    for wrong in ({**other, "w": v}, OrderedDict(other)):
        with pytest.raises(ValueError, match="tree spec"):
            program.module()(wrong)
        with pytest.raises(aot.PackageError, match="GY-PACKAGE-006"):
            model(wrong)


@pytest.mark.parametrize("case", list(_calls(None)))  # type: ignore[arg-type]  # names alone
def test_a_wrong_call_is_an_error_with_a_code(block: tuple[Block, Path], case: str) -> None:
    model = aot.load(block[1])
    code, call = _calls(model)[case]

    with pytest.raises(aot.PackageError) as caught:
        call()

    assert caught.value.diagnostic.code == code
    model(torch.randn(3, 12), torch.randn(12), 3)  # still usable, and by place


def test_sizes_that_belong_together(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cat([a, a]) + b

    n = Dim("n", min=1, max=100)
    shapes = {"a": {0: n}, "b": {0: 2 * n}}
    fast = _package(tmp_path, Pair(), torch.ones(5), torch.ones(10), dynamic_shapes=shapes)
    for size in (1, 4, 33):
        a, b = torch.randn(size), torch.randn(2 * size)
        torch.testing.assert_close(fast(a, b), Pair()(a, b))
    for wrong in ((3, 7), (3, 8), (101, 202)):
        with pytest.raises(aot.PackageError, match="GY-PACKAGE-007"):
            fast(*map(torch.ones, wrong))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 5, 3), nn.Conv2d(3, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0, lambda x: self.one(x).relu(), self.other, (x,))


@pytest.mark.parametrize("example", [3, 20])
def test_the_batch_of_convolutions_in_branches_is_what_was_exported(
    tmp_path: Path, example: int
) -> None:
    model, path, file = Branches().eval(), tmp_path / "model.gya", tmp_path / "model.pt2"
    exported = export(model, (torch.randn(example, 3, 7, 8),), dynamic_shapes=({0: BATCH},))
    torch.export.save(exported, file)
    aot.compile(torch.export.load(file), package=path)
    (batch,) = aot.inspect(path).entries[0].symbols
    assert (batch.least, batch.most) == (1, 64)
    fast = aot.load(path)
    for count in (2, 16, 64):
        for shift in (-1, 1):
            x = torch.randn(count, 3, 7, 8) + shift
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("runtime", ["python", "libtorch", "standalone"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_batch_of_a_convolution_is_what_was_exported(
    tmp_path: Path, layout: torch.memory_format, runtime: Any
) -> None:
    """ATen's libraries for convolutions differ from 16 images on, and a program that is read from a
    file has not chosen one yet."""
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 1)).eval()
    model.to(memory_format=layout)

    def images(count: int) -> torch.Tensor:
        return torch.randn(count, 3, 7, 8).to(memory_format=layout)

    for example in (3, 20):
        path, file = tmp_path / "model.gya", tmp_path / "model.pt2"
        torch.export.save(export(model, (images(example),), dynamic_shapes=({0: BATCH},)), file)
        aot.compile(torch.export.load(file), runtime=runtime, package=path)
        (batch,) = aot.inspect(path).entries[0].symbols
        assert (batch.least, batch.most) == (1, 64)
        fast = aot.load(path)
        for count in (2, 15, 16, 64):
            x = images(count)
            with torch.no_grad():
                expected = model(x)
            found = fast(x)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


def test_a_program_with_compound_sizes_is_read_from_a_file(tmp_path: Path) -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten().sin()

    file = tmp_path / "model.pt2"
    exported = export(Flat(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.export.save(exported, file)
    program = torch.export.load(file)
    before = str(program)
    fast = aot.load(aot.compile(program, package=tmp_path / "model.gya"))
    assert str(program) == before
    for count in (2, 7):
        x = torch.randn(count, 3)
        torch.testing.assert_close(fast(x), x.flatten().sin())


class Gathered(nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.gather(1, index)


class Fours(nn.Module):
    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return values[0].reshape(-1, 4).sum(1) + values[1].sum()


@pytest.mark.parametrize("runtime", ["python", "libtorch", "standalone"])
@pytest.mark.parametrize("source", ["memory", "file"])
@pytest.mark.parametrize("model", [Gathered(), Fours()], ids=lambda m: type(m).__name__)
def test_conditions_between_sizes_are_checked(
    tmp_path: Path, model: nn.Module, source: str, runtime: Any
) -> None:
    def inputs(n: int, m: int) -> tuple[torch.Tensor, ...]:
        if isinstance(model, Fours):
            return torch.randn(4 * m + n), torch.randn(3, 2)
        return torch.randn(m + n, 6), torch.randint(6, (m, 3))

    dynamic: Any = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    shapes = (dynamic,) if isinstance(model, Fours) else dynamic
    program = export(model, inputs(0, 4), dynamic_shapes=shapes)
    if source == "file":
        torch.export.save(program, tmp_path / "model.pt2")
        program = torch.export.load(tmp_path / "model.pt2")
    fast = aot.load(aot.compile(program, package=tmp_path / "model.gya", runtime=runtime))
    wrong = 2 if isinstance(model, Fours) else -2
    for m in (4, 7):
        right = inputs(0, m)
        torch.testing.assert_close(fast(*right), model(*right))
        with pytest.raises(RuntimeError, match=r"do not satisfy .*size\(\)\[0\]"):
            fast(*inputs(wrong, m))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (
            "L['input'].size()[0] == 9 or not L['input'].size()[0] <= 5 * 3",
            {9: True, 7: False, 16: True},
        ),
        (
            "L['input'].size()[0] // 2 > 3 and L['input'].size()[0] != 10",
            {7: False, 8: True, 10: False},
        ),
        ("3 == 3 or L['input'].size()[0] == 4", {7: True}),
        ("3 == 3 and -L['input'].size()[0] + 1 < -7", {8: False, 9: True}),
    ],
)
def test_conditions_are_joined(tmp_path: Path, text: str, valid: dict[int, bool]) -> None:
    program = export(nn.Flatten(), (torch.randn(40, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    program._guards_code = [text]
    fast = aot.load(aot.compile(program, package=tmp_path / "model.gya"))
    for size, holds in valid.items():
        if holds:
            assert fast(torch.ones(size, 3)).shape == (size, 3)
        else:
            with pytest.raises(RuntimeError, match="do not satisfy"):
                fast(torch.ones(size, 3))


@pytest.mark.parametrize(
    "text", ["print(L)", "L['x'].new_empty(9)", "L['x'].size()[0] in (3, 4)", "L['x'].T"]
)
def test_conditions_are_data(tmp_path: Path, text: str) -> None:
    program = export(nn.Flatten(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    program._guards_code = [text]
    with pytest.raises(UnsupportedError, match=r"GY-AOT-001.*cannot check that sizes satisfy"):
        aot.compile(program, package=tmp_path / "model.gya")


def test_an_input_that_is_written_must_lie_as_compiled(tmp_path: Path) -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x + 1

    fast = _package(tmp_path, Writes(), torch.ones(3, 4))
    x = torch.randn(3, 4)
    twice = x * 2
    torch.testing.assert_close(fast(x), twice + 1)
    torch.testing.assert_close(x, twice)
    with pytest.raises(GyratorError, match="GY-RUNTIME-090"):
        fast(torch.ones(4, 3).t())


def test_gradients_and_autocast_stay_outside(block: tuple[Block, Path]) -> None:
    model, path = block
    x = torch.randn(3, 12, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = aot.load(path)(x, scale=torch.ones(12), power=3)
    with torch.no_grad():
        expected = model(x, scale=torch.ones(12), power=3)
    torch.testing.assert_close(inputs, expected)
    assert not inputs[1].requires_grad and torch.is_grad_enabled()


def test_weights_are_shared_and_replaced(block: tuple[Block, Path], tmp_path: Path) -> None:
    model, path = block
    first = aot.load(path)
    second = first.instance()
    weight, calls = first.weights["inner.weight"], first.weights["calls"]
    assert weight.data_ptr() == second.weights["inner.weight"].data_ptr()
    assert calls.data_ptr() != second.weights["calls"].data_ptr()
    assert weight.data_ptr() % ALIGNMENT == 0

    other = Block().eval()
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    second.load_weights(tmp_path / "other.safetensors")
    x, scale = torch.randn(5, 12), torch.randn(12)
    with torch.no_grad():
        for fast, eager in ((first, model), (second, other)):
            expected = eager(x, scale=scale, power=3)[1]
            torch.testing.assert_close(fast(x, scale=scale, power=3)[1], expected)
    turned = torch.randn(12, 12).t()
    second.replace({"inner.weight": turned})
    other.inner.weight = nn.Parameter(turned)
    with torch.no_grad():
        expected = other(x, scale=scale, power=3)[1]
    torch.testing.assert_close(second(x, scale=scale, power=3)[1], expected)


def test_threads_see_one_set_of_weights_or_the_other(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.zeros(64)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.a - self.b

    fast = _package(tmp_path, Two(), torch.ones(64))
    x, wrong, stop = torch.ones(64), [], threading.Event()

    def call() -> None:
        while not stop.is_set():
            if not torch.equal(fast(x), x):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        fast.replace({name: torch.full((64,), float(turn)) for name in ("a", "b")})
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_entry_points_store_a_weight_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.head = nn.Linear(8, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    model = Tied().eval()
    tokens = {n: torch.randint(0, 10, (n, 4)) for n in (1, 8)}
    entries = {f"batch{n}": aot.EntryPoint(model, (t,)) for n, t in tokens.items()}
    fast = aot.load(aot.compile(entries, package=tmp_path / "tied.gya"))
    for n, inputs in tokens.items():
        torch.testing.assert_close(fast.entry(f"batch{n}")(inputs), model(inputs).detach())
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-005"):
        fast(tokens[1])
    with zipfile.ZipFile(tmp_path / "tied.gya") as archive:
        assert len(load_safetensors(archive.read(WEIGHTS))) == 1
    other = aot.EntryPoint(Tied(), (tokens[1],))
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-008"):
        aot.compile({"a": entries["batch1"], "b": other}, package=tmp_path / "two.gya")
    assert not (tmp_path / "two.gya").exists()


class Normed(nn.Module):
    """What freezing folds: a norm, a cast, a sum of weights; and a counter that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.turned = nn.Parameter(torch.randn(5, 6, dtype=torch.float64).t())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        sums = self.turned.float() + 1
        return self.layers(x).mean((2, 3)) @ sums, sums


def _normed() -> Normed:
    model = Normed().eval()
    for tensor in (*model.layers[1].parameters(), *model.layers[1].buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 2)
    return model


@pytest.mark.parametrize("target", [None, ("avx2", "avx512")])
def test_constants_are_computed_when_it_is_compiled(tmp_path: Path, target: Any) -> None:
    model, x = _normed(), torch.randn(4, 3, 8, 8)
    entries = {
        f"batch{n}": aot.EntryPoint(model, (x[:n],), dynamic_shapes=shapes)
        for n, shapes in ((4, ({0: BATCH},)), (1, None))
    }
    path, options = tmp_path / "model.gya", {"freezing": True}
    fast = aot.load(aot.compile(entries, package=path, options=options, target=target))
    with torch.no_grad():
        for n in (4, 1):
            expected = model(x[:n])
            for _ in range(2):  # results are the caller's: to write to them changes nothing else
                actual = fast.entry(f"batch{n}")(x[:n])
                torch.testing.assert_close(actual, expected)
                actual[1].zero_()
    assert fast.weights["calls"] == 4
    assert "turned" not in fast.weights and "layers.1.running_mean" not in fast.weights
    with zipfile.ZipFile(path) as archive:  # the constants of both are the same
        assert len(load_safetensors(archive.read(WEIGHTS))) == len(fast.weights) // 2 + 1
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-008"):
        fast.load_weights(model.state_dict())


def test_constants_are_computed_when_it_is_loaded(tmp_path: Path) -> None:
    model, other, x = _normed(), _normed(), torch.randn(4, 3, 8, 8)
    more: dict[str, Any] = {"options": {"freezing": True}, "constants": "load"}
    fast = _package(tmp_path, model, x, dynamic_shapes=({0: BATCH},), **more)
    assert fast.manifest.entries[0].constants is not None
    assert fast.weights.keys() == model.state_dict().keys()
    second = fast.instance()
    second.load_weights(other.state_dict())
    with torch.no_grad():
        for _ in range(2):
            for result, eager in ((fast, model), (second, other)):
                actual, expected = result(x[1:]), eager(x[1:])
                torch.testing.assert_close(actual, expected)
                actual[1].zero_()
        other.layers[1].bias.add_(3)
        second.replace({"layers.1.bias": other.layers[1].bias})
        torch.testing.assert_close(second(x), other(x))
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("when", ["compile", "load"])
@pytest.mark.parametrize(
    ("shapes", "target"), [(None, None), (({0: BATCH},), None), (None, ("plain", "avx2"))]
)
def test_weights_are_packed_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Any, shapes: Any, target: Any
) -> None:
    """Once for all instances, and again for a weight that is replaced."""
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 40)
    model, x = nn.Sequential(*layers).eval(), torch.randn(4, 3, 8, 8)
    other = nn.Sequential(nn.Conv2d(3, 6, 3), *layers[1:]).eval()
    monkeypatch.setattr(Measure, "packed", lambda *_: "onednn")
    called = []
    monkeypatch.setattr(models, "overload", lambda name: called.append(name) or overload(name))
    chosen = {"options": {"freezing": True}, "constants": when, "target": target}
    fast = _package(tmp_path, model, x, dynamic_shapes=shapes, **chosen)
    second = fast.instance()
    # a small product of a size that changes is left as it is
    kinds = ("convolution", "linear")[: 2 if shapes is None else 1]
    assert called == [f"mkldnn._reorder_{kind}_weight.default" for kind in kinds]
    if when == "load":
        second.load_weights(other.state_dict())
    else:
        second.replace({"0.bias": other[0].bias})
        other[0].weight = model[0].weight
    with torch.no_grad():
        for result, eager in ((fast, model), (second, other)):
            torch.testing.assert_close(result(x), eager(x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64")
@pytest.mark.parametrize("disturbed", [False, True])
def test_libraries_are_chosen_for_processors_with_more_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disturbed: bool
) -> None:
    """They are measured on this one. What cannot be measured for one level is the same for all."""
    answers = chain([None] if disturbed else [], repeat("onednn"))
    monkeypatch.setattr("gyrator.autotune.library.remembered", lambda *_: None)
    monkeypatch.setattr("gyrator.autotune.library._disturbed", cache(lambda root: {}))
    monkeypatch.setattr(Measure, "packed", lambda *_: next(answers))
    model = nn.Sequential(nn.Linear(96, 64), nn.GELU()).eval()
    x, path, options = torch.randn(32, 96), tmp_path / "model.gya", {"freezing": True}
    aot.compile(model, (x,), package=path, options=options, target=("plain", "avx512"))
    entry = aot.inspect(path).entries[0]
    assert [program.isa for program in entry.programs] == ["plain", "avx512"]
    assert bool(entry.packed) != disturbed
    with torch.no_grad():
        torch.testing.assert_close(aot.load(path)(x), model(x))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64")
@pytest.mark.parametrize("levels", [("plain", "avx2"), ("avx2", "avx512")])
def test_levels_whose_kernels_pack_weights_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: tuple[str, ...]
) -> None:
    """Their constants are the same, so that no kernel reads panels or weights of single
    channels."""
    monkeypatch.setattr(Measure, "packed", lambda *_: "kernels")
    depthwise = (nn.Conv2d(16, 16, n, padding=n // 2, groups=16) for n in (3, 5))
    pixels = nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1), nn.Flatten(), nn.Linear(8, 96)
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), *depthwise, *pixels
    model, x, path = nn.Sequential(*layers).eval(), torch.randn(1, 3, 8, 8), tmp_path / "m.gya"
    options = {"freezing": True}
    aot.compile(model, (x,), package=path, options=options, target=levels)
    programs = aot.inspect(path).entries[0].programs
    assert [program.isa for program in programs] == list(levels)
    with torch.no_grad():
        torch.testing.assert_close(aot.load(path)(x), model(x), rtol=1e-4, atol=1e-5)


def test_packages_without_libtorch_pack_no_weights(tmp_path: Path) -> None:
    model, x = nn.Conv2d(3, 8, 3).eval(), torch.randn(4, 3, 8, 8)
    fast = _package(tmp_path, model, x, options={"freezing": True}, runtime="standalone")
    assert not fast.manifest.entries[0].packed
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_when_constants_are_computed_is_one_of_two_times(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="GY-AOT-002"):
        _package(tmp_path, nn.ReLU(), torch.ones(2), constants="never")


def test_the_bytes_depend_on_the_model_alone(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_aot
test_aot.compile_block(Path(sys.argv[2]))
"""
    here, there = tmp_path / "here.gya", tmp_path / "there.gya"
    compile_block(here)
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(there)]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    more = {"GYRATOR_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": seed}
    subprocess.run(command, check=True, env=os.environ | more)
    assert file_hash(here) == file_hash(there)


def compile_block(path: Path) -> None:
    """Write a package for two levels of instructions."""
    torch.manual_seed(7)
    given = {"scale": torch.ones(12), "power": 3}
    example, levels = torch.ones(3, 12), ["avx2", "plain"]
    aot.compile(Block().eval(), (example,), kwargs=given, package=path, target=levels)


def test_the_weights_lie_aligned_and_are_a_safetensors_file(block: tuple[Block, Path]) -> None:
    model, path = block
    with open(path, "rb") as file:
        start, size = Archive(file).offset_and_size(WEIGHTS)
        file.seek(start)
        tensors = load_safetensors(file.read(size))
    assert start % ALIGNMENT == 0
    torch.testing.assert_close(tensors["inner.weight"], model.inner.weight.detach())


def test_the_highest_level_is_chosen_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "levels.gya"
    aot.compile(nn.Softmax(-1), (torch.ones(5, 7),), target=("plain", "avx2"), package=path)
    x = torch.randn(5, 7)
    for level, chosen in (("plain", "plain"), ("avx2", "avx2")):
        monkeypatch.setenv("GYRATOR_ISA", level)
        fast = aot.load(path)
        assert fast.isa == chosen
        torch.testing.assert_close(fast(x), torch.softmax(x, -1))
    only = aot.compile(nn.Softmax(-1), (x,), target="avx2", package=tmp_path / "only.gya")
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-004"):
        aot.load(only, isa="plain")


def test_another_process_is_told_what_does_not_fit(
    block: tuple[Block, Path], tmp_path: Path
) -> None:
    path, to = block[1], tmp_path / "changed.gya"
    changes = {
        "GY-PACKAGE-002": {"format": 99},
        "GY-PACKAGE-004": {"machine": "vax"},
    }
    for code, change in changes.items():
        with pytest.raises(aot.PackageError, match=code):
            aot.load(_rewritten(path, to, **change))
    for change in ({"least_torch": "99.0"}, {"plan_format": 99}):
        with pytest.raises(aot.PackageError, match="GY-PACKAGE-004"):
            aot.load(_rewritten(path, to, **change))


def test_without_its_native_runner_it_runs_in_python(
    block: tuple[Block, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = block
    monkeypatch.setattr(loading, "_modules", dict)
    with pytest.warns(GyratorWarning, match="GY-RUNTIME-001"):
        fast = aot.load(_rewritten(path, tmp_path / "pure.gya", runners=()))
    x, scale = torch.randn(4, 12), torch.randn(12)
    assert fast.runner == "pure"
    with torch.no_grad():
        expected = model(x, scale=scale, power=3)
    torch.testing.assert_close(fast(x, scale=scale, power=3), expected)


def test_a_damaged_file_is_an_error_or_does_no_harm(
    block: tuple[Block, Path], tmp_path: Path
) -> None:
    model, path = block
    whole, at = path.read_bytes(), tmp_path / "damaged.gya"
    x, scale = torch.randn(4, 12), torch.randn(12)
    with torch.no_grad():
        expected = model(x, scale=scale, power=3)[1]
    generator = torch.Generator().manual_seed(3)
    indices = torch.randint(0, len(whole), (150,), generator=generator).tolist()
    damaged = [whole[:n] for n in (0, 3, 30, 200, len(whole) // 2, len(whole) - 1)]
    for place in indices:
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        damaged.append(bytes(changed))
    refused = []
    for data in damaged:
        at.write_bytes(data)
        try:
            fast = aot.load(at, verify=True)
        except aot.PackageError as error:
            refused.append(error.diagnostic.code)
            continue
        torch.testing.assert_close(fast(x, scale=scale, power=3)[1], expected)
    assert set(refused) <= {f"GY-PACKAGE-00{n}" for n in (1, 2, 3)}
    assert len(refused) > 30  # most of the file is the runner, which this process has
    for foreign in (b"", b"PK\3\4", os.urandom(5000)):
        at.write_bytes(foreign)
        with pytest.raises(aot.PackageError, match="GY-PACKAGE-001"):
            aot.load(at)
    with zipfile.ZipFile(at, "w") as archive:
        archive.writestr("word/document.xml", "no package")
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-001"):
        aot.load(at)


def test_the_hash_that_is_expected(block: tuple[Block, Path]) -> None:
    path = block[1]
    aot.load(path, expected_sha256=file_hash(path).upper())
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-003"):
        aot.load(path, expected_sha256="0" * 64)


def test_a_changed_weight_is_seen_where_that_is_asked_for(
    block: tuple[Block, Path], tmp_path: Path
) -> None:
    data = bytearray(block[1].read_bytes())
    with open(block[1], "rb") as file:
        start, size = Archive(file).offset_and_size(WEIGHTS)
    data[start + size - 2] ^= 1
    changed = tmp_path / "weight.gya"
    changed.write_bytes(data)
    aot.load(changed)
    with pytest.raises(aot.PackageError, match=r"GY-PACKAGE-00[13]"):
        aot.load(changed, verify=True)
    struct.pack_into("<Q", data, start, 1 << 60)
    changed.write_bytes(data)
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-001"):
        aot.load(changed)


def test_loading_again_and_again_leaves_nothing(block: tuple[Block, Path]) -> None:
    def mapped() -> int:
        return sum("gyrator-" in line or ".gya" in line for line in open("/proc/self/maps"))

    def turn() -> None:
        aot.load(block[1])(torch.ones(2, 12), scale=torch.ones(12), power=3)

    for _ in range(3):
        turn()
    gc.collect()
    before = mapped(), len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(100):
        turn()
    gc.collect()
    assert (mapped(), len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def _no_memory(data: bytes) -> Any:
    raise OSError("no files in memory")


def test_it_loads_where_nothing_can_be_written(
    block: tuple[Block, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*, prefix: str, dir: Path | None = None) -> Any:  # as tempfile's
        if dir is None:
            raise OSError("read-only file system")
        return original(prefix=prefix, dir=dir)

    original = loading.tempfile.TemporaryDirectory
    monkeypatch.setattr(loading.tempfile, "TemporaryDirectory", refused)
    spare = loading._SHARED_MEMORY
    monkeypatch.setattr(loading, "_SHARED_MEMORY", Path("/nonexistent"))
    aot.load(block[1])(torch.ones(2, 12), scale=torch.ones(12), power=3)
    monkeypatch.setattr(loading, "in_memory", _no_memory)
    monkeypatch.setattr(loading, "_SHARED_MEMORY", spare)
    aot.load(block[1])(torch.ones(2, 12), scale=torch.ones(12), power=3)
    monkeypatch.setattr(loading, "_SHARED_MEMORY", Path("/nonexistent"))
    with pytest.raises(aot.PackageError, match="GY-PACKAGE-004"):
        aot.load(block[1])


def test_libraries_lie_in_memory_where_code_may_run_there(
    block: tuple[Block, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Path | None] = []

    def noted(*, prefix: str, dir: Path | None = None) -> Any:  # as tempfile's
        used.append(dir)
        return original(prefix=prefix, dir=dir)

    original = loading.tempfile.TemporaryDirectory
    monkeypatch.setattr(loading.tempfile, "TemporaryDirectory", noted)
    aot.load(block[1])
    assert not used
    monkeypatch.setattr(loading, "in_memory", _no_memory)
    here = os.statvfs("/")
    for flags, blocks in ((0, 1 << 40), (os.ST_NOEXEC, 1 << 40), (0, 0)):
        actual = SimpleNamespace(f_flag=flags, f_bavail=blocks, f_frsize=here.f_frsize)
        monkeypatch.setattr(loading.os, "statvfs", lambda folder, actual=actual: actual)
        aot.load(block[1])
    assert used == [Path("/dev/shm"), None, None]


def test_inputs_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "model.gya", torch.ones(2, 2)
    with pytest.raises(UnsupportedError, match=r"GY-AOT-001.*is a tensor\n.*`\(x,\)`"):
        aot.compile(nn.ReLU(), x, package=path)
    program = torch.export.export(nn.ReLU(), (x,))
    with pytest.raises(UnsupportedError, match=r"GY-AOT-001.*`dynamic_shapes` is set"):
        aot.compile(program, package=path, dynamic_shapes=({0: torch.export.Dim("n")},))


def test_different_weights_of_one_name_need_packages_of_their_own(tmp_path: Path) -> None:
    entries = {name: (nn.Linear(2, 2), (torch.ones(1, 2),)) for name in "ab"}
    with pytest.raises(aot.PackageError, match=r"GY-PACKAGE-008.*\n.*a package for each model"):
        aot.compile(entries, package=tmp_path / "both.gya")


def test_an_exported_program_is_packaged_as_it_is(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)).eval()
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        program = export(model, (x,), dynamic_shapes=({0: Dim("n", max=16)},))
        fast = aot.load(aot.compile(program, package=tmp_path / "conv.gya"))
        for n in (1, 2, 9):
            x = torch.randn(n, 3, 8, 8).to(memory_format=torch.channels_last)
            torch.testing.assert_close(fast(x), model(x), check_stride=n > 1)


def test_random_numbers_are_eagers(tmp_path: Path) -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x + torch.rand_like(x), 0.5, training=True)

    x = torch.randn(40, 40)
    fast = _package(tmp_path, Noise(), x)
    torch.manual_seed(11)
    expected = Noise()(x)
    torch.manual_seed(11)
    torch.testing.assert_close(fast(x), expected)


class Unregistered(NamedTuple):
    """A result that torch cannot name in a package."""

    first: torch.Tensor
    second: torch.Tensor


def test_what_cannot_be_packaged_says_so(tmp_path: Path) -> None:
    path, x = tmp_path / "no.gya", torch.ones(3)

    class Conjugated(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.complex(x, x).conj()

    with pytest.raises(UnsupportedError, match="GY-AOT-001"):
        aot.compile(Conjugated(), (x,), package=path)

    class Paired(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Unregistered(x, x + 1)

    with pytest.raises(UnsupportedError, match=r"GY-AOT-001(.|\n)*Unregistered"):
        aot.compile(Paired(), (x,), package=path)
    with pytest.raises(UnsupportedError, match="GY-AOT-001"):
        aot.compile(nn.ReLU(), package=path)
    with pytest.raises(UnsupportedError, match="GY-AOT-001"):
        aot.compile({}, package=path)
    with pytest.raises(OptionError, match="GY-AOT-002"):
        aot.compile(nn.ReLU(), (x,), target="avx1024", package=path)
    for option in ({"wrapper": "cpp"}, {"timed": True}, {"build_in_background": True}):
        with pytest.raises(OptionError, match="GY-AOT-003"):
            aot.compile(nn.ReLU(), (x,), options=option, package=path)
    assert not path.exists() and not list(tmp_path.iterdir())


def test_guards_on_the_number_of_elements_are_bounds_of_sizes() -> None:
    size = sympy.Symbol("s77", integer=True, positive=True)
    forms: tuple[Callable[[Any, Any], Any], ...] = (
        lambda n, mod: 288 * n,
        lambda n, mod: 288 * mod(n - 1, n) + 36 * mod(8 * n - 1, 8) + mod(288 * n - 1, 6),
    )
    for form, compare in itertools.product(forms, (operator.lt, operator.le)):
        expr = compare(form(size, Mod), 2**20)
        (most,) = size_limits([SimpleNamespace(expr=expr)]).values()
        holds = [compare(form(n, operator.mod), 2**20) for n in range(1, most + 3)]
        assert all(holds[:most]) and not holds[most + 1]
    both = [SimpleNamespace(expr=e) for e in (size < 9, sympy.true, 2 * size < 9)]
    assert size_limits(both) == {"s77": 4}


@pytest.mark.parametrize("text", ["n > 3", "Eq(n, 4)", "5 - n < 3", "n**2 < 9", "n + m < 9"])
def test_other_guards_are_refused(text: str) -> None:
    names = {name: sympy.Symbol(name, integer=True, positive=True) for name in "nm"}
    with pytest.raises(UnsupportedError, match="GY-AOT-001"):
        size_limits([SimpleNamespace(expr=sympy.sympify(text, names))])


def test_a_custom_op_is_called_by_name(tmp_path: Path) -> None:
    library = torch.library.Library("gyrator_package_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("gyrator_package_test::twice", torch.empty_like, lib=library)

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.gyrator_package_test.twice(x).sin()

    x = torch.randn(7)
    fast = _package(tmp_path, Custom(), x)
    torch.testing.assert_close(fast(x), (x * 2).sin())
    assert "gyrator_package_test.twice.default" in fast.manifest.entries[0].programs[0].calls
    program = "import sys, gyrator.aot as a; a.load(sys.argv[1])"
    done = run_forked(program, [str(tmp_path / "model.gya")])
    assert "GY-RUNTIME-002" in done.stderr
