"""What is no text of a program: the code, the line and what was expected."""

import pytest

from gyrator_ir.diagnostics import ParseError
from gyrator_ir.host.parse import parse as parse_host
from gyrator_ir.kernel.parse import parse as parse_schedule
from gyrator_ir.levels import KERNEL, level_of_text
from gyrator_ir.loop.parse import parse

LOOP = """loop.program 1 @p
  in x: f32[8] strides [1] on cpu
  buffer y: f32[8] strides [1] on cpu
  pointwise op0 (i0 < 8)
    a = load x[i0]
    b: f32 = add a, a
    store y[i0], b
  return y
"""


def error(read, text):
    with pytest.raises(ParseError) as caught:
        read(text)
    return caught.value.diagnostic


def edited(old, new):
    assert old in LOOP
    return LOOP.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("loop.program 1 @p", "loop.program one @p", 1, "expected `loop.program 1 @name`"),
        ("loop.program 1 @p", "host.program 1 @p", 1, "expected `loop.program 1 @name`"),
        ("in x: f32", "in x f32", 2, "expected ':'"),
        ("in x: f32", "in x: f33", 2, "expected an element type"),
        ("[8] strides", "[8) strides", 2, "expected ']'"),
        ("strides [1] on", "strides [1] at", 2, "expected 'on'"),
        ("on cpu\n  buffer", "on cpu aligned\n  buffer", 2, "expected the end of the line"),
        ("  buffer y", "  bufer y", 3, "expected one of"),
        ("pointwise op0 (i0 < 8)", "pointwise op0 (x < 8)", 4, "expected a symbol"),
        ("pointwise op0 (i0 < 8)", "pointwise op0 (i0 < )", 4, "expected an expression"),
        ("pointwise op0 (i0 < 8)", "pointwise op0 (i0 < 8) over", 4, "expected the end"),
        ("pointwise op0 (i0 < 8)", "reduction op0 (i0 < 8) over (r0 < 2)", 4, "one reduction step"),
        ("a = load x[i0]", "a = lod x[i0]", 5, "expected `load` or `bind`"),
        ("a = load x[i0]", "a = load x[i0 +]", 5, "expected an expression"),
        ("a = load x[i0]", "a = load x[i0] if", 5, "expected a name"),
        ("a = load x[i0]", "a load x[i0]", 5, "expected ':'"),
        ("add a, a", "ad a, a", 6, "did you mean 'add'"),
        ("add a, a", "const x", 6, "expected a number"),
        ("add a, a", "reduce.sun a", 6, "expected a reduction"),
        ("b: f32 = add a, a", "b, c: f32 = add a, a", 6, "the statements with several results"),
        ("store y[i0], b", "store.sub y[i0], b", 7, "expected a store mode"),
        ("    store y[i0], b", "      store y[i0], b", 7, "no line to be indented here"),
        ("    store y[i0], b", "   store y[i0], b", 7, "an indentation of 4 spaces"),
        ("    store y[i0], b", "\tstore y[i0], b", 7, "got a tab"),
        ("return y", "return z", 8, "expected the name of a declared buffer, got 'z'"),
        ("return y", "return y,", 8, "expected a name"),
        ("return y", 'return "y', 8, "a string in double quotes"),
        ("return y", "return y\n  return y", 9, "expected one `return`"),
        ("  return y\n", "", 1, "expected one `return`"),
    ],
)
def test_loop(old, new, line, expected):
    diagnostic = error(parse, edited(old, new))
    assert diagnostic.code in ("GY-PARSE-001", "GY-PARSE-003")
    assert diagnostic.where.startswith(f"line {line}: ")
    assert expected in diagnostic.message


def test_what_a_node_refuses():
    diagnostic = error(parse, edited("add a, a", "ad a, a"))
    assert diagnostic.code == "GY-PARSE-003"
    diagnostic = error(
        parse, edited("    b: f32", "    i: i64 = index i0\n    q = bind i below 3\n    b: f32")
    )
    assert (diagnostic.code, diagnostic.where) == ("GY-PARSE-001", "line 7: q = bind i below 3")


@pytest.mark.parametrize(
    ("read", "kind"),
    [(parse, "loop.program"), (parse_schedule, "kernel.schedule"), (parse_host, "host.program")],
)
def test_another_version_is_refused(read, kind):
    diagnostic = error(read, f"{kind} 2 @p\n  return\n")
    assert diagnostic.code == "GY-PARSE-002"
    assert diagnostic.message == f"expected version 1 of {kind}, got version 2"
    assert diagnostic.where == f"line 1: {kind} 2 @p"


@pytest.mark.parametrize("read", [parse, parse_schedule, parse_host])
@pytest.mark.parametrize("text", ["", "; only a comment\n", "\n\n"])
def test_empty_texts(read, text):
    assert error(read, text).code == "GY-PARSE-001"


def test_two_programs_in_one_text():
    assert error(parse, LOOP + LOOP).where == "line 9: loop.program 1 @p"


def test_the_first_line_says_the_level():
    assert level_of_text("; a comment\nkernel.schedule 1 @p\n") is KERNEL
    assert "loop.program" in error(level_of_text, "module 1 @p\n").message
    assert error(level_of_text, "").code == "GY-PARSE-001"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("kernel k0 on cpu (i0 < 8)\n    stage\n  return", 3, "expected one of"),
        ("kernel k0 on cpu (i0 < 8)\n    outer x\n  return", 3, "alone on its line"),
        ("kernel k0 cpu ()\n  return", 2, "expected 'on'"),
        ("life y 0\n  return", 2, "expected 'to'"),
        ("partition 0 to x\n  return", 2, "expected an integer"),
        ("pointwise op0 ()\n  return", 2, "expected one of"),
        ("fact s0 within [1, 2]\n  return", 2, "expected a fact"),
        ("origin 1 %a aten.add\n  return", 2, "expected row 0"),
        ("template t conv () -> ()\n  return", 2, "expected one of"),
    ],
)
def test_kernel(text, line, expected):
    diagnostic = error(parse_schedule, f"kernel.schedule 1 @p\n  {text}\n")
    assert diagnostic.where.startswith(f"line {line}: ")
    assert expected in diagnostic.message


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("do now", 2, "expected `do` alone"),
        ("capture cpu now\n  do", 2, "expected the end of the line"),
        ("home cpu\n  home cpu\n  do", 3, "expected one `home`"),
        ("do\n    y = alocate f32[8]", 3, "expected an instruction"),
        ("do\n    launch k0 [x]", 3, "expected '('"),
        ("do\n    branch x then () else () -> ()\n      then", 3, "expected below it: then, else"),
        ("do\n    free x y", 3, "expected the end of the line"),
        ('do\n    assert (s0) "m"', 3, "expected a condition"),
        ("parameter x\n  do", 2, "expected a word"),
    ],
)
def test_host(text, line, expected):
    diagnostic = error(parse_host, f"host.program 1 @p\n  {text}\n")
    assert diagnostic.where.startswith(f"line {line}: ")
    assert expected in diagnostic.message


def test_host_without_do():
    assert "one `do`" in error(parse_host, "host.program 1 @p\n").message
