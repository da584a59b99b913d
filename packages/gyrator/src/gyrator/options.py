"""The options of the compiler, each an attrs field with its default and its meaning."""

import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

import attrs
from attrs import field

from gyrator_ir.define import frozen
from gyrator_ir.diagnostics import GyratorError
from gyrator_runtime.warn import warn

__all__ = ["OptionError", "Options", "list_modes", "list_options", "make_options"]


class OptionError(GyratorError):
    """An unknown option or mode, or a value that an option does not accept."""


def _option(
    default: Any,
    meaning: str,
    choices: tuple[Any, ...] = (),
    code: bool = True,
    callable: bool = False,
) -> Any:
    """Declare an option. `code`: it can change the generated code, so it is part of cache keys.
    `callable`: a function is accepted as well."""
    metadata = {"meaning": meaning, "choices": choices, "code": code, "callable": callable}
    return field(default=default, metadata=metadata)


@frozen(kw_only=True)
class Options:
    """The options of `torch.compile(..., backend="gyrator", options={...})`."""

    numerics: Literal["eager", "fast", "bitwise", "batch_invariant"] = _option(
        "eager",
        "'eager': round every ATen op's result to its dtype, as eager mode does. 'fast': skip "
        "rounding between fused ops, and use the faster library for matrix products even if it "
        "accumulates slightly less accurately. 'bitwise': reproduce eager's bits wherever eager is "
        "deterministic; ops for which generated kernels would give other bits are left to ATen. "
        "'batch_invariant': a row's result does not depend on the other rows of its batch: kernels "
        "accumulate in an order independent of the number of rows, and compute matrix products "
        "themselves.",
        ("eager", "fast", "bitwise", "batch_invariant"),
    )
    wrapper: str = _option(
        "python",
        "Form of the host program: 'python', a plan that is executed natively and printed as "
        "Python; 'cpp', a library built by the C++ compiler; 'fx', a graph for other compilers.",
        ("python", "cpp", "fx"),
    )
    debug_python: bool = _option(
        False,
        "With the wrapper 'python': run the printed host program instead of its plan, so that a "
        "debugger can step through it. Slower.",
        code=False,
    )
    fx_compiler: str | Callable[..., Any] = _option(
        "",
        "With the wrapper 'fx': the compiler of the graph. A function that takes a `GraphModule` "
        "and returns a callable, `module:function`, or the name of an entry point in the group "
        "`gyrator.fx_compilers`.",
        code=False,
        callable=True,
    )
    fusion: bool = _option(True, "Fuse operations into common kernels.")
    inline: bool = _option(True, "Recompute cheap values in each kernel that uses them.")
    extern_kernels: Literal["library", "none"] = _option(
        "library",
        "How to compute matrix products, convolutions and attention: 'library', by ATen's library "
        "calls; 'none', by generated kernels, whatever the shape.",
        ("library", "none"),
    )
    fallback_random: bool = _option(
        False,
        "Generate random numbers with ATen's ops, which gives eager's sequence, instead of in "
        "kernels.",
    )
    freezing: bool = _option(
        False,
        "In inference, precompute values that depend only on parameters and buffers, and recompute "
        "them when one of these changes; fold batch norms into the preceding convolutions and "
        "matrix products, and pack weights into the layouts that libraries prefer.",
    )
    min_cut: bool = _option(
        True, "Choose the activations saved for the backward pass by a minimum cut."
    )
    max_autotune: bool = _option(
        False,
        "Build and time all candidate configurations of each kernel, including the default one at "
        "every vector width of this machine, and use the fastest. Also time matrix products: "
        "generated kernels against the library on devices with matrix units, and torch's "
        "libraries against each other on a CPU; and each op that has a kernel of its own against "
        "ATen's, which is called if it is faster by 10 per cent.",
    )
    autotune_seconds: int = _option(
        0,
        "Time limit of `max_autotune` for one graph, in seconds, and of `eager_if_faster`; 0 means "
        "no limit. Kernels that were not timed use their default configuration, and graphs that "
        "were not timed stay compiled.",
        code=False,
    )
    eager_if_faster: bool = _option(
        False,
        "At the first call of each graph, time it against eager mode on the arguments of the call, "
        "and run it in eager mode from then on if that is faster by 5 per cent, or is no slower by "
        "as much and needs less memory at its peak, by a tenth and 1 MiB. Results may differ in "
        "rounding. Graphs with side effects, random numbers or custom ops stay compiled.",
        code=False,
    )
    device_graphs: bool = _option(
        False, "Capture and replay device graphs, on devices that support them."
    )
    size_asserts: bool = _option(
        False,
        "Raise an error if the result of a custom op differs in stride from that of its fake "
        "implementation, instead of copying the result. A result of another size is always an "
        "error.",
    )
    nan_asserts: bool = _option(
        False,
        "Raise an error at the first kernel or ATen op that produces NaN or infinity, and identify "
        "the op of the graph that caused it, with its source line and module.",
    )
    memory_asserts: bool = _option(
        False,
        "With the wrapper 'python': run the printed host program, and raise an error if it frees "
        "memory that is still in use, or if memory that it freed is still referenced.",
        code=False,
    )
    verify: Literal["", "kernels"] = _option(
        "",
        "'kernels': check every generated kernel against the interpreter of its IR, on random "
        "inputs of its shapes, and raise an error if they differ. Needs `gyrator[verify]`.",
        ("", "kernels"),
    )
    profile: bool = _option(False, "Mark every kernel and call as a range in torch.profiler.")
    timed: bool = _option(
        False, "Record the time of every kernel, for `gyrator.explain` and reports.", code=False
    )
    strict: bool = _option(
        False,
        "Raise an error for anything that cannot be compiled, instead of running it in PyTorch.",
        code=False,
    )
    cache: bool = _option(True, "Store compiled programs on disk, and reuse them.", code=False)
    build_in_background: bool = _option(
        False,
        "Do not wait for kernel compilers: until they finish, PyTorch runs the graph op by op, "
        "whose results may differ in rounding.",
        code=False,
    )
    threads: int = _option(
        0, "Number of parallel compiler processes; 0 means one per core.", code=False
    )
    compile_seconds: int = _option(
        300,
        "Time limit of one kernel compiler call, in seconds; 0 means no limit. A call that takes "
        "longer is killed, and PyTorch runs the ops of its kernels.",
        code=False,
    )
    stage_seconds: int = _option(
        600,
        "Time limit of each compiler stage for one graph, in seconds; 0 means no limit. If "
        "lowering exceeds it, PyTorch runs the op being lowered; if a later stage does, the graph.",
        code=False,
    )
    progress: bool = _option(True, "Show the progress of long compiles on a terminal.", code=False)
    trace_dir: str = _option(
        "",
        "Folder in which each compile writes its FX graph, every IR, the output of each pass, and "
        "all generated text.",
        code=False,
    )
    pass_texts: bool = _option(
        False,
        "Record the program text before and after each pass in `GraphRecord.passes`; with "
        "`trace_dir`, write it there.",
        code=False,
    )

    @property
    def bitwise(self) -> bool:
        """Whether results must have the same bits as eager's."""
        return self.numerics == "bitwise"

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's result must not depend on the other rows of its batch."""
        return self.numerics == "batch_invariant"

    @property
    def keeps_compiled(self) -> str:
        """The other option that keeps `eager_if_faster` from replacing graphs, with its value;
        empty if none does."""
        names = ("strict", "device_graphs", "nan_asserts")
        chosen = [f"{name}=True" for name in names if getattr(self, name)]
        if self.batch_invariant:
            chosen.append(f"numerics={self.numerics!r}")
        return next(iter(chosen), "")

    @property
    def looks_up(self) -> bool:
        """Whether stored programs are loaded. A trace needs the stages to run, and `nan_asserts`
        needs the graphs."""
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


