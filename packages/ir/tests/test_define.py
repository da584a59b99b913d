"""Methods that are generated late are those that attrs generates at once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import attrs
import pytest

from gyrator_ir.checks import bits
from gyrator_ir.define import define, frozen


def _classes(make: Any) -> tuple[type, type, type]:
    class Node:
        name: str
        value: float = attrs.field(eq=bits)
        note: str = attrs.field(default="", eq=False, repr=False)

    class Leaf:
        pass

    decorated = make(Node)

    class Child(decorated):  # type: ignore[misc, valid-type]
        more: int = attrs.field(default=0, kw_only=True)

    return decorated, make(Leaf), make(Child)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(define, attrs.define), (frozen, attrs.frozen)], ids=["define", "frozen"]
)
@pytest.mark.parametrize("first", ["eq", "ne", "hash", "repr", "set"])
def test_methods_are_those_of_attrs_whichever_is_called_first(
    ours: Any, theirs: Any, first: str
) -> None:
    calls = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "hash": lambda a, b: hash(a) == hash(b),
        "repr": lambda a, b: (repr(a), repr(b)),
        "set": lambda a, b: len({a, b}),
    }
    order = [first, *(c for c in calls if c != first)]

    def answers(classes: tuple[type, type, type]) -> list[object]:
        node, leaf, child = classes
        nan = float("nan")
        objects = [
            node("a", 1.0), node("a", 1.0, "other"), node("a", 1), node("b", 1.0),
            node("a", nan), node("a", nan), node(node("a", 0.0), -0.0), node(node("a", -0.0), -0.0),
            leaf(), leaf(), child("a", 1.0), child("a", 1.0), child("a", 1.0, more=1),
        ]  # fmt: skip
        results: list[object] = []
        for call in order:
            for a in objects:
                for b in objects:
                    try:
                        results.append(calls[call](a, b))
                    except TypeError as error:  # objects that can change have no hash
                        results.append(str(error).partition("'")[0])
        return results

    late, early = _classes(ours), _classes(theirs)
    assert answers(late) == answers(early)
    assert answers(late) == answers(early), "once they are generated"


def test_methods_of_the_class_itself_stay() -> None:
    @frozen
    class Named:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    @frozen(eq=False)
    class Same:
        name: str

    assert repr(Named("a")) == "<a>"
    assert len({Named("a"), Named("A")}) == 1
    one = Same("a")
    assert one == one and one != Same("a")
    assert repr(one).endswith("Same(name='a')")


def test_classes_may_have_no_text() -> None:
    @frozen(repr=False)
    class Secret:
        content: str

    assert Secret("a") == Secret("a")
    assert "content" not in repr(Secret("a"))


def test_classes_that_can_change_are_not_hashed() -> None:
    @define
    class Box:
        content: int

    box = Box(1)
    box.content = 2
    assert box == Box(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(box)


def test_only_methods_that_are_called_are_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    generated: list[str] = []
    make_class = attrs.make_class

    def counted(name: str, *rest: Any, **options: Any) -> type:
        generated.append(name)
        return make_class(name, *rest, **options)

    monkeypatch.setattr(attrs, "make_class", counted)

    @frozen
    class Used:
        a: int

    @frozen
    class Unused:
        a: int

    Unused(1)
    assert generated == []
    assert Used(1) == Used(1)
    assert len({Used(1), Used(2)}) == 2
    assert repr(Used(1)).endswith("Used(a=1)")
    assert generated == ["Used"]


def test_threads_may_call_methods_first_at_once() -> None:
    threads = 4
    start = Barrier(threads)

    def answers(first: Any, same: Any, other: Any) -> list[object]:
        start.wait()
        repeated = ((hash(first), first == same, first == other, repr(first)) for _ in range(3))
        return [*repeated, first in {same}, first in {other}]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(50):
                node, _, child = _classes(frozen)
                objects = (child(node("a", 1.0), 2.0), child(node("a", 1.0), 2.0), node("b", 2.0))
                runs = [pool.submit(answers, *objects) for _ in range(threads)]
                found = [run.result(timeout=60) for run in runs]
                once = (hash(objects[0]), True, False, repr(objects[0]))
                assert found == [[once, once, once, True, False]] * threads
    finally:
        sys.setswitchinterval(interval)
