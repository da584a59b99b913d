"""The choice of the tensors that the forward pass saves for the backward pass.

PyTorch's partitioner minimizes the bytes that are saved, of which parameters cost nothing because
they live anyway. So do the function's results, at least until the caller drops them, but the
partitioner would rather save another tensor of the same size that is closer to the backward pass.
The same holds for inputs that have gradients, such as the logits of a model whose loss is computed
after a break of the graph, if there are no others of floats but parameters.

It also saves all indices of scatters, for it assumes that they are read from memory. What depends
on no tensor, such as positions in an image, is instead computed again: lowering makes it part of
the kernels that read it.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.fx import GraphModule, Node

from gyrator.graphs.compiled import LIVING
from gyrator_ir.define import frozen

aten = torch.ops.aten
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.alias.default})
_CHEAP = frozenset(
    "arange iota full zeros ones scalar_tensor _to_copy convert_element_type clone add sub mul div "
    "true_divide floor_divide remainder neg abs sign floor ceil round trunc minimum maximum clamp "
    "clamp_min clamp_max where eq ne lt le gt ge logical_and logical_or logical_not bitwise_and "
    "bitwise_or bitwise_xor bitwise_not tril triu".split()
)
"""Ops that a kernel computes in about the time of a load, or less."""
_INDEXED = frozenset(
    "index _unsafe_index index_put _unsafe_index_put _unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate gather scatter scatter_add index_select index_add "
    "embedding embedding_dense_backward".split()
)
"""Ops whose kernels compute their indices."""


@frozen
class _Living:
    """A result of the forward graph, and the parameter that its readers read instead."""

    index: int
    name: str


def partition(
    joint: GraphModule,
    inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: Sequence[int] | None = None,
    **kwargs: Any,
) -> tuple[GraphModule, GraphModule]:
    """Split a joint graph, changing it, into the graphs of the forward and the backward pass. Takes
    the arguments of torch's `min_cut_rematerialization_partition`, which decides."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    static = list(static_lifetime_input_indices or ())
    static += _with_gradients(joint, frozenset(static))
    living = _as_parameters(joint, num_fwd_outputs, static)
    forward, backward = min_cut_rematerialization_partition(
        joint,
        inputs,
        num_fwd_outputs=num_fwd_outputs,
        static_lifetime_input_indices=static,
        **kwargs,
    )
    parameters = {node.name: node for node in forward.graph.find_nodes(op="placeholder")}
    results: Any = forward.graph.output_node().args[0]
    for each in living:
        parameters[each.name].replace_all_uses_with(results[each.index])
        forward.graph.erase_node(parameters[each.name])
    replaced = _save_inputs(forward, backward, num_fwd_outputs)
    replaced |= _save_no_constants(forward, backward, num_fwd_outputs)
    for graph_module, changed in ((forward, replaced or living), (backward, replaced)):
        if changed:
            graph_module.graph.lint()
            graph_module.recompile()
    return forward, backward


def _with_gradients(joint: GraphModule, static: Collection[int]) -> list[int]:
    """Return the positions, among the function's inputs, of those that have gradients and that it
    does not write, such as results of an earlier graph.

    None are returned if there are other inputs of floats beside the `static` ones. The partitioner
    would save such an input, with one that costs nothing, rather than what is computed from both;
    but callers may write the next batch over it before the backward pass.
    """
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput, InputMutationAOTOutput
    from torch._functorch._aot_autograd.utils import _is_primal

    described = joint.graph.output_node().meta.get("desc", ())
    inputs = {kind.grad_of for kind in described if isinstance(kind, GradAOTOutput)}
    # AOTAutograd copies such results to the inputs after the forward pass.
    written = {k.mutated_input for k in described if isinstance(k, InputMutationAOTOutput)}
    primals = [*filter(_is_primal, joint.graph.find_nodes(op="placeholder"))]
    others = {n: node for n, node in enumerate(primals) if n not in static and _is_float(node)}
    if any(node.meta.get("desc") not in inputs for node in others.values()):
        return []
    return [
        n
        for n, node in others.items()
        if node.meta.get("desc") not in written and not _is_written(node)
    ]


