"""A session: one compiler instance with its tables, its cache and its builders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field

from gyrator.config import Config, read_config
from gyrator.engine.compiled import NO_DECOMPOSITIONS, Decompositions
from gyrator.engine.engine import Engine
from gyrator.engine.lazy import ShippedWrapper
from gyrator.engine.parts import PartCompiler
from gyrator.frontend.aot import Frontend
from gyrator.frontend.freezing import SharedConstants
from gyrator.options import Options, environment_options, make_options
from gyrator.reports.records import Observer, ignore_record
from gyrator.store.content_hash import decompositions_hash, passes_hash
from gyrator.store.travel import record
from gyrator.targets import TargetDefinition, installed, probed
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.passes import PassEdits
from gyrator_ir.target import Target
from gyrator_runtime.cache import Cache
from gyrator_runtime.collector import only_new_objects

if TYPE_CHECKING:
    from gyrator_lowering.table import LoweringTable

_WRAPPERS = MappingProxyType(
    {
        "python": ShippedWrapper("python", "gyrator_wrapper_python.stage", "PythonWrapper"),
        "cpp": ShippedWrapper(
            "cpp", "gyrator.wrappers.cpp", "TorchCppWrapper", package="gyrator_wrapper_cpp"
        ),
        "fx": ShippedWrapper("fx", "gyrator_wrapper_fx.stage", "FxWrapper"),
    }
)


def _as_options(options: Options | Mapping[str, Any] | None) -> Options:
    return options if isinstance(options, Options) else make_options(options=options)


@define(kw_only=True, eq=False)
class Session:
    """Owns the tables, the cache and the builders of one compiler. Use as a context manager.

        with Session(options={"numerics": "fast"}) as session:
            fast = torch.compile(model, backend=session.backend)

    Two sessions share nothing but the cache folder; they may work in two threads at once.
    """

    options: Options = field(factory=environment_options, converter=_as_options)
    config: Config = field(factory=read_config)
    rules: LoweringTable | None = None
    """Which rule lowers what; None for the table that we ship."""
    passes: PassEdits = field(factory=PassEdits)
    """Which passes are added, replaced or dropped. PassError where there is none of a name."""
    _targets: Mapping[str, tuple[TargetDefinition, Target]] | None = None
    decompositions: Decompositions = NO_DECOMPOSITIONS
    """What takes ops apart before any pass sees them, in place of our functions and PyTorch's, by
    op (`torch.ops.aten.softplus.default`); None keeps an op whole."""
    parts: PartCompiler | None = None
    """What compiles a part of every graph in Gyrator's place."""
    wrappers: Mapping[str, WrapperBackend] = _WRAPPERS
    observer: Observer = ignore_record
    _cache: Cache | None = None
    _uninitialised: tuple[TargetDefinition, ...] = field(default=(), init=False)
    _engines: dict[Options, Engine] = field(factory=dict, init=False)
    _constants: SharedConstants = field(factory=SharedConstants, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse edits that name nothing, and tables that are none, before anything is compiled."""
        if self.passes.edits:
            from gyrator.engine.passes import pipelines  # the stages take 0.5 s to import

            self.passes.check(pipelines())
            passes_hash(self.passes)
        if self.decompositions:
            from gyrator_lowering.decompositions import edited

            edited({}, self.decompositions)
            decompositions_hash(self.decompositions)

    @property
    def targets(self) -> Mapping[str, tuple[TargetDefinition, Target]]:
        """By device type: those given, or those installed whose devices this process uses."""
        if self._targets is None or not all(d.uninitialised() for d in self._uninitialised):
            loaded = installed(self.config)
            self._uninitialised = tuple(d for _, d in loaded if d.uninitialised())
            self._targets = probed(self.config, loaded, initialise=False)
        return self._targets

    def backend(
        self,
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile a graph of Dynamo's; what `torch.compile(f, backend=session.backend)` calls."""
        chosen = make_options(mode, options, self.options)
        frontend = Frontend(self.engine(chosen), chosen, self.cache, self._constants)
        with only_new_objects():
            return frontend.compile(gm, example_inputs)

    def engine(self, options: Options) -> Engine:
        """Return the compiler of ATen graphs for these options."""
        with self._lock:
            targets = self.targets
            found = self._engines.get(options)
            if found is None or found.targets is not targets:
                found = self._engines[options] = Engine(
                    options=options,
                    config=self.config,
                    rules=self.rules,
                    passes=self.passes,
                    decompositions=self.decompositions,
                    parts=self.parts,
                    targets=targets,
                    wrappers=self.wrappers,
                    cache=self.cache,
                    observer=self.observer,
                )
            return found

    @property
    def cache(self) -> Cache:
        """The cache folder, opened at first use."""
        if self._cache is None:
            self._cache = Cache(self.config.cache_root, self.config.cache_bytes, used=record)
        return self._cache

    @property
    def constant_bytes(self) -> int:
        """Memory of the constants that frozen programs keep beside the parameters (`freezing`)."""
        return self._constants.bytes

    @property
    def recorded_graphs(self) -> int:
        """Device graphs that programs of this session have recorded (option `device_graphs`)."""
        with self._lock:
            return sum(engine.memory.recorded for engine in self._engines.values())

    def close(self) -> None:
        """Wait for builders and forget the engines. Compiled functions stay usable."""
        with self._lock:
            engines = list(self._engines.values())
            self._engines.clear()
        for engine in engines:
            engine.close_loaders()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def default_session() -> Session:
    """Return the session that serves `torch.compile(backend="gyrator")`, opened at first use."""
    return Session()
