"""What a user may choose, with its default and meaning: one attrs field an option."""

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

import attrs
from attrs import field, frozen

from gyrator_ir.diagnostics import GyratorError

__all__ = ["OptionError", "Options", "list_modes", "list_options", "make_options"]


class OptionError(GyratorError):
    """An option or mode that does not exist, or a value that it does not take."""


def _option(
    default: Any,
    meaning: str,
    choices: tuple[Any, ...] = (),
    code: bool = True,
    callable: bool = False,
) -> Any:
    """Declare an option. `code`: it can change what is generated, so it is part of cache keys.
    `callable`: a function will do as well."""
    metadata = {"meaning": meaning, "choices": choices, "code": code, "callable": callable}
    return field(default=default, metadata=metadata)


@frozen(kw_only=True)
class Options:
    """The options of `torch.compile(..., backend="gyrator", options={...})`."""

    numerics: Literal["eager", "fast", "bitwise", "batch_invariant"] = _option(
        "eager",
        "'eager': every ATen op's result is rounded to its dtype, as eager rounds it. 'fast': "
        "roundings between fused ops may be skipped, and matrix products go to the quicker library "
        "even if its sums are a little less exact. 'bitwise': eager's bits, wherever eager has the "
        "same in every run; what kernels would compute with other bits is a call of ATen. "
        "'batch_invariant': a row's result does not depend on the rows beside it: kernels sum "
        "in one order whatever the number of rows, and compute products themselves.",
        ("eager", "fast", "bitwise", "batch_invariant"),
    )
    wrapper: str = _option(
        "python",
        "Form of the host program: 'python', a plan that runs natively and is printed as Python; "
        "'cpp', a library built by the C++ compiler; 'fx', a graph that other compilers take.",
        ("python", "cpp", "fx"),
    )
    debug_python: bool = _option(
        False,
        "With the wrapper 'python': run the printed host program itself, in which a debugger can "
        "stop, and not its plan. Slower.",
        code=False,
    )
    fx_compiler: str | Callable[..., Any] = _option(  # noqa: RUF009, a field of attrs
        "",
        "With the wrapper 'fx': what compiles the graph, a function of a `GraphModule` that "
        "returns a callable, `module:function`, or the name of an entry point in "
        "`gyrator.fx_compilers`.",
        code=False,
        callable=True,
    )
    fusion: bool = _option(True, "Fuse operations into common kernels.")
    inline: bool = _option(True, "Compute cheap values again where they are used.")
    extern_kernels: Literal["library", "none"] = _option(
        "library",
        "What computes matrix products, convolutions and attention: 'library', ATen's calls of a "
        "library; 'none', kernels that we generate, for every shape.",
        ("library", "none"),
    )
    fallback_random: bool = _option(
        False, "Draw random numbers with ATen's ops, in eager's stream, instead of in kernels."
    )
    freezing: bool = _option(
        False,
        "In inference, keep what follows from parameters and buffers alone, and compute it again "
        "when one of them changes; fold batch norms into the products before them, pack weights "
        "as libraries want them.",
    )
    min_cut: bool = _option(
        True, "Choose what a training step saves for the backward pass by minimum cut."
    )
    max_autotune: bool = _option(
        False,
        "Build every candidate of each kernel, and its best guess for every vector width of this "
        "machine, measure, and keep the best; measure products in generated kernels against the "
        "library on devices with matrix units, and by each of torch's libraries on a CPU.",
    )
    autotune_seconds: int = _option(
        0,
        "Seconds that `max_autotune` may take for one graph; 0 means as many as it takes. What is "
        "not measured keeps the best guess.",
        code=False,
    )
    device_graphs: bool = _option(
        False, "Capture device graphs and replay them, on devices that can."
    )
    size_asserts: bool = _option(
        False, "Raise where a custom op returns what its fake does not say, rather than copy."
    )
    nan_asserts: bool = _option(
        False,
        "Raise where a kernel or an ATen op first gives NaN or infinity, and name the op of the "
        "graph that does so by itself, with its line and module.",
    )
    memory_asserts: bool = _option(
        False,
        "With the wrapper 'python': run the printed host program, and raise where it gives away "
        "memory of a tensor that is still in use, or where memory is held that it has dropped.",
        code=False,
    )
    verify: Literal["", "kernels"] = _option(
        "",
        "'kernels': run every generated kernel beside the interpreter of its IR, on random memory "
        "of its shapes, and raise where they differ. Needs `gyrator[verify]`.",
        ("", "kernels"),
    )
    profile: bool = _option(False, "Mark every kernel and call as a range in torch.profiler.")
    timed: bool = _option(
        False, "Keep the time of every kernel, for `gyrator.explain` and reports.", code=False
    )
    strict: bool = _option(
        False,
        "Raise what the compiler cannot do, instead of leaving it to PyTorch.",
        code=False,
    )
    cache: bool = _option(True, "Keep compiled programs on disk, and look there first.", code=False)
    build_in_background: bool = _option(
        False,
        "Do not wait for compilers of kernels: until they are done, PyTorch runs the graph op by "
        "op, whose results may be rounded in other places.",
        code=False,
    )
    threads: int = _option(
        0, "Compiler processes that run at once; 0 means one a core.", code=False
    )
    compile_seconds: int = _option(
        300,
        "Seconds that one call of a kernel compiler may take; 0 means as many as it takes. One "
        "that takes longer is ended, and PyTorch runs what its kernels are for.",
        code=False,
    )
    stage_seconds: int = _option(
        600,
        "Seconds that one stage of the compile of one graph may take; 0 means as many as it takes. "
        "PyTorch runs the op that lowering has come to by then, and in later stages the graph.",
        code=False,
    )
    progress: bool = _option(True, "Show the progress of long compiles on a terminal.", code=False)
    trace_dir: str = _option(
        "",
        "A folder for the FX graph, every IR, what each pass made, and all generated text of each "
        "compile.",
        code=False,
    )
    pass_texts: bool = _option(
        False,
        "Keep the text of programs before and after each pass, for `GraphRecord.passes`; with "
        "`trace_dir` it is written there.",
        code=False,
    )

    @property
    def bitwise(self) -> bool:
        """Whether results have eager's bits."""
        return self.numerics == "bitwise"

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's result must not depend on the rows beside it."""
        return self.numerics == "batch_invariant"

    @property
    def looks_up(self) -> bool:
        """Whether stored programs are loaded; a trace needs those that compile, and `nan_asserts`
        their graphs."""
        return self.cache and not self.trace_dir and not self.nan_asserts

    def code_fields(self) -> dict[str, Any]:
        """Return the options that can change generated code, for cache keys."""
        return {f.name: getattr(self, f.name) for f in attrs.fields(Options) if f.metadata["code"]}


MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "default": MappingProxyType({}),
    "reduce-overhead": MappingProxyType({"device_graphs": True}),
    "max-autotune": MappingProxyType({"max_autotune": True, "device_graphs": True}),
    "max-autotune-no-cudagraphs": MappingProxyType({"max_autotune": True}),
})  # fmt: skip
"""The options that each mode sets."""


def list_options() -> dict[str, dict[str, Any]]:
    """Return every option's default, choices (empty: any value of the type) and meaning."""
    return {
        f.name: {
            "default": f.default,
            "choices": f.metadata["choices"],
            "meaning": f.metadata["meaning"],
        }
        for f in attrs.fields(Options)
    }


def list_modes() -> dict[str, dict[str, Any]]:
    """Return the options that each mode sets."""
    return {name: dict(options) for name, options in MODES.items()}


def make_options(
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    base: Options | None = None,
) -> Options:
    """Return the options of a mode, with single ones replaced. `base` has the others; if it is not
    given, they are as the environment says.

    Raises `OptionError` (GY-OPTION-001 to 003) for an unknown mode or option, or a bad value.
    """
    chosen = dict(_mode(mode or "default"))
    known = {f.name: f for f in attrs.fields(Options)}
    for name, value in (options or {}).items():
        if name not in known:
            raise OptionError.of(
                "GY-OPTION-001", f"unknown option {name!r}", help=_near(name, known)
            )
        chosen[name] = _checked(known[name], value)
    return attrs.evolve(environment_options() if base is None else base, **chosen)


_BOOLS = MappingProxyType({"true": True, "1": True, "false": False, "0": False})


def environment_options(environ: Mapping[str, str] = os.environ) -> Options:
    """Return the options that the environment sets: `GYRATOR_TRACE_DIR` for `trace_dir`, and so on.
    `TORCH_COMPILE_DEBUG=1` is a `trace_dir` in PyTorch's folder for that.

    Raises `OptionError` (GY-OPTION-003) for a bad value.
    """
    names = {f"GYRATOR_{f.name.upper()}": f.name for f in attrs.fields(Options)}
    chosen = [f"{option}={environ[name]}" for name, option in names.items() if name in environ]
    found = options_of_text(chosen)
    if environ.get("TORCH_COMPILE_DEBUG") == "1":
        root = environ.get("TORCH_COMPILE_DEBUG_DIR") or os.getcwd()
        found.setdefault("trace_dir", os.path.join(root, "torch_compile_debug", "gyrator"))
    return make_options(options=found, base=Options())


def options_of_text(texts: Iterable[str]) -> dict[str, Any]:
    """Return options as `make_options` takes them, each given as `name=value`."""
    known = {f.name: type(f.default) for f in attrs.fields(Options)}
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        found[name] = value
        if known.get(name) is bool:
            found[name] = _BOOLS.get(value.lower(), value)
        elif known.get(name) is int and value.isdecimal():
            found[name] = int(value)
    return found


def _mode(mode: str) -> Mapping[str, Any]:
    if mode not in MODES:
        raise OptionError.of("GY-OPTION-002", f"unknown mode {mode!r}", help=_near(mode, MODES))
    return MODES[mode]


def _checked(option: "attrs.Attribute[Any]", value: Any) -> Any:
    choices = option.metadata["choices"]
    wanted = type(option.default)
    if option.metadata["callable"] and callable(value):
        return value
    if type(value) is not wanted:
        wrong = f"takes a {wanted.__name__}, got {value!r}"
    elif choices and value not in choices:
        wrong = f"takes one of {', '.join(map(repr, choices))}, got {value!r}"
    else:
        return value
    raise OptionError.of(
        "GY-OPTION-003", f"option {option.name!r} {wrong}", help=option.metadata["meaning"]
    )


def _near(name: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