def _is_float(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_written(node: Node) -> bool:
    """Return whether an op writes to a tensor itself."""
    schemas = (getattr(user.target, "_schema", None) for user in node.users)
    return any(schema and schema.is_mutable for schema in schemas)


def _save_inputs(forward: GraphModule, backward: GraphModule, outputs: int) -> bool:
    """Save inputs of the function rather than views of them, which occupy the same memory; return
    whether there are any. A saved input exists, for second-order gradients, as long as the tensors
    that are saved."""
    output = forward.graph.output_node()
    results: list[Any] = [*output.args[0]]  # type: ignore[misc]  # a tuple of nodes and constants
    body = next(node for node in backward.graph.nodes if node.op != "placeholder")
    parameters = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    saved = set(results[outputs:])
    unsaved: list[Node] = []
    for index in range(outputs, len(results)):
        source, views = _views_of_input(results[index])
        if source is None or source in saved:
            continue
        parameter = parameters.get(views[-1].name)
        if parameter is None:  # also a result of the function, which lives anyway
            continue
        with backward.graph.inserting_before(parameter):
            value = backward.graph.placeholder(source.name)
        value.meta = dict(source.meta)
        copies = {source: value}
        with backward.graph.inserting_before(body):
            for view in views:
                value = copies[view] = backward.graph.node_copy(view, copies.__getitem__)
        parameter.replace_all_uses_with(value)
        backward.graph.erase_node(parameter)
        results[index] = source
        saved.add(source)
        unsaved += views
    if unsaved:
        output.args = (tuple(results),)
    for view in sorted(set(unsaved), reverse=True):
        if not view.users:
            forward.graph.erase_node(view)
    return bool(unsaved)


def _views_of_input(node: Any) -> tuple[Node | None, list[Node]]:
    """Return an input that is never written and the views, in order, that lead from it to a tensor;
    None if there are none."""
    from torch.fx.experimental.symbolic_shapes import free_symbols

    from gyrator_lowering.torch_bridge.schema import info_of

    views: list[Node] = []
    while isinstance(node, Node) and isinstance(node.target, torch._ops.OpOverload):
        if not info_of(node.target).is_view or len(node.all_input_nodes) != 1:
            return None, []
        views.insert(0, node)
        (node,) = node.all_input_nodes
    if not views or node.op != "placeholder" or _is_written(node):
        return None, []
    # The backward graph has values of the symbols that it saves, and may have no others.
    known = free_symbols(node.meta["val"]) <= free_symbols(views[-1].meta["val"])
    return (node, views) if known else (None, [])


def _save_no_constants(forward: GraphModule, backward: GraphModule, outputs: int) -> bool:
    """Compute in the backward graph, instead of saving, what depends on no tensor; return whether
    there is any."""
    output = forward.graph.output_node()
    results: list[Any] = [*output.args[0]]  # type: ignore[misc]  # a tuple of nodes and constants
    body = next(node for node in backward.graph.nodes if node.op != "placeholder")
    parameters = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    copies: dict[Node, Node] = {}
    saved = results[:outputs]
    for result in results[outputs:]:
        parameter, chain = parameters.get(result.name), _constant_chain(result, parameters)
        if not chain or parameter is None or not _is_fused(parameter):
            saved.append(result)  # a parameter of another name is also a result of the function
            continue
        with backward.graph.inserting_before(body):
            for node in chain:
                if node not in copies:
                    size = None if _is_tensor(node) else parameters.get(node.name)
                    copies[node] = size or backward.graph.node_copy(node, copies.__getitem__)
        parameter.replace_all_uses_with(copies[result])
        backward.graph.erase_node(parameter)
    output.args = (tuple(saved),)
    return len(saved) < len(results)


def _constant_chain(result: Node, parameters: Mapping[str, Node]) -> list[Node]:
    """Return the cheap ops, in order, that compute a tensor from sizes among `parameters` and from
    nothing else, with these sizes; none if other ops do, or if it is no tensor."""
    if not _is_tensor(result):
        return []
    chain: set[Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node in chain:
            continue
        chain.add(node)
        if _is_tensor(node) or node.name not in parameters:
            cheap = not _is_tensor(node) or _is_cheap(node.target)
            if node.op != "call_function" or not cheap:
                return []
            waiting += node.all_input_nodes
    return sorted(chain)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta["val"], torch.Tensor)


def _is_cheap(target: Any) -> bool:
    from gyrator_lowering.torch_bridge.schema import info_of

    return isinstance(target, torch._ops.OpOverload) and (
        _packet(target) in _CHEAP or info_of(target).is_view
    )


def _is_fused(value: Node) -> bool:
    """Return whether all readers are parts of kernels that compute what they read."""
    return all(_computes_operands(user) for user in value.users)


def _computes_operands(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    elementwise = torch.Tag.pointwise in node.target.tags
    if elementwise or _packet(node.target) in _INDEXED:
        return True
    return _is_cheap(node.target) and _is_fused(node)


def _packet(target: Any) -> str:
    """Return an op's name without its namespace and overload."""
    return str(target._schema.name).rpartition(":")[2]


def _as_parameters(joint: GraphModule, outputs: int, static: list[int]) -> list[_Living]:
    """Make all readers of the user's results read new parameters instead, and add the positions of
    these among the forward pass's parameters to `static`."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTOutput
    from torch._functorch._aot_autograd.utils import _is_primal

    from gyrator_lowering.fx_passes.insert import size_parameters

    output = joint.graph.output_node()
    returned: Any = output.args[0]
    described = output.meta.get("desc", ())
    placeholders = joint.graph.find_nodes(op="placeholder")
    primals = sum(map(_is_primal, placeholders))
    done: dict[Node, None] = {}
    known_sizes = size_parameters(joint)
    living: list[_Living] = []
    for index, (result, kind) in enumerate(zip(returned[:outputs], described, strict=False)):
        if not isinstance(kind, PlainAOTOutput) or not isinstance(result, Node) or result in done:
            continue
        done[result] = None
        views = _views_of_one(result)
        if views is None or all(set(v.users) <= {output, *views} for v in views):
            continue
        with joint.graph.inserting_after(placeholders[-1]):
            parameter = joint.graph.placeholder(f"{LIVING}{len(living)}")
        placeholders.append(parameter)
        parameter.meta = {"val": result.meta["val"]}
        _read(joint, parameter, views, output, known_sizes)
        static.append(primals + len(living))
        living.append(_Living(index, parameter.name))
    return living


def _views_of_one(result: Node) -> list[Node] | None:
    """Return a computed tensor and the views of all of it, in order, that lead to a result; None if
    the result is not a computed tensor."""
    from torch._prims_common import is_contiguous_or_false

    chain = [result]
    while chain[-1].target in _VIEWS:
        source: Any = chain[-1].args[0]
        if not all(is_contiguous_or_false(n.meta["val"]) for n in (source, chain[-1])):
            break
        chain.append(source)
    computed = chain[-1].op == "call_function" and isinstance(result.meta["val"], torch.Tensor)
    return chain[::-1] if computed else None


def _read(
    joint: GraphModule,
    parameter: Node,
    views: Sequence[Node],
    output: Node,
    known_sizes: Mapping[Any, Node],
) -> None:
    """Make the readers of a tensor, after the last of its `views`, read a parameter."""
    from gyrator_lowering.fx_passes.insert import insert, sizes

    for source, view in pairwise(views):
        if all(x is source or x.op == "placeholder" for x in view.all_input_nodes):
            source.append(view)
    result = views[-1]
    for node in views:
        readers = [u for u in node.users if u is not output and u not in views and u > result]
        if not readers:
            continue
        value = parameter
        if node is not result:
            call = partial(insert, joint, min(readers))
            value = call(aten.view.default, parameter, sizes(call, node, known_sizes))
        for reader in readers:
            reader.replace_input_with(node, value)