TORCHINDUCTOR: Mapping[str, str] = MappingProxyType({
    "max_autotune_pointwise": "`max_autotune`",
    "max_autotune_gemm": "`max_autotune`",
    "coordinate_descent_tuning": "`max_autotune`",
    "max_autotune_gemm_backends": "`extern_kernels`",
    "max_autotune_conv_backends": "`extern_kernels`",
    "triton.cudagraphs": "`device_graphs`",
    "cpp_wrapper": '`wrapper="cpp"`',
    "fx_wrapper": '`wrapper="fx"`',
    "emulate_precision_casts": '`numerics="eager"`, the default,',
    "deterministic": '`numerics="bitwise"`',
    **dict.fromkeys(
        (
            "epilogue_fusion", "prologue_fusion", "aggressive_fusion", "pattern_matcher",
            "joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass",
            "post_grad_custom_post_pass", "_pre_fusion_custom_pass", "_post_fusion_custom_pass",
        ),
        "a pass, which `Session(passes=...)` edits,",
    ),
    "custom_partitioner_fn": "`Session(parts=...)`",
    "implicit_fallbacks": "always on (`strict` raises)",
    "fx_graph_remote_cache": "`gyrator cache export` and `import`",
    "autotune_remote_cache": "`gyrator cache export` and `import`",
    "shape_padding": "the pass `pad-products`",
    "layout_optimization": "the pass `channels-last`",
    "compile_threads": "`threads`",
    "force_disable_caches": "`cache=False`",
    "fx_graph_cache": "`cache`",
    "trace.enabled": "`trace_dir`",
    "debug": "`trace_dir`",
    "profiler_mark_wrapper_call": "`profile`",
    "cpp.simdlen": "the variable `GYRATOR_ISA`",
    "cpp.threads": "`torch.set_num_threads`",
})  # fmt: skip
"""Replacements for TorchInductor's options, which programs written for it still use."""


