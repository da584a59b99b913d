"""The collector of cycles leaves alone what was alive before a compile."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gyrator_runtime.collector import only_new_objects


class Node:
    """Something that can be part of a cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Let no test find, or leave, frozen objects or a collector that is off."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_new_cycles_are_collected_and_old_ones_wait() -> None:
    old = weakref.ref(Node())
    with only_new_objects():
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
        assert old() is not None
    gc.collect()
    assert old() is None


def test_a_block_brings_no_full_collection_nearer() -> None:
    retained = []
    with only_new_objects():
        while gc.get_count()[2] <= gc.get_threshold()[2]:  # a full collection is due
            retained.append(Node())
    assert gc.get_count()[2] == 0


def test_what_died_last_in_a_block_is_collected_at_its_end() -> None:
    with only_new_objects():
        dead = weakref.ref(Node())
    assert dead() is None


def test_what_dies_in_a_block_may_wait() -> None:
    retained: list[Node] = []
    with only_new_objects(collect=False):
        dead = weakref.ref(Node())
        while len(retained) < 150_000:  # enough for a collection in other blocks
            retained.append(Node())
        assert dead() is not None
    gc.collect(0)
    assert dead() is not None
    gc.collect()
    assert dead() is None


def test_everything_is_looked_at_again_afterwards_even_if_it_fails() -> None:
    def fail() -> None:
        with only_new_objects():
            assert gc.get_freeze_count()
            raise ValueError("no")

    thresholds = gc.get_threshold()
    with pytest.raises(ValueError, match="no"):
        fail()
    assert not gc.get_freeze_count()
    assert gc.get_threshold() == thresholds


def test_a_block_starts_few_collections() -> None:
    started: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.append(info["generation"])

    retained: list[Node] = []
    gc.callbacks.append(note)
    try:
        with only_new_objects():
            while len(retained) < 250_000:
                retained.append(Node())
            inside = list(started)
    finally:
        gc.callbacks.remove(note)
    assert inside == [0, 0], "not 350 by Python's default"
    assert started == [0, 0, 0]


def test_blocks_may_be_nested() -> None:
    thresholds = gc.get_threshold()
    with only_new_objects():
        raised = gc.get_threshold()
        with only_new_objects():
            assert gc.get_threshold() == raised > thresholds
        assert gc.get_freeze_count()
        assert gc.get_threshold() == raised
    assert not gc.get_freeze_count()
    assert gc.get_threshold() == thresholds


def test_what_a_process_has_frozen_stays_frozen() -> None:
    old = weakref.ref(Node())
    gc.freeze()
    with only_new_objects():
        pass
    gc.collect()
    assert old() is not None
    assert gc.get_freeze_count()


def test_a_collector_that_is_off_stays_as_it_is() -> None:
    gc.disable()
    with only_new_objects():
        assert not gc.get_freeze_count()
    assert not gc.isenabled()


def test_a_collector_that_never_starts_by_itself_does_not_either() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with only_new_objects():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*thresholds)
