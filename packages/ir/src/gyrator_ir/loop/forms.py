"""The text forms of the one-line operations of Loop IR and Kernel IR."""

from gyrator_ir.loop.nodes import (
    AssertCond,
    CallOp,
    CollectiveCall,
    CollectiveWait,
    CondOp,
    DeviceCopy,
    Extern,
    RepeatOp,
    ScalarRead,
    Template,
    TemplateKind,
    UserTritonKernel,
    WhileOp,
)
from gyrator_ir.modes import Failure
from gyrator_ir.text.forms import CODECS, FormTable, Grammar, member_of
from gyrator_ir.text.values import ARG, ARG_OR_COND, ARGS, ARGS_BY_NAME, GRID, RESULTS

GRAMMAR = Grammar(
    {
        **CODECS,
        "arg": ARG, "args": ARGS, "values": ARGS_BY_NAME, "results": RESULTS, "grid": GRID,
        "predicate": ARG_OR_COND, "kind": member_of(TemplateKind),
        "error": member_of(Failure),
    }
)  # fmt: skip
_form = GRAMMAR.form

CALLS = FormTable(
    (
        _form(
            Extern,
            "extern {name} {target:word} {args} [with {kwargs:values}] [-> {results}] "
            "[out {out:word}] [names {out_names:words}] [mutates {mutates:names}] "
            "[because {reason:string}] [uncaptured {uncaptured:string}] {origins}",
        ),
        _form(
            UserTritonKernel,
            "triton {name} {kernel:word} grid {grid} {args:values} constants {constants:values} "
            "[mutates {mutates:names}] [descriptors {descriptors:values}] {origins}",
        ),
        _form(
            CollectiveCall,
            "collective {name} {target:word} {args} [-> {results:names}] "
            "[mutates {mutates:names}] {origins}",
        ),
        _form(CollectiveWait, "wait {name} {buffer} {origins}"),
        _form(DeviceCopy, "copy {name} {source:arg} -> {destination} [non_blocking] {origins}"),
        _form(ScalarRead, "read {name} {source:arg} -> {symbol} {origins}"),
        _form(
            AssertCond, "assert {name} {condition:cond} {message:string} [raises {error}] {origins}"
        ),
        _form(
            CondOp,
            "cond {name} {predicate} then {then:word} else {otherwise:word} {operands:args} "
            "[-> {results:names}] {origins}",
        ),
        _form(
            WhileOp,
            "while {name} {condition:word} do {body:word} {carried:args} "
            "[invariants {invariants:args}] [stacked] [-> {results:names}] {origins}",
        ),
        _form(
            RepeatOp,
            "repeat {name} {count:expr} do {body:word} {carried:args} [with {operands:args}] "
            "[-> {results:names}] [stacks {stacks:names}] {origins}",
        ),
        _form(CallOp, "call {name} {program:word} {operands:args} [-> {results:names}] {origins}"),
    )
)

COMPUTED = "{kind} {inputs:args} -> {outputs:args} [with {attributes:values}]"
"""What a `Template` or a `TemplateKernel` computes."""
TEMPLATE = GRAMMAR.parts(Template, f" {{name}} {COMPUTED} {{origins}}")
"""The head line of a `Template`; its fallback follows on a line of its own."""