def list_options() -> dict[str, dict[str, Any]]:
    """Return every option's default, choices (empty if any value of the type is accepted) and
    meaning."""
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
    mode: str | None = None, options: Mapping[str, Any] | None = None, base: Options | None = None
) -> Options:
    """Return the options of a mode, with `options` overriding it. The others come from `base`, by
    default from the environment.

    Raises `OptionError` (GY-OPTION-001 to 003) for an unknown mode or option, or a bad value.
    """
    chosen = dict(_mode(mode or "default"))
    fields = {f.name: f for f in attrs.fields(Options)}
    try:
        overriding = dict(options or {})
    except (TypeError, ValueError) as error:
        message = f"options must be a mapping of names to values, not {options!r}"
        help = 'such as {"numerics": "fast"}'
        raise OptionError.of("GY-OPTION-003", message, help=help) from error
    for name, value in overriding.items():
        if name not in fields:
            known = TORCHINDUCTOR.get(name)
            help = f"TorchInductor's is {known} here" if known else _near(str(name), fields)
            raise OptionError.of("GY-OPTION-001", f"unknown option {name!r}", help=help)
        chosen[name] = _checked(fields[name], value)
    return attrs.evolve(environment_options() if base is None else base, **chosen)


_PREFIX = "GYRATOR_"
_VARIABLES = (
    "GYRATOR_CACHE_DIR", "GYRATOR_CACHE_BYTES", "GYRATOR_ISA", "GYRATOR_TARGETS",
    "GYRATOR_CXX_AARCH64", "GYRATOR_CXX_X86_64", "GYRATOR_LIBTORCH", "GYRATOR_BLESS",
)  # fmt: skip
"""The environment variables that set no option."""
_BOOLS = MappingProxyType({"true": True, "1": True, "false": False, "0": False})


def environment_options(environ: Mapping[str, str] = os.environ) -> Options:
    """Return the options that environment variables set: `GYRATOR_TRACE_DIR` sets `trace_dir`, and
    so on. `TORCH_COMPILE_DEBUG=1` sets `trace_dir` to a folder in PyTorch's debug directory. Warns
    (GY-OPTION-007) of a variable whose name is nearly that of another.

    Raises `OptionError` (GY-OPTION-003) for a bad value.
    """
    names = {f"GYRATOR_{f.name.upper()}": f.name for f in attrs.fields(Options)}
    known = {name.removeprefix(_PREFIX) for name in (*names, *_VARIABLES)}
    for name in environ:
        word = name.removeprefix(_PREFIX)
        if word == name or word in known:
            continue
        if near := get_close_matches(word, known, n=1, cutoff=0.75):
            message = f"the environment variable {name} has no meaning"
            warn("GY-OPTION-007", message, f"did you mean {_PREFIX}{near[0]}?")
    chosen = [f"{option}={environ[name]}" for name, option in names.items() if name in environ]
    options = options_of_text(chosen)
    if environ.get("TORCH_COMPILE_DEBUG") == "1":
        root = environ.get("TORCH_COMPILE_DEBUG_DIR") or os.getcwd()
        options.setdefault("trace_dir", os.path.join(root, "torch_compile_debug", "gyrator"))
    return make_options(options=options, base=Options())


def options_of_text(texts: Iterable[str]) -> dict[str, Any]:
    """Parse options of the form `name=value` into values that `make_options` accepts."""
    types = {f.name: type(f.default) for f in attrs.fields(Options)}
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            message = f"{text!r} is no option with a value"
            raise OptionError.of("GY-OPTION-003", message, help="write it as NAME=VALUE")
        options[name] = value
        if types.get(name) is bool:
            options[name] = _BOOLS.get(value.lower(), value)
        elif types.get(name) is int and value.isdecimal():
            options[name] = int(value)
    return options


def _mode(mode: str) -> Mapping[str, Any]:
    if mode not in MODES:
        help = _near(str(mode), MODES)
        raise OptionError.of("GY-OPTION-002", f"unknown mode {mode!r}", help=help)
    return MODES[mode]


def _checked(option: "attrs.Attribute[Any]", value: Any) -> Any:
    choices = option.metadata["choices"]
    expected = type(option.default)
    if option.metadata["callable"] and callable(value):
        return value
    if expected is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if type(value) is not expected:
        kinds = {bool: "True or False", int: "a whole number"}
        kind = "one of " + ", ".join(map(repr, choices)) if choices else "a string"
        wrong = f"must be {kinds.get(expected, kind)}, not {value!r}"
    elif isinstance(value, int) and value < 0:
        wrong = f"must not be negative, but is {value}"
    elif choices and value not in choices:
        wrong = f"must be one of {', '.join(map(repr, choices))}, not {value!r}"
    else:
        return value
    raise OptionError.of(
        "GY-OPTION-003", f"option {option.name!r} {wrong}", help=option.metadata["meaning"]
    )


def _near(name: str, names: Mapping[str, Any]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}"
