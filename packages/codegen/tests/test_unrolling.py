"""Unrolled loops process every element of a range once, whatever is known about its length."""

from hypothesis import given
from hypothesis import strategies as st

from gyrator_codegen.unrolling import Part, parts_of


def processed(length, width, parts):
    """Return how many elements the parts of a loop process, as printers emit them."""
    at = 0
    for part in parts:
        step = part.steps * width
        while at + step <= length if part.whole else at < length:
            at += min(step, length - at) if part.live else step
            if part.once:
                break
    return at


@given(
    count=st.integers(0, 200), multiple=st.sampled_from([1, 2, 3, 4, 8, 16, 48, 64]),
    width=st.sampled_from([1, 4, 8, 16]), copies=st.sampled_from([1, 2, 4]), known=st.booleans(),
)  # fmt: skip
def test_every_element_is_processed_once(count, multiple, width, copies, known):
    length = count * multiple
    parts = parts_of(length if known else None, multiple, width, copies)
    assert processed(length, width, parts) == length


@given(count=st.integers(0, 20), width=st.sampled_from([4, 8]), copies=st.sampled_from([1, 2, 4]))
def test_multiples_of_an_iteration_leave_no_remainder(count, width, copies):
    step = width * copies
    assert parts_of(None, step, width, copies) == (Part(copies),)
    assert parts_of(count * step, count * step, width, copies) == (Part(copies if count else 1),)
