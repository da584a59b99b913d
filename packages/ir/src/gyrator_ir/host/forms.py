"""The text forms of the instructions of Wrapper IR."""

from gyrator_ir.host.nodes import (
    Allocate,
    AllocateFromPool,
    AllocatePool,
    AssertNoNan,
    AssertTrue,
    BindConstant,
    BindParameter,
    BindSize,
    Branch,
    CallPartition,
    CallProgram,
    CollectiveFinish,
    CollectiveStart,
    Comment,
    Conform,
    Copy,
    DefineSymbol,
    ExternCall,
    Free,
    Launch,
    Loop,
    Mend,
    ProfileRange,
    ReadScalar,
    Repeat,
    Return,
    Reuse,
    Separate,
    TmaDescriptor,
    TritonLaunch,
    View,
    WithDevice,
)
from gyrator_ir.text.forms import CODECS, Block, FormTable, Grammar, member_of
from gyrator_ir.text.values import GRID, REF_OR_COND, RESULTS, RETURNED, VALUES, VALUES_BY_NAME

_GRAMMAR = Grammar(
    {
        **CODECS,
        "args": VALUES, "values": VALUES_BY_NAME, "results": RESULTS, "returned": RETURNED,
        "grid": GRID, "condition": REF_OR_COND, "mend": member_of(Mend),
    }
)  # fmt: skip
_form = _GRAMMAR.form
_BODY = Block("body")

FORMS = FormTable(
    (
        # Sizes and constants
        _form(BindSize, "{symbol} = dim {tensor} {dim:integer} [stride]"),
        _form(BindParameter, "{symbol} = parameter {name}"),
        _form(DefineSymbol, "{symbol} = expr {expr}"),
        _form(ReadScalar, "{symbol} = read {tensor}"),
        _form(BindConstant, "{name} = constant {key:word}"),
        # Checks
        _form(
            Conform,
            "conform {tensor} to {dtype}{shape:exprs} strides {strides:exprs} on {device} "
            "[mend {mend}] [from {what:string}]",
        ),
        _form(Separate, "separate {tensors:names} from {others:names}"),
        _form(AssertNoNan, "assert_finite {tensor} [from {what:string}]"),
        _form(AssertTrue, "assert {condition:cond} {message:string}"),
        # Memory
        _form(
            Allocate,
            "{name} = allocate {dtype}{shape:exprs} strides {strides:exprs} on {device}",
        ),
        _form(AllocatePool, "{name} = pool {bytes:expr} on {device}"),
        _form(
            AllocateFromPool,
            "{name} = place {pool} at {offset:expr} as {dtype}{shape:exprs} "
            "strides {strides:exprs}",
        ),
        _form(Free, "free {name}"),
        _form(Reuse, "{name} = reuse {source} as {dtype}{shape:exprs} strides {strides:exprs}"),
        _form(
            View,
            "{name} = view {source} as {dtype}{shape:exprs} strides {strides:exprs} "
            "offset {offset:expr}",
        ),
        # Work
        _form(Launch, "launch {kernel} {tensors:names} [sizes {sizes:exprs}]"),
        _form(
            ExternCall,
            "extern {target:word} {args} [with {kwargs:values}] [-> {results}] [out {out:word}] "
            "[names {out_names:words}] [uncaptured {uncaptured:string}]",
        ),
        _form(
            TmaDescriptor,
            "{name} = tma {tensor} {shape:exprs} block {block:exprs} bytes {element_bytes:expr} "
            "[stable]",
        ),
        _form(
            TritonLaunch,
            "triton {kernel:word} grid {grid} {args:values} constants {constants:values}",
        ),
        _form(Copy, "copy {source} -> {destination} [non_blocking]"),
        _form(CollectiveStart, "start {target:word} {args} [-> {results:names}]"),
        _form(CollectiveFinish, "finish {tensor}"),
        # Structure
        _form(WithDevice, "with_device {device}", _BODY),
        _form(ProfileRange, "profile {label:string}", _BODY),
        _form(
            Branch,
            "branch {condition} then {then_values:names} else {otherwise_values:names} "
            "-> {results:names}",
            Block("then", "then"),
            Block("otherwise", "else"),
        ),
        _form(
            Loop,
            "loop {carried:names} from {initial:names} while {test} next {next:names} [stacked] "
            "-> {results:names}",
            Block("condition", "condition"),
            Block("body", "body"),
        ),
        _form(
            Repeat,
            "repeat {symbol} below {count:expr} carry {carried:names} from {initial:names} "
            "next {next:names} -> {results:names}",
            _BODY,
        ),
        _form(CallProgram, "call {program} {args} [-> {results:names}]"),
        _form(CallPartition, "call_partition {program} {args} [-> {results:names}]"),
        _form(Comment, "note {text:string}"),
        _form(Return, "return {values:returned}"),
    )
)
