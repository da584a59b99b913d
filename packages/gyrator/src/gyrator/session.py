"""A session: one compiler instance with its tables, its cache and its builders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from attrs import field

from gyrator.config import Config, read_config
from gyrator.engine.context import CompilerContext
from gyrator.engine.engine import Engine
from gyrator.engine.lazy import ShippedWrapper
from gyrator.frontend.aot import Frontend
from gyrator.frontend.dynamo.callbacks import RUNNERS, watch_compiles
from gyrator.frontend.freezing import SharedConstants
from gyrator.frontend.tracing import register_fake_kernels
from gyrator.graphs.compiled import NO_DECOMPOSITIONS, Decompositions
from gyrator.graphs.parts import PartCompiler
from gyrator.options import Options, environment_options, make_options
from gyrator.reports.records import Observer, ignore_record
from gyrator.store.content_hash import decompositions_hash, passes_hash
from gyrator.store.travel import record
from gyrator.targets import TargetDefinition, installed, probed
from gyrator_ir.backend import WrapperBackend
from gyrator_ir.checks import takes
from gyrator_ir.define import define
from gyrator_ir.passes import PassEdits
from gyrator_ir.target import Target
from gyrator_runtime.cache import Cache, make_key
from gyrator_runtime.collector import only_new_objects
from gyrator_runtime.warn import warn

if TYPE_CHECKING:
    from gyrator.frontend.saved_graphs import CompiledArtifact
    from gyrator_lowering.table import LoweringTable

register_fake_kernels()  # before Dynamo traces what a session compiles
watch_compiles()

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
    """One compiler instance: its tables, cache and builders. Use it as a context manager.

        with Session(options={"numerics": "fast"}) as session:
            fast = torch.compile(model, backend=session.backend)

    Sessions share only the cache folder, and may be used from different threads concurrently.
    """

    options: Options = field(factory=environment_options, converter=_as_options)
    config: Config = field(factory=read_config)
    rules: LoweringTable | None = None
    """The lowering rules; None for the default table. Raises InputError (GY-STAGE-001) for what is
    no table; warns of rules for ops that do not exist (GY-LOWER-044)."""
    passes: PassEdits = field(factory=PassEdits)
    """Passes to add, replace or drop. Raises PassError for an edit of an unknown pass."""
    _targets: Mapping[str, tuple[TargetDefinition, Target]] | None = None
    decompositions: Decompositions = NO_DECOMPOSITIONS
    """Decompositions by op (`torch.ops.aten.softplus.default`) that replace Gyrator's and
    PyTorch's, applied before any pass runs; None disables an op's decomposition."""
    parts: PartCompiler | None = None
    """Compiles parts of every graph instead of Gyrator."""
    wrappers: Mapping[str, WrapperBackend] = _WRAPPERS
    observer: Observer = ignore_record
    _cache: Cache | None = None
    _uninitialised: tuple[TargetDefinition, ...] = field(default=(), init=False)
    _engines: dict[Options, Engine] = field(factory=dict, init=False)
    _constants: SharedConstants = field(factory=SharedConstants, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the rules, the pass edits and the decompositions before anything is compiled, and
        have the native runner built when Dynamo begins to."""
        if self.rules is not None:
            from gyrator_lowering.misspelt import misspelt_ops
            from gyrator_lowering.table import LoweringTable

            takes("Session(rules=...)", self.rules, LoweringTable)
            for op, near in misspelt_ops(self.rules).items():
                help = f"did you mean {near!r}?" if near else "define the op before the session"
                message = f"there is no op {op!r}, for which the session has a lowering rule"
                warn("GY-LOWER-044", message, help, stacklevel=4)
        if self.passes.edits:
            from gyrator.engine.passes import pipelines  # the stages take 0.5 s to import

            self.passes.check(pipelines())
            passes_hash(self.passes)
        if self.decompositions:
            from gyrator_lowering.decompositions import edited

            edited({}, self.decompositions)
            decompositions_hash(self.decompositions)
        RUNNERS.expect(ref(self))

    @property
    def targets(self) -> Mapping[str, tuple[TargetDefinition, Target]]:
        """Targets by device type: those passed in, or the installed ones whose devices this
        process uses."""
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
        """Compile a Dynamo graph; called by `torch.compile(f, backend=session.backend)`."""
        watch_compiles()  # Dynamo may have been reset
        frontend = self.frontend(make_options(mode, options, self.options))
        with only_new_objects():
            return frontend.compile(gm, example_inputs)

    def frontend(self, options: Options) -> Frontend:
        """Return the frontend that compiles Dynamo graphs with these options."""
        return Frontend(self.engine(options), options, self.cache, self._constants)

    def compile(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *,
        sizes: tuple[int, int] | None = None,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> CompiledArtifact:
        """Compile a graph of the form that Dynamo produces, or a part of one, for inference.

        Args:
            gm: the graph, which is not modified; it returns a tuple or a single tensor, and takes
                its weights as inputs.
            inputs: example inputs. Tensors and integers specialise the graph to their sizes; fake
                tensors and symbolic integers stand for all sizes that their shape environment
                allows.
            sizes: the minimum and the maximum of the symbolic sizes; calls outside the range raise.
            mode: as for `torch.compile`.
            options: likewise.

        Returns:
            An artifact that can be called, saved, and loaded by another process.

        Raises:
            UnsupportedError: GY-AOT-006 for a graph that cannot be saved.
        """
        from gyrator.frontend.saved_graphs import compiled_artifact

        frontend = self.frontend(make_options(mode, options, self.options))
        with only_new_objects():
            return compiled_artifact(frontend, gm, inputs, sizes)

    def load(self, path: str | Path) -> CompiledArtifact:
        """Load an artifact written by `CompiledArtifact.save`, without tracing or compiling.

        Raises UnsupportedError (GY-AOT-007) for a file of another kind, and CacheError for one that
        is damaged (GY-CACHE-012), or incompatible with this machine, torch version or Gyrator
        version (GY-CACHE-004).
        """
        from gyrator.frontend.saved_graphs import CompiledArtifact

        return CompiledArtifact.load(path, self.frontend)

    def key(self, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> str:
        """Return a key for a folder of compiled artifacts: it changes with this version, torch,
        the machine, the mode and the options."""
        context = self.engine(make_options(mode, options, self.options)).context
        fields = {"machine": context.machine(set(self.targets)), **context.identity}
        return make_key("folders", fields).hex

    def engine(self, options: Options) -> Engine:
        """Return the engine that compiles ATen graphs with these options."""
        with self._lock:
            targets = self.targets
            engine = self._engines.get(options)
            if engine is None or engine.context.targets is not targets:
                context = CompilerContext(
                    compiler=Engine,
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
                engine = self._engines[options] = Engine(context)
            return engine

    @property
    def cache(self) -> Cache:
        """The cache folder, opened at first use."""
        if self._cache is None:
            self._cache = Cache(self.config.cache_root, self.config.cache_bytes, used=record)
        return self._cache

    @property
    def constant_bytes(self) -> int:
        """Memory in bytes of the constants that frozen programs store in addition to the
        parameters (option `freezing`)."""
        return self._constants.bytes

    @property
    def recorded_graphs(self) -> int:
        """Number of device graphs recorded by programs of this session (option `device_graphs`)."""
        with self._lock:
            return sum(engine.context.memory.recorded for engine in self._engines.values())

    def close(self) -> None:
        """Wait for builders and release the engines. Compiled functions remain usable."""
        with self._lock:
            engines = list(self._engines.values())
            self._engines.clear()
        for engine in engines:
            engine.context.close_loaders()

    def __deepcopy__(self, _memo: object) -> Session:
        """Return the session itself: copies of a compiled module share it."""
        return self

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def default_session() -> Session:
    """Return the session that serves `torch.compile(backend="gyrator")`, opened at first use."""
    return Session()
