"""Search for miscompiled kernels: random ones are built, compared with their IR, and shrunk."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Reduce, ScanStep, SortStep, Store
from gyrator_ir.expr import ShapeFacts, Sym, sorted_symbols
from gyrator_ir.host.nodes import BindParameter, HostProgram, Launch, Parameter, Return
from gyrator_ir.host.print import show
from gyrator_ir.kernel.nodes import Kernel, Launchable
from gyrator_ir.modes import StoreMode
from gyrator_ir.provenance import Origin
from gyrator_ir.target import Capabilities
from gyrator_ir.types import Device
from gyrator_testing.kernels.random import FORMS, Limits, random_case
from gyrator_testing.kernels.shrink import facts_of, shrunk
from gyrator_testing.kernels.validate import Launch as Run
from gyrator_testing.kernels.validate import Verdict, validate

_RANDOM = ("rand", "randn", "randint")


class Refused(Exception):
    """The language refuses a kernel, with a reason: not a fault."""


Build = Callable[[Kernel, ShapeFacts], Run]
"""Emits, builds and loads a kernel and returns a function that runs it: see `validate.Launch`.

It raises `Refused` if the language refuses the kernel; any other exception is a fault."""


@frozen
class Fault:
    """A kernel that differs from its IR or cannot be built, shrunk as far as possible."""

    name: str
    """The name of the original random kernel, which contains its seed."""
    kernel: Kernel
    facts: ShapeFacts
    problem: str
    """What went wrong."""
    whole: Kernel
    """The kernel before shrinking."""

    @property
    def text(self) -> str:
        """A host program that launches the kernel, the input of `gyrator verify`."""
        return show(single_kernel_program(self.kernel, self.facts))


@frozen
class Findings:
    """The results of a search."""

    ran: int
    """Kernels that were built and ran."""
    left_out: Counter[str]
    """The number of kernels that did not run, by reason."""
    faults: tuple[Fault, ...]


@frozen(kw_only=True)
class Search:
    """A search for random kernels that a language miscompiles."""

    build: Build
    capabilities: Capabilities
    """Kernels that need more are skipped: the compiler does not generate them for such a device."""
    device: Device
    forms: Sequence[str] = FORMS
    limits: Limits = field(factory=Limits)
    folder: Path | None = None
    """While a kernel runs, its text is in `running.gy` in this folder, where it remains if the
    process dies."""

    def run(self, count: int, seed: int = 0, seconds: float = 0, faults: int = 1) -> Findings:
        """Try up to `count` kernels, until `faults` faults are found or the time is over.

        Args:
            count: the number of kernels to generate.
            seed: the seed of the first kernel; the others have consecutive seeds.
            seconds: a time limit; 0 for none.
            faults: stop after this many.
        """
        left_out: Counter[str] = Counter()
        results: list[Fault] = []
        ran, end = 0, time.monotonic() + seconds if seconds else float("inf")
        for number in range(seed, seed + count):
            if len(results) == faults or time.monotonic() > end:
                break
            case = random_case(
                number, self.forms[number % len(self.forms)], self.device, self.limits
            )
            facts = facts_of({Sym(name): n for name, n in case.sizes.items()})
            lack = lacking(case.kernel, self.capabilities)
            verdict = Verdict(skipped=f"needs {lack}") if lack else self.tried(case.kernel, facts)
            if verdict.difference:
                sizes = {Sym(name): n for name, n in case.sizes.items()}
                results.append(self._shrunk(case.kernel, sizes, verdict.difference))
            elif verdict.skipped:
                left_out[verdict.skipped] += 1
            ran += not verdict.skipped
        return Findings(ran, left_out, tuple(results))

    def tried(self, kernel: Kernel, facts: ShapeFacts) -> Verdict:
        """Build a kernel and compare it with its IR."""
        with _noted(self.folder, kernel, facts):
            try:
                run = self.build(kernel, facts)
            except Refused as refusal:
                return Verdict(skipped=f"refused: {refusal}")
            except Exception as error:
                return Verdict(difference=f"it cannot be built: {type(error).__name__}: {error}")
            return validate(kernel, facts, run)

    def _shrunk(self, kernel: Kernel, sizes: dict[Sym, int], message: str) -> Fault:
        differences = [message]

        def fails(smaller: Kernel) -> bool:
            facts = facts_of({s: sizes[s] for s in smaller.sizes})
            verdict = self.tried(smaller, facts)
            # A kernel that is wrong itself, or that is not built any more, is another fault.
            same = verdict.difference and _kind(verdict.difference) == _kind(message)
            if same:
                differences.append(verdict.difference)
            return bool(same)

        smallest, _ = shrunk(kernel, sizes, fails)
        facts = facts_of({s: sizes[s] for s in smallest.sizes})
        return Fault(kernel.name, evolve(smallest, name="k0"), facts, differences[-1], kernel)


def _kind(message: str) -> str:
    for start in ("it cannot be built", "it raised", "the IR itself"):
        if message.startswith(start):
            return ":".join(message.split(":")[:2])
    return "differs"


class _noted:
    """Store the text of a kernel in a file while it is built and run."""

    def __init__(self, folder: Path | None, kernel: Kernel, facts: ShapeFacts) -> None:
        self.path = None if folder is None else folder / "running.gy"
        self.program = (kernel, facts)

    def __enter__(self) -> None:
        if self.path is not None:
            self.path.write_text(show(single_kernel_program(*self.program)))

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def lacking(kernel: Kernel, capabilities: Capabilities) -> str:
    """Return the first requirement of a kernel that a device does not meet, or an empty string."""
    for dtype in {*(p.dtype for p in kernel.parameters), *(t.dtype for t in kernel.locals)}:
        if dtype not in capabilities.dtypes:
            return f"the element type {dtype.value}"
    types = {p.name: p.dtype for p in kernel.parameters}
    for s in kernel.statements:
        match s:
            case Reduce() if not capabilities.reductions:
                return "reductions"
            case ScanStep() if not capabilities.scans:
                return "scans"
            case SortStep() if not capabilities.sorts:
                return "sorts"
            case Bind() if not capabilities.indirect:
                return "addresses that depend on values"
            case Bind() if s.check and not capabilities.device_checks:
                return "checks of indices"
            case Store(mode=mode, buffer=b) if (
                mode is not StoreMode.SET and (types[b], mode) not in capabilities.atomics
            ):
                return f"atomic stores of {types[b].value}"
            case Let(op=op) if op in capabilities.ops_lacking or (
                op in _RANDOM and not capabilities.random
            ):
                return f"the op {op!r}"
            case Let(dtype=d) | Const(dtype=d) | IndexValue(dtype=d) if (
                d not in capabilities.dtypes
            ):
                return f"the element type {d.value}"
    for extent, top in _ordered(kernel, capabilities):
        if top and (extent is None or extent > top):
            return f"a range longer than {top}"
    return ""


def _ordered(kernel: Kernel, capabilities: Capabilities) -> Iterator[tuple[int | None, int]]:
    """Yield the length of each range that is scanned or sorted, and the longest allowed."""
    for s in kernel.statements:
        if isinstance(s, ScanStep | SortStep):
            top = capabilities.scan_extent if isinstance(s, ScanStep) else capabilities.sort_extent
            for axis in kernel.inner:
                yield None if axis.extent.free_symbols else int(str(axis.extent)), top


def single_kernel_program(
    kernel: Launchable, facts: ShapeFacts, origins: tuple[Origin, ...] = (), name: str = "main"
) -> HostProgram:
    """Return a program that launches one kernel on its arguments."""
    layouts = [e for p in kernel.parameters for e in (*p.shape, *p.strides)]
    symbols = sorted_symbols([*layouts, *kernel.sizes])
    tensors = tuple(p.name for p in kernel.parameters)
    parameters = [Parameter(name, "tensor") for name in tensors]
    parameters += [Parameter(f"size_{s.name}", "size") for s in symbols]
    binds = [BindParameter(s, f"size_{s.name}") for s in symbols]
    launch = Launch(kernel.name, tensors, kernel.sizes)
    return HostProgram(
        name, tuple(parameters), (), (kernel,), (*binds, launch, Return(())), facts, origins
    )  # fmt: skip
