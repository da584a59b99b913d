"""Delta debugging of ATen graphs: results, nodes and arguments are removed as long as it fails.

The method is Zeller and Hildebrandt's (Simplifying and Isolating Failure-Inducing Input, 2002): try
to remove large parts, then smaller ones.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gyrator_lowering.fx_text import parse, show
from gyrator_lowering.torch_bridge.graphs import graph_results

Fails = Callable[[str], bool]
"""Returns whether the text of a graph fails in the same way as the original."""


def minify(text: str, fails: Fails) -> str:
    """Return the text of a minimal part of a graph that fails in the same way.

    Removed nodes become arguments of the graph, or are replaced by one of their operands.
    """
    smaller = True
    while smaller:
        smaller = False
        for shorten in (_shorter, _fewer_results, _fewer_nodes, _bypassed):
            reduced = shorten(text, fails)
            smaller |= reduced != text
            text = reduced
    return text


def calls(text: str) -> int:
    """Return the number of nodes that compute something."""
    return len(_computing(parse(text)))


def _shorter(text: str, fails: Fails) -> str:
    """Truncate the graph after the first node for which the prefix fails."""
    low, high = 0, len(_computing(parse(text)))
    shortest = text
    while low + 1 < high:
        middle = (low + high) // 2
        tried = _prefix(text, middle)
        if fails(tried):
            high, shortest = middle, tried
        else:
            low = middle
    return shortest


def _fewer_results(text: str, fails: Fails) -> str:
    """Keep half of the results, a quarter, and so on, down to one."""
    count = len(graph_results(parse(text)))
    size = count
    while size > 1:
        size = -(-size // 2)
        for start in range(0, count, size):
            tried = _with_results(text, range(start, min(start + size, count)))
            if tried != text and fails(tried):
                return _fewer_results(tried, fails)
    return text


def _fewer_nodes(text: str, fails: Fails) -> str:
    """Turn nodes into arguments: many consecutive nodes at once, then fewer."""
    size = len(_computing(parse(text)))
    while size >= 1:
        start = 0
        while start < len(_computing(parse(text))):
            tried = _without(text, start, size)
            if tried is not None and fails(tried):
                text = tried
            else:
                start += size
        size //= 2
    return text


def _bypassed(text: str, fails: Fails) -> str:
    """Replace a node by an operand of the same layout."""
    index = 0
    while index < len(_computing(parse(text))):
        for tried in _passing_over(text, index):
            if fails(tried):
                text = tried
                break
        else:
            index += 1
    return text


# One step ---------------------------------------------------------------------------------------


def _computing(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op == "call_function"]


def _with_results(text: str, indices: Iterable[int]) -> str:
    gm = parse(text)
    results = graph_results(gm)
    gm.graph.output_node().args = (tuple(results[k] for k in indices),)
    return _cleaned(gm)


def _prefix(text: str, length: int) -> str:
    """Return the first nodes of a graph; its results are the nodes with other users."""
    gm = parse(text)
    inside = set(_computing(gm)[:length])
    results = tuple(
        node
        for node in gm.graph.nodes
        if node in inside
        and isinstance(node.meta.get("val"), Tensor)
        and any(u not in inside for u in node.users)
    )
    gm.graph.output_node().args = (results,)
    return _cleaned(gm)


def _without(text: str, start: int, size: int) -> str | None:
    """Return the graph with some consecutive nodes as arguments; None if that is not possible."""
    gm = parse(text)
    chunk = _computing(gm)[start : start + size]
    inside = set(chunk)
    for node in chunk:
        users = [u for u in node.users if u not in inside]
        if not users:
            continue
        if isinstance(node.meta.get("val"), (tuple, list)):
            if any(u.target is not operator.getitem for u in users):
                return None
            for user in users:
                _becomes_argument(gm, user, user.users)
        else:
            _becomes_argument(gm, node, users)
    for node in reversed(chunk):
        for user in list(node.users):
            if not user.users:
                gm.graph.erase_node(user)
        if not node.users:
            gm.graph.erase_node(node)
    return _cleaned(gm)


def _becomes_argument(gm: GraphModule, node: Node, users: Iterable[Node]) -> None:
    value = node.meta.get("val")
    first = next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(first):
        argument = gm.graph.placeholder(f"{node.name}_in")
    argument.meta["val"] = value
    inside = set(users)
    node.replace_all_uses_with(argument, delete_user_cb=lambda user: user in inside)


def _passing_over(text: str, index: int) -> Iterator[str]:
    gm = parse(text)
    node = _computing(gm)[index]
    for k, operand in enumerate(node.all_input_nodes):
        if _same_layout(operand.meta.get("val"), node.meta.get("val")):
            copy = deepcopy(gm)
            target = _computing(copy)[index]
            target.replace_all_uses_with(target.all_input_nodes[k])
            yield _cleaned(copy)


def _same_layout(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    return str((a.dtype, a.shape, a.stride())) == str((b.dtype, b.shape, b.stride()))


def _cleaned(gm: GraphModule) -> str:
    """Return the text without unused values; sizes are kept if layouts may use them."""
    gm.graph.eliminate_dead_code()
    for node in gm.graph.find_nodes(op="placeholder"):
        if not node.users and isinstance(node.meta.get("val"), Tensor):
            gm.graph.erase_node(node)
    for node in gm.graph.find_nodes(op="get_attr"):
        if not node.users:
            gm.graph.erase_node(node)
    text = show(gm)
    for node in gm.graph.find_nodes(op="placeholder"):
        size = node.meta.get("val")
        unused = isinstance(size, torch.SymInt) and not node.users
        if unused and text.count(str(size)) <= _OWN_MENTIONS:
            gm.graph.erase_node(node)
    return show(gm)


_OWN_MENTIONS = 2
"""The number of mentions of a size that no layout uses: its argument and its fact."""
