"""A user's Triton kernel as self-contained text: everything that it calls and refers to is
included.

Triton compiles the text when a program runs, in this process or in one that loads the program from
the cache. What cannot be expressed as text with certainty is refused, never guessed.
"""

import ast
import hashlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from types import ModuleType
from typing import Any

from attrs import field

from gyrator_ir.define import define, frozen
from gyrator_ir.diagnostics import UnsupportedError

_WRITERS = frozenset({"extern_elementwise", "scatter", "store_tensor_descriptor"})
"""Names of functions whose writes to memory PyTorch's analysis of a kernel does not see."""
_SETTINGS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_NOT_TEXT = ("pre_hook", "ir_override")


@frozen
class KernelText:
    """A kernel that can run from its text alone."""

    source: str
    """A module; the kernel is the last function in it."""
    name: str
    parameters: tuple[str, ...]
    has_unknown_writes: bool
    """Whether it may write arguments that PyTorch's analysis does not list."""

    @property
    def key(self) -> str:
        """A unique name for this text."""
        return f"{self.name}_{hashlib.sha256(self.source.encode()).hexdigest()[:12]}"


def kernel_text(kernel: Any, constants: Mapping[str, Any]) -> KernelText:
    """Return the text of a `JITFunction`, or of an `Autotuner` around one.

    Args:
        kernel: from PyTorch's table of kernels, with heuristics already resolved.
        constants: compile-time arguments that the IR cannot represent, such as Triton's element
            types; every configuration gets them.

    Raises:
        UnsupportedError: GY-LOWER-012, for what text cannot express: hooks, and names of objects
            other than modules, functions of Triton and plain values.
    """
    function, tuner = (kernel.fn, kernel) if _is(kernel, "Autotuner") else (kernel, None)
    if not _is(function, "JITFunction"):
        raise _refused(f"a {type(function).__name__} is launched, which is not a Triton function")
    module = _Module()
    name = module.function(function, _decorators(tuner, constants, function))
    parameters = tuple(function.arg_names)
    return KernelText(module.text(), name, parameters, module.has_unknown_writes)


@define
class _Module:
    """The text of a module so far."""

    lines: list[str] = field(factory=lambda: ["import triton", "import triton.language"])
    bindings: dict[str, Any] = field(factory=dict)
    """The value of each name in the module."""
    has_unknown_writes: bool = False

    def text(self) -> str:
        """Return the text of the module."""
        return "\n".join(self.lines) + "\n"

    def function(self, function: Any, decorators: Sequence[str]) -> str:
        """Append a function after everything that it refers to, and return its name."""
        name = str(function.fn.__name__)
        if not self._declare(name, function):
            return name
        source = function.src.rstrip("\n")
        tree = ast.parse(source)
        scope = _scope(function.fn)
        for used in _names(tree):
            if used in scope and used != name:
                self.value(used, scope[used], scope)
        self.has_unknown_writes = self.has_unknown_writes or _has_unknown_writes(
            tree, self.bindings
        )
        self.lines += ["", *decorators, *source.split("\n")]
        return name

    def value(self, name: str, value: Any, scope: Mapping[str, Any]) -> None:
        """Append a definition of a name with a value."""
        if isinstance(value, ModuleType):
            self._import(name, value)
        elif _is(value, "JITFunction"):
            self._alias(name, self.function(value, [_jit(value)]), value)
        elif _is(value, "ConstexprFunction"):
            self._alias(name, self.function(value, ["@triton.constexpr_function"]), value)
        elif (text := _literal(value)) is not None:
            if self._declare(name, value):
                annotation = (scope.get("__annotations__") or {}).get(name)
                constant = getattr(annotation, "__name__", annotation) == "constexpr"
                self.lines.append(
                    f"{name}{': triton.language.constexpr' if constant else ''} = {text}"
                )
        else:
            self._import_from(name, value)

    def _declare(self, name: str, value: Any) -> bool:
        """Bind a name and return whether it was free; GY-LOWER-012 if it has another value."""
        if name not in self.bindings:
            self.bindings[name] = value
            return True
        bound = self.bindings[name]
        if bound is not value and (_literal(value) is None or _literal(bound) != _literal(value)):
            raise _refused(f"the name {name!r} has two meanings in the kernel and its helpers")
        return False

    def _alias(self, name: str, own: str, value: Any) -> None:
        if name != own and self._declare(name, value):
            self.lines.append(f"{name} = {own}")

    def _import(self, name: str, module: ModuleType) -> None:
        if not self._declare(name, module):
            return
        if module.__name__ == "__main__":
            raise _refused(f"the kernel reads {name!r}, the program's own main module")
        self.has_unknown_writes = (
            self.has_unknown_writes or module.__name__.partition(".")[0] not in _HARMLESS
        )
        self.lines.append(f"import {module.__name__} as {name}")

    def _import_from(self, name: str, value: Any) -> None:
        """Import an object of Triton, torch or the standard library under a name."""
        module, path = (getattr(value, a, None) for a in ("__module__", "__qualname__"))
        if not module or not path or module.partition(".")[0] not in _HARMLESS:
            raise _refused(f"the kernel refers to {name!r}, a {type(value).__name__}")
        try:
            imported = reduce(getattr, path.split("."), importlib.import_module(module))
        except (ImportError, AttributeError):
            imported = None
        if imported is not value:
            raise _refused(f"the kernel refers to {name!r}, which {module} does not have as {path}")
        if self._declare(name, value):
            top, *rest = path.split(".")
            self.lines.append(f"from {module} import {top} as {name}")
            self.lines += [f"{name} = {name}.{'.'.join(rest)}"] if rest else []


