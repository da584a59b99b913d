import json
from functools import partial

import pytest

from gyrator_ir.passes import Pipeline
from gyrator_ir.user_code import blamed, defined_at, is_ours


def inner():
    raise ValueError("of mine")


def outer():
    inner()


def through_a_library():
    json.loads("{")


@pytest.mark.parametrize(
    ("module", "ours"),
    [
        ("gyrator.session", True), ("gyrator_codegen_triton.stage", True), ("gyrator_ir", True),
        ("gyrator_mydev.target", False), ("gyrator_toy", False), ("mine.gyrator", False),
        ("__main__", False),
    ],
)  # fmt: skip
def test_whose_code_it_is(module, ours):
    def function(): ...

    function.__module__ = module
    assert is_ours(function) == is_ours(partial(function)) == ours
    assert is_ours(Pipeline) and not is_ours(inner)


@pytest.mark.parametrize(
    ("function", "line", "name", "what"),
    [
        (outer, inner, "inner", "ValueError: of mine"),
        (through_a_library, through_a_library, "through_a_library", "JSONDecodeError: Expecting"),
    ],
)
def test_the_innermost_line_of_a_package_is_blamed(function, line, name, what):
    with pytest.raises(ValueError) as caught:
        function()
    text = blamed(caught.value, function)
    assert text.startswith(what)
    assert text.endswith(f", at {__file__}:{line.__code__.co_firstlineno + 1} in {name}")


def test_a_function_that_could_not_be_called_is_blamed_where_it_begins():
    place = f"{__file__}:{outer.__code__.co_firstlineno} in outer"
    assert defined_at(partial(outer)) == place and defined_at(print) == ""
    assert blamed(TypeError(), outer) == f"TypeError, at {place}"
    assert blamed(TypeError("none"), print) == "TypeError: none"
