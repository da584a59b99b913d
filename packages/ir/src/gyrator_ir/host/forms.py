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
from gyrator_ir.text.forms import (
    COND,
    DEVICE,
    DTYPE,
    EXPR,
    EXPRS,
    INTEGER,
    NAME,
    NAMES,
    STRING,
    SYMBOL,
    WORD,
    WORDS,
    Block,
    Codec,
    Form,
    FormTable,
    Part,
    flag,
)
from gyrator_ir.text.scanner import Scanner
from gyrator_ir.text.values import (
    GRID,
    LAYOUT,
    REF_OR_COND,
    RESULTS,
    RETURNED,
    VALUES,
    VALUES_BY_NAME,
)


def _read_mend(scanner: Scanner) -> Mend:
    word = scanner.name()
    if word not in frozenset(Mend):
        scanner.fail(f"expected one of {', '.join(Mend)}")
    return Mend(word)


_MEND = Codec(lambda value, _: value.value, _read_mend)
_NAME, _SYMBOL = Part("name", NAME), Part("symbol", SYMBOL)
_TENSOR = Part("tensor", NAME)
_DEVICE = Part("device", DEVICE, lead="on")
_RESULTS = Part("results", NAMES, lead="->", omit=())
_PROGRAM = Part("program", NAME)
_ARGS = Part("args", VALUES)
_AS = (Part("dtype", DTYPE, lead="as"), *LAYOUT[1:])
_BODY = (Block("body"),)

_SIZES = (
    Form(BindSize, "dim", (_TENSOR, Part("dim", INTEGER), flag("stride", "stride")), _SYMBOL),
    Form(BindParameter, "parameter", (_NAME,), _SYMBOL),
    Form(DefineSymbol, "expr", (Part("expr", EXPR),), _SYMBOL),
    Form(ReadScalar, "read", (_TENSOR,), _SYMBOL),
    Form(BindConstant, "constant", (Part("key", WORD),), _NAME),
)

_CHECKS = (
    Form(
        Conform,
        "conform",
        (
            _TENSOR,
            Part("dtype", DTYPE, lead="to"),
            *LAYOUT[1:],
            _DEVICE,
            Part("mend", _MEND, lead="mend", omit=Mend.ALL),
            Part("what", STRING, lead="from", omit=""),
        ),
    ),
    Form(Separate, "separate", (Part("tensors", NAMES), Part("others", NAMES, lead="from"))),
    Form(AssertNoNan, "assert_finite", (_TENSOR, Part("what", STRING, lead="from", omit=""))),
    Form(AssertTrue, "assert", (Part("condition", COND), Part("message", STRING))),
)

_MEMORY = (
    Form(Allocate, "allocate", (*LAYOUT, _DEVICE), _NAME),
    Form(AllocatePool, "pool", (Part("bytes", EXPR), _DEVICE), _NAME),
    Form(
        AllocateFromPool,
        "place",
        (Part("pool", NAME), Part("offset", EXPR, lead="at"), *_AS),
        _NAME,
    ),
    Form(Free, "free", (_NAME,)),
    Form(Reuse, "reuse", (Part("source", NAME), *_AS), _NAME),
    Form(
        View,
        "view",
        (
            Part("source", NAME),
            *_AS,
            Part("offset", EXPR, lead="offset"),
        ),
        _NAME,
    ),
)

_WORK = (
    Form(
        Launch,
        "launch",
        (
            Part("kernel", NAME),
            Part("tensors", NAMES),
            Part("sizes", EXPRS, lead="sizes", omit=()),
        ),
    ),
    Form(
        ExternCall,
        "extern",
        (
            Part("target", WORD),
            _ARGS,
            Part("kwargs", VALUES_BY_NAME, lead="with", omit=()),
            Part("results", RESULTS, lead="->", omit=()),
            Part("out", WORD, lead="out", omit=None),
            Part("out_names", WORDS, lead="names", omit=()),
            Part("uncaptured", STRING, lead="uncaptured", omit=""),
        ),
    ),
    Form(
        TmaDescriptor,
        "tma",
        (
            _TENSOR,
            Part("shape", EXPRS),
            Part("block", EXPRS, lead="block"),
            Part("element_bytes", EXPR, lead="bytes"),
            flag("stable", "stable"),
        ),
        _NAME,
    ),
    Form(
        TritonLaunch,
        "triton",
        (
            Part("kernel", WORD),
            Part("grid", GRID, lead="grid"),
            Part("args", VALUES_BY_NAME),
            Part("constants", VALUES_BY_NAME, lead="constants"),
        ),
    ),
    Form(
        Copy,
        "copy",
        (
            Part("source", NAME),
            Part("destination", NAME, lead="->"),
            flag("non_blocking", "non_blocking"),
        ),
    ),
    Form(CollectiveStart, "start", (Part("target", WORD), _ARGS, _RESULTS)),
    Form(CollectiveFinish, "finish", (_TENSOR,)),
)

_STRUCTURE = (
    Form(WithDevice, "with_device", (Part("device", DEVICE),), blocks=_BODY),
    Form(ProfileRange, "profile", (Part("label", STRING),), blocks=_BODY),
    Form(
        Branch,
        "branch",
        (
            Part("condition", REF_OR_COND),
            Part("then_values", NAMES, lead="then"),
            Part("otherwise_values", NAMES, lead="else"),
            Part("results", NAMES, lead="->"),
        ),
        blocks=(Block("then", "then"), Block("otherwise", "else")),
    ),
    Form(
        Loop,
        "loop",
        (
            Part("carried", NAMES),
            Part("initial", NAMES, lead="from"),
            Part("test", NAME, lead="while"),
            Part("next", NAMES, lead="next"),
            flag("stacked", "stacked"),
            Part("results", NAMES, lead="->"),
        ),
        blocks=(Block("condition", "condition"), Block("body", "body")),
    ),
    Form(
        Repeat,
        "repeat",
        (
            Part("symbol", SYMBOL),
            Part("count", EXPR, lead="below"),
            Part("carried", NAMES, lead="carry"),
            Part("initial", NAMES, lead="from"),
            Part("next", NAMES, lead="next"),
            Part("results", NAMES, lead="->"),
        ),
        blocks=_BODY,
    ),
    Form(CallProgram, "call", (_PROGRAM, _ARGS, _RESULTS)),
    Form(CallPartition, "call_partition", (_PROGRAM, _ARGS, _RESULTS)),
    Form(Comment, "note", (Part("text", STRING),)),
    Form(Return, "return", (Part("values", RETURNED),)),
)

FORMS = FormTable((*_SIZES, *_CHECKS, *_MEMORY, *_WORK, *_STRUCTURE))