_HARMLESS = frozenset({"triton", "torch", "math", "typing", "builtins"})
"""Packages whose functions write nothing beyond what a kernel's text shows."""


def _decorators(tuner: Any, constants: Mapping[str, Any], function: Any) -> list[str]:
    """Return the decorator lines of the kernel."""
    constant_texts = {k: _literal(v) for k, v in constants.items()}
    if tuner is None and not constant_texts:
        return [_jit(function)]
    for k, text in constant_texts.items():
        if text is None:
            raise _refused(f"the constant {k!r} is a {type(constants[k]).__name__}")
    tuner_options: list[str] = []
    rows = [_config({}, {}, constant_texts)]
    if tuner is not None:
        _check(tuner)
        rows = [_config(c.kwargs, c.__dict__, constant_texts) for c in tuner.configs]
        tuner_options = [
            f"{word}={list(names)!r}"
            for word, names in (
                ("reset_to_zero", tuner.reset_to_zero),
                ("restore_value", tuner.restore_value),
            )
            if names
        ]
    keys = list(tuner.keys or ()) if tuner is not None else []
    lines = ["@triton.autotune(", "    configs=[", *(f"        {row}," for row in rows), "    ],"]
    return [
        *lines,
        f"    key={keys!r},",
        *(f"    {m}," for m in tuner_options),
        ")",
        _jit(function),
    ]


def _config(
    kwargs: Mapping[str, Any], settings: Mapping[str, Any], constant_texts: Mapping[str, str | None]
) -> str:
    values = {k: _literal(v) for k, v in kwargs.items()} | dict(constant_texts)
    for k, text in values.items():
        if text is None:
            raise _refused(f"a configuration sets {k!r} to a {type(kwargs[k]).__name__}")
    parameters = ", ".join(f"{k!r}: {text}" for k, text in values.items())
    settings_texts = [f"{k}={settings[k]!r}" for k in _SETTINGS if settings.get(k) is not None]
    return f"triton.Config({', '.join([f'{{{parameters}}}', *settings_texts])})"


def _check(tuner: Any) -> None:
    hooks = ("user_defined_pre_hook", "user_defined_post_hook", "perf_model", "early_config_prune")
    for hook in hooks:
        if getattr(tuner, hook, None):
            raise _refused(f"the autotuner has a user-defined {hook}")
    for config in tuner.configs:
        for name in _NOT_TEXT:
            if getattr(config, name, None) is not None:
                raise _refused(f"a configuration has {name}")


def _jit(function: Any) -> str:
    flags = []
    for name in ("do_not_specialize", "do_not_specialize_on_alignment"):
        numbered = list(getattr(function, name, None) or ())
        if numbered:
            flags.append(f"{name}={numbered!r}")
    for name in ("debug", "noinline"):
        if getattr(function, name, None):
            flags.append(f"{name}=True")
    return f"@triton.jit({', '.join(flags)})" if flags else "@triton.jit"


def _literal(value: Any) -> str | None:
    """Return a Python expression for a plain value, or None."""
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return f"float({str(value)!r})"
    if isinstance(value, tuple):
        items = [_literal(v) for v in value]
        return None if None in items else f"({''.join(f'{i}, ' for i in items)})"
    if _is(value, "dtype") and not getattr(value, "is_block", lambda: False)():
        return f"triton.language.dtype({value.name!r})"
    if _is(value, "constexpr"):
        inner = _literal(value.value)
        return None if inner is None else f"triton.language.constexpr({inner})"
    return None


def _is(value: Any, kind: str) -> bool:
    """Return whether a value is of a Triton class, without importing its module."""
    value_type = type(value)
    return value_type.__name__ == kind and value_type.__module__.partition(".")[0] == "triton"


def _scope(function: Any) -> dict[str, Any]:
    """Return the values of a Python function's free names."""
    cells = function.__closure__ or ()
    closure = dict(
        zip(function.__code__.co_freevars, (c.cell_contents for c in cells), strict=True)
    )
    return {**function.__globals__, **closure}


def _names(tree: ast.Module) -> Iterable[str]:
    """Return the names that a function reads but does not bind, in order."""
    read: dict[str, None] = {}
    bound = {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in _arguments(n)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read[node.id] = None
            else:
                bound.add(node.id)
    return [name for name in read if name not in bound]


def _arguments(node: ast.arguments) -> list[ast.arg]:
    more = [a for a in (node.vararg, node.kwarg) if a is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *more]


def _has_unknown_writes(tree: ast.Module, bindings: Mapping[str, Any]) -> bool:
    """Return whether a function may write where the analysis of loads and stores does not look."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in _WRITERS:
            return True
        # Unlike `tl.atomic_add`, `descriptor.atomic_add(...)` is not analysed.
        of_module = isinstance(node.value, ast.Name) and isinstance(
            bindings.get(node.value.id), ModuleType
        )
        if node.attr.startswith("atomic_") and not of_module:
            return True
    return False


def _refused(why: str) -> UnsupportedError:
    help = "PyTorch runs the op; write it in the kernel, or pass it as an argument"
    return UnsupportedError.of(
        "GY-LOWER-012", f"a Triton kernel cannot be expressed as text: {why}", help=help
    )
