"""Lines, blocks, source maps and names."""

from gyrator_codegen import Names, Writer


def test_blocks_indent():
    w = Writer()
    w.line("a")
    with w.block("if (x) {"):
        w.lines("b", "")
        with w.block("for:", end=""):
            w.line("c")

    assert w.text == "a\nif (x) {\n  b\n\n  for:\n    c\n}\n"


def test_source_map_names_the_next_line():
    w = Writer()
    w.line("a")
    w.origin(7)
    w.line("b")

    assert w.source_map == ((2, 7),)
    assert Writer().text == ""


def test_names_are_free_and_given_once():
    names = Names(frozenset({"int"}))

    assert [names.take("int"), names.take("x"), names.take("x")] == ["int_1", "x", "x_1"]
    assert [names.stable("y"), names.take("y"), names.stable("y")] == ["y", "y_1", "y"]
