"""A loaded package: its entry points as functions, and its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import LayoutError
from gyrator_ir.types import HOST
from gyrator_runtime.host.externs import overload
from gyrator_runtime.host.outside import copy_with_strides, without_grad
from gyrator_runtime.package.calls import Arguments, Check, Results, checks_of
from gyrator_runtime.package.errors import no_entry, wrong_weight
from gyrator_runtime.package.manifest import Entry, PackageManifest, PackedInput, Source, Weight
from gyrator_runtime.package.weights import read_weights
from gyrator_runtime.plan.link import Run

_DEFAULT = "forward"


@frozen(eq=False)
class Function:
    """A linked entry point. Stateless."""

    entry: Entry
    plan: Run
    arguments: Arguments
    checks: Sequence[Check]
    results: Results
    tokens: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, entry: Entry, plan: Run) -> Function:
        """Link a plan with its signature."""
        tokens = tuple(torch.empty(0) for _ in range(entry.tokens))
        return cls(entry, plan, Arguments.of(entry), checks_of(entry), Results.of(entry), tokens)

    def run(
        self, weights: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the entry point with its weights and the caller's arguments."""
        leaves = self.arguments.leaves(args, kwargs)
        sizes: dict[str, int] = {}
        for check, leaf in zip(self.checks, leaves, strict=True):
            check(leaf, sizes)
        inputs = [*weights, *leaves]
        if not self.tokens:
            return self.results.of_values(_run(self.plan, inputs), inputs)
        values = _run(self.plan, [*self.tokens, *inputs])
        return self.results.of_values(values[len(self.tokens) :], inputs)


def _run(plan: Run, values: list[Any]) -> Sequence[Any]:
    """Run a plan without autograd and autocast, which the compiler has already applied."""
    if torch._C._is_any_autocast_enabled():
        with torch._C._DisableAutocast():
            return without_grad(plan, list(values))
    return without_grad(plan, list(values))


