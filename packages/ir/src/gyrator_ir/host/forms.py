"""The text forms of the instructions of Wrapper IR."""

from gyrator_ir.host import nodes as h
from gyrator_ir.modes import Failure
from gyrator_ir.text.forms import CODECS, Block, FormTable, Grammar, member_of
from gyrator_ir.text.values import GRID, REF_OR_COND, RESULTS, RETURNED, VALUES, VALUES_BY_NAME

_GRAMMAR = Grammar(
    {
        **CODECS,
        "args": VALUES, "values": VALUES_BY_NAME, "results": RESULTS, "returned": RETURNED,
        "grid": GRID, "condition": REF_OR_COND, "mend": member_of(h.Mend),
        "error": member_of(Failure),
    }
)  # fmt: skip
_form = _GRAMMAR.form
_BODY = Block("body")

FORMS = FormTable(
    (
        # Sizes and constants
        _form(h.BindSize, "{symbol} = dim {tensor} {dim:integer} [stride]"),
        _form(h.BindParameter, "{symbol} = parameter {name}"),
        _form(h.DefineSymbol, "{symbol} = expr {expr}"),
        _form(h.ReadScalar, "{symbol} = read {tensor}"),
        _form(h.BindConstant, "{name} = constant {key:word}"),
        # Checks
        _form(
            h.Conform,
            "conform {tensor} to {dtype}{shape:exprs} strides {strides:exprs} on {device} "
            "[mend {mend}] [from {what:string}]",
        ),
        _form(h.Separate, "separate {tensors:names} from {others:names}"),
        _form(h.AssertNoNan, "assert_finite {tensor} [from {what:string}]"),
        _form(h.AssertTrue, "assert {condition:cond} {message:string} [raises {error}]"),
        # Memory
        _form(
            h.Allocate, "{name} = allocate {dtype}{shape:exprs} strides {strides:exprs} on {device}"
        ),
        _form(h.AllocatePool, "{name} = pool {bytes:expr} on {device}"),
        _form(
            h.AllocateFromPool,
            "{name} = place {pool} at {offset:expr} as {dtype}{shape:exprs} "
            "strides {strides:exprs}",
        ),
        _form(h.Free, "free {name}"),
        _form(h.Reuse, "{name} = reuse {source} as {dtype}{shape:exprs} strides {strides:exprs}"),
        _form(
            h.View,
            "{name} = view {source} as {dtype}{shape:exprs} strides {strides:exprs} "
            "offset {offset:expr}",
        ),
        # Work
        _form(h.Launch, "launch {kernel} {tensors:names} [sizes {sizes:exprs}] [overlap]"),
        _form(
            h.ExternCall,
            "extern {target:word} {args} [with {kwargs:values}] [-> {results}] [out {out:word}] "
            "[names {out_names:words}] [uncaptured {uncaptured:string}]",
        ),
        _form(
            h.TmaDescriptor,
            "{name} = tma {tensor} {shape:exprs} block {block:exprs} bytes {element_bytes:expr} "
            "[stable]",
        ),
        _form(
            h.TritonLaunch,
            "triton {kernel:word} grid {grid} {args:values} constants {constants:values}",
        ),
        _form(h.Copy, "copy {source} -> {destination} [non_blocking]"),
        _form(h.CollectiveStart, "start {target:word} {args} [-> {results:names}]"),
        _form(h.CollectiveFinish, "finish {tensor}"),
        # Structure
        _form(h.WithDevice, "with_device {device}", _BODY),
        _form(h.ProfileRange, "profile {label:string}", _BODY),
        _form(
            h.Branch,
            "branch {condition} then {then_values:names} else {otherwise_values:names} "
            "-> {results:names}",
            Block("then", "then"),
            Block("otherwise", "else"),
        ),
        _form(
            h.Loop,
            "loop {carried:names} from {initial:names} while {test} next {next:names} [stacked] "
            "-> {results:names}",
            Block("condition", "condition"),
            Block("body", "body"),
        ),
        _form(
            h.Repeat,
            "repeat {symbol} below {count:expr} carry {carried:names} from {initial:names} "
            "next {next:names} -> {results:names}",
            _BODY,
        ),
        _form(h.CallProgram, "call {program} {args} [-> {results:names}]"),
        _form(h.CallPartition, "call_partition {program} {args} [-> {results:names}]"),
        _form(h.Comment, "note {text:string}"),
        _form(h.Return, "return {values:returned}"),
    )
)

PARAMETER = _GRAMMAR.parts(h.Parameter, " {name} {kind:word}")
CAPTURE = _GRAMMAR.parts(h.Capture, " {device} [mutates {mutated:integers}]")
