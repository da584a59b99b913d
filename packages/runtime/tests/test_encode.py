"""The numbers that encode.py and plan.h share."""

import re
from pathlib import Path

from gyrator_runtime.native import encode, load, program, words


def test_numbers_agree_with_the_native_source():
    text = Path(load.__file__).with_name("plan.h").read_text()
    native = {name: int(value) for name, value in re.findall(r"\b([A-Z_]+) = (\d+)[,\s}]", text)}
    for name in (
        *("END", "LOAD_INT", "EVAL", "LAUNCH", "CALL_TUPLE", "CALL", "DROP", "GET_ITEM"),
        *("RETURN", "MOVE", "OPERATE", "CONFORM", "SEPARATE"),
    ):
        assert native[f"OP_{name}"] == getattr(words, name)
    for name in ("ARG_REG", "ARG_CONST", "ARG_INT", "ARG_INT_TUPLE"):
        assert native[name] == getattr(words, name)
    for number, name in enumerate(words.EXPR_OPS):
        assert native[f"EXPR_{name.upper()}"] == number
    depth = re.search(r"kExprDepth = (\d+)", text)
    assert depth is not None
    assert int(depth[1]) == words.EXPR_DEPTH


def test_equal_sizes_share_a_slot():
    n = program.SizeProgram((("arg", 0), ("const", 4), ("mul", 0)))
    launch = program.Launch(1, (program.Buffer(0, n),), (n, n, 4, 4, program.SizeArg(0)))
    encoded = encode.encode(program.PlanProgram(1, 1, (launch, launch)))
    assert len(encoded.ints) == 3  # r0, 4 * r0, 4
    assert encoded.code.count(words.EVAL) >= 1


def test_static_calls_carry_one_prebuilt_tuple():
    call = program.Call(0, max, (program.IntTuple((1, 2)), program.Const((3,))))
    encoded = encode.encode(program.PlanProgram(0, 1, (call,)))
    assert encoded.consts == [max, ((1, 2), (3,))]
    assert encoded.code[0] == words.CALL_TUPLE