@frozen(eq=False)
class Loaded:
    """The state shared by all instances of a loaded package."""

    manifest: PackageManifest
    functions: Mapping[str, Function]
    constants: Mapping[str, Run]
    """Plans that compute constants from weights, by entry point."""
    weights: Mapping[str, torch.Tensor]
    """The weights: mapped, or on the device."""
    isa: str
    """The selected instruction set level or architecture."""
    runner: str
    """`native` or `pure`."""
    device: torch.device

    def first_weights(self) -> dict[str, torch.Tensor]:
        """Return the packaged weights."""
        written = {w.name for w in self.manifest.weights if w.written}
        return {
            n: copy_with_strides(t, t.stride()) if n in written else t
            for n, t in self.weights.items()
        }

    def taken(
        self, entry: Entry, weights: Mapping[str, torch.Tensor], cached: Constants
    ) -> tuple[tuple[torch.Tensor, ...], Constants]:
        """Return the inputs of an entry point before its arguments, and the constants among them.
        Constants `cached` for the same weights are not recomputed."""
        inputs = (*map(weights.__getitem__, entry.weights),)
        sources = (*map(weights.__getitem__, _sources(entry)),)
        if len(cached.sources) != len(sources) or not all(map(is_, sources, cached.sources)):
            cached = Constants(sources, self._constants(entry, weights))
        return (*inputs, *cached.values), cached

    def _constants(
        self, entry: Entry, weights: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Compute the constants of an entry point, the packed ones last."""
        computing, results = entry.constants, ()
        if computing is not None:
            sources = [*map(weights.__getitem__, computing.weights)]
            results = (*_run(self.constants[entry.name], sources),)
        with torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
            packed = [_packed(p, weights, results) for p in entry.packed]
        return (*results[: 0 if computing is None else computing.count], *packed)


def _sources(entry: Entry) -> tuple[str, ...]:
    """Return the weights that the constants of an entry point are computed from."""
    computing = () if entry.constants is None else entry.constants.weights
    packed = (a.weight for p in entry.packed for a in p.arguments if isinstance(a, Source))
    return (*computing, *filter(None, packed))


def _packed(
    packing: PackedInput, weights: Mapping[str, torch.Tensor], constants: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Pack a weight or a constant."""
    arguments = (
        argument
        if not isinstance(argument, Source)
        else weights[argument.weight]
        if argument.constant is None
        else constants[argument.constant]
        for argument in packing.arguments
    )
    packed: torch.Tensor = overload(packing.operator)(*arguments)
    return packed


@frozen(eq=False)
class Constants:
    """Constants computed from weights."""

    sources: tuple[torch.Tensor, ...] = ()
    values: tuple[torch.Tensor, ...] = ()


_NO_CONSTANTS = Constants()


@frozen(eq=False)
class _State:
    """The weights of an instance, replaced as a unit."""

    weights: Mapping[str, torch.Tensor]
    by_entry: Mapping[str, tuple[torch.Tensor, ...]]
    """Weights and constants of each entry point."""
    constants: Mapping[str, Constants]

    @classmethod
    def of(
        cls, loaded: Loaded, weights: Mapping[str, torch.Tensor], before: _State | None = None
    ) -> _State:
        constants = {} if before is None else dict(before.constants)
        by_entry = {}
        for entry in loaded.manifest.entries:
            cached = constants.get(entry.name, _NO_CONSTANTS)
            by_entry[entry.name], constants[entry.name] = loaded.taken(entry, weights, cached)
        return cls(MappingProxyType(dict(weights)), MappingProxyType(by_entry), constants)


@define(eq=False)
class Model:
    """An instance of a package, which is called like the compiled module.

    Thread-safe. Weights can be replaced during a call, which continues with the old ones. Programs
    that write to buffers do so without a lock, as in eager mode.
    """

    _loaded: Loaded
    _like: _State | None = None
    """The state of another instance, whose constants are shared if they are of the same weights."""
    _state: _State = field(init=False)
    _default: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._state = _State.of(self._loaded, self._loaded.first_weights(), self._like)
        self._like = None
        names = self.entries
        self._default = names[0] if len(names) == 1 else _DEFAULT

    @property
    def manifest(self) -> PackageManifest:
        """The manifest of the package."""
        return self._loaded.manifest

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points."""
        return tuple(self._loaded.functions)

    @property
    def isa(self) -> str:
        """Instruction set level or device architecture of the kernels."""
        return self._loaded.isa

    @property
    def device(self) -> torch.device:
        """The device that the programs run on."""
        return self._loaded.device

    @property
    def runner(self) -> str:
        """`native`, or `pure` if plans run in Python."""
        return self._loaded.runner

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights of this instance by name. Weights that no program writes to are shared."""
        return self._state.weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the only entry point, or the one named `forward`.

        Raises:
            PackageError: GY-PACKAGE-006, for a wrong number or structure of arguments;
                GY-PACKAGE-007, for an argument of the wrong type, dtype, size or device.
        """
        function = self._loaded.functions.get(self._default)
        if function is None:
            raise no_entry(self._default, ", ".join(self.entries))
        return function.run(self._state.by_entry[self._default], args, kwargs)

    def entry(self, name: str) -> Callable[..., Any]:
        """Return an entry point as a function. PackageError (GY-PACKAGE-005) if there is none of
        that name."""
        function = self._loaded.functions.get(name)
        if function is None:
            raise no_entry(name, ", ".join(self.entries))

        def call(*args: Any, **kwargs: Any) -> Any:
            return function.run(self._state.by_entry[name], args, kwargs)

        return call

    def instance(self) -> Model:
        """Return another instance with the weights of the package. It shares the programs, and the
        memory of all weights that no program writes to, and of constants computed from these."""
        return Model(self._loaded, self._state)

    def replace(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace some weights, for calls that start later.

        A tensor is used without a copy if it has the strides and device of the package's weight
        and no program writes to it. CPU tensors are copied to the device.

        Raises:
            PackageError: GY-PACKAGE-008, when a tensor does not match. Then none is replaced.
        """
        manifest_weights = {w.name: w for w in self.manifest.weights}
        fitting: dict[str, torch.Tensor] = {}
        for name, tensor in weights.items():
            if name not in manifest_weights:
                raise wrong_weight(name, f"there is none; there are: {', '.join(manifest_weights)}")
            fitting[name] = _fitting(manifest_weights[name], tensor, self.device)
        before = self._state
        self._state = _State.of(self._loaded, {**before.weights, **fitting}, before)

    def load_weights(self, weights: Mapping[str, torch.Tensor] | str | Path) -> None:
        """Replace all parameters and buffers by those of a state dict or a safetensors file.

        Raises:
            PackageError: GY-PACKAGE-008, when one is missing or does not match. Then none is
                replaced.
        """
        tensors = weights if isinstance(weights, Mapping) else read_weights(Path(weights))
        for weight in self.manifest.weights:
            if weight.kind != "constant" and weight.name not in tensors:
                raise wrong_weight(weight.name, "it is missing")
        self.replace(tensors)


def _fitting(weight: Weight, tensor: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor in the form that programs on a device expect for a weight."""
    if not isinstance(tensor, torch.Tensor):
        raise wrong_weight(weight.name, f"it is a {type(tensor).__name__}")
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    place = torch.device(HOST) if weight.hosted else device
    fits = tensor.layout is torch.strided and tensor.device in (place, torch.device(HOST))
    if (dtype, shape) != (weight.dtype, weight.shape) or not fits:
        expected = f"{weight.dtype}{list(weight.shape)} on {place}"
        raise wrong_weight(weight.name, f"it is {LayoutError.described(tensor)}, not {expected}")
    plain = tensor.detach().to(place)
    pending = plain.is_conj() or plain.is_neg()
    if pending or (plain.numel() > 1 and plain.stride() != weight.strides):
        return copy_with_strides(plain, weight.strides)
    return plain.clone() if weight.written else plain
