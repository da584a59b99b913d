"""The table of what functions promise."""

from types import ModuleType


def test_rows_say_what_computes_a_function_and_what_may_differ(promises: ModuleType) -> None:
    found = promises.contracts(["exp", "mm", "addcmul", "sum"])
    assert {name.strip("`"): rest for name, *rest in found} == {
        "addcmul": ["kernels", "its formula"],
        "exp": ["kernels", "the function 'exp'"],
        "mm": ["`aten.mm.default`", "eager's bits"],
        "sum": ["kernels", "a sum of floats"],
    }
