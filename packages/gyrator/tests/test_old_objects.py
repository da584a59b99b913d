"""While Dynamo compiles, the garbage collector leaves alone what was alive before."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch._dynamo.callback import callback_handler

import gyrator
from gyrator.frontend.dynamo.callbacks import watch_compiles


class Node:
    """Something that is part of a cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    """Watch compiles as after an import of Gyrator, and let no test find frozen objects."""
    gc.unfreeze()
    torch._dynamo.reset()
    watch_compiles()
    yield
    torch._dynamo.reset()
    gc.unfreeze()
    watch_compiles()


def assert_watched_once() -> None:
    starts, ends = callback_handler.start_callbacks, callback_handler.end_callbacks
    assert len(set(starts)) == len(starts)
    assert len(ends) == 1


def test_a_collection_during_a_compile_looks_at_new_objects_only() -> None:
    looked: list[bool] = []

    def backend(gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        new = weakref.ref(Node())
        gc.collect()
        looked.extend((gc.get_freeze_count() > 0, new() is None))
        return gm.forward

    x = torch.randn(3)
    assert torch.equal(torch.compile(torch.sin, backend=backend)(x), x.sin())
    assert looked == [True, True]
    assert not gc.get_freeze_count()


def test_old_objects_are_looked_at_again_after_a_compile_that_fails() -> None:
    def backend(_gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        assert gc.get_freeze_count()
        raise ValueError("no")

    with pytest.raises(Exception, match="no"):
        torch.compile(torch.sin, backend=backend)(torch.randn(3))
    assert not gc.get_freeze_count()


def test_an_end_without_a_start_changes_nothing() -> None:
    gc.freeze()
    (end,) = callback_handler.end_callbacks
    end(None)  # type: ignore[arg-type]
    assert gc.get_freeze_count()


def test_compiles_are_watched_once() -> None:
    watch_compiles()
    assert_watched_once()


def test_compiles_are_watched_again_after_a_reset() -> None:
    """Also after one during a compile, which Dynamo does not end then."""

    def backend(gm: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        with suppress(AssertionError):  # that a compile is under way
            torch._dynamo.reset()
        return gm.forward

    x = torch.randn(3)
    torch.compile(torch.sin, backend=backend)(x)
    assert gc.get_freeze_count()
    assert torch.equal(torch.compile(torch.neg, backend="gyrator")(x), -x)
    assert_watched_once()
    assert not gc.get_freeze_count()


def test_access_to_a_loaded_name_makes_no_object_old() -> None:
    assert gyrator.list_options
    gc.collect()
    fresh: list[object] = []
    assert gyrator.list_options
    assert any(o is fresh for o in gc.get_objects(generation=0))
