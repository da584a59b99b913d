"""Scaled dot product attention: a library call, a template, or loops over sums of products.

Eager's attention ops have the same arguments, each in an order of its own; `Attention` holds them.
If kernels are requested, the device's template computes the result and the logarithms of the sums,
or loops do if there is no template.
"""

from typing import Any

import torch
from attrs import evolve

from gyrator_ir.body.nodes import ReduceKind
from gyrator_ir.loop.nodes import TemplateKind
from gyrator_lowering.builder.program import LoopBuilder
from gyrator_lowering.builder.trace import Index, Tracer, Value
from gyrator_lowering.builder.values import TensorValue
from gyrator_lowering.rules.attention import gradients
from gyrator_lowering.rules.attention.few_keys import has_few_keys, lower_few_keys
from gyrator_lowering.rules.attention.parts import lower_few_rows, parts_of_few_rows
from gyrator_lowering.rules.attention.scores import (
    Attention,
    attention,
    finite,
    group_of,
    offers,
    rows_of,
    score_of,
    template,
)
from gyrator_lowering.rules.extern import by_name, call_of, library
from gyrator_lowering.table import FallbackToAten, Rule, TableBuilder


def _forward(last_row_sees_all: bool) -> Rule:
    """Return the rule of an op that returns the result, or also the sums and other saved values;
    see `attention`."""
    called = library()

    def rule(b: LoopBuilder, *args: Any, **kwargs: Any) -> Any:
        fakes = b.node.meta["val"]
        single = isinstance(fakes, torch.Tensor)
        results: list[Any] = [fakes] if single else list(fakes)
        used = frozenset({0}) if single else b.used_results
        try:
            a = attention(by_name(b, args, kwargs), last_row_sees_all)
        except FallbackToAten:
            if b.generates:
                raise
            return called(b, *args, **kwargs)
        alone = used == frozenset({0})
        parts = parts_of_few_rows(b, a) if alone else 0
        few_keys = alone and not parts and has_few_keys(b, a)
        if not parts and not few_keys and not b.generates:
            return called(b, *args, **kwargs)
        out = b.buffer(b.exact_spec(results[0]))
        if parts or few_keys:
            if parts:
                lower_few_rows(b, a, parts, out)
            else:
                lower_few_keys(b, a, out)
            return out if single else (out, *(None for _ in results[1:]))
        sums = None
        if 1 in used and (results[1].numel() or not results[0].numel()):
            sums = b.buffer(b.exact_spec(results[1]))
        if offers(b, a, TemplateKind.ATTENTION):
            result_names = (out.buffer, None if sums is None else sums.buffer)
            call = call_of(
                b, args, kwargs, (*result_names, *(None for _ in results[2:]))[: len(results)]
            )
            outputs = (out.ref, *(() if sums is None else (rows_of(sums).ref,)))
            operands = (a.q.ref, a.k.ref, a.v.ref)
            template(b, a, TemplateKind.ATTENTION, operands, outputs, call)
        else:
            _loops(b, a, out, sums)
        rest = [_saved_value(b, a, fake, k in used) for k, fake in enumerate(results[2:], 2)]
        return out if single else (out, sums, *rest)

    return rule


def _saved_value(b: LoopBuilder, a: Attention, fake: Any, used: bool) -> Any:
    """Return a value that an op saves beside the sums: zeros for the seeds of dropout, which is
    unused."""
    if isinstance(fake, torch.Tensor):
        if not used:
            return None
        spec = evolve(b.spec(fake), device=a.q.device)
        return b.pointwise(lambda ops, _: ops.const(0, spec.dtype), spec)
    return None if fake is None else b.symbols.size(fake)


def _loops(b: LoopBuilder, a: Attention, out: TensorValue, sums: TensorValue | None) -> None:
    dtype, rows = a.dtype, a.q.shape[:3]
    score = score_of(b, a)
    columns = a.scores[3:]

    def scores(ops: Tracer, index: Index, rindex: Index) -> Value:
        return score(ops, (*index, *rindex))

    top = b.temp(rows, dtype, a.q)
    b.reduction(ReduceKind.MAX, scores, rows, columns, [top], dtype)

    def exponential(ops: Tracer, index: Index, rindex: Index) -> Value:
        return ops.exp(score(ops, (*index, *rindex)) - finite(ops, top, index))

    total = b.temp(rows, dtype, a.q)
    b.reduction(ReduceKind.SUM, exponential, rows, columns, [total], dtype)

    def terms(ops: Tracer, index: Index, rindex: Index) -> tuple[Value, Value]:
        batch, head, row, element = index
        weight = exponential(ops, (batch, head, row), rindex)
        value = ops.load(a.v, (batch, group_of(a, head), *rindex, element))
        return ops.cast(weight, a.v.dtype), value

    def after(ops: Tracer, index: Index, product: Value) -> Value:
        count = ops.load(total, index[:3])
        return product / ops.where(ops.eq(count, 0), 1, count)

    wide = b.temp(out.shape, dtype, a.q)
    b.reduction(ReduceKind.DOT, terms, out.shape, columns, [wide], dtype)
    b.pointwise_into(out, lambda ops, index: after(ops, index, ops.load(wide, index)))
    if sums is None:
        return
    if sums.shape[2] != a.q.shape[2]:
        raise FallbackToAten
    row_sums = rows_of(sums)
    b.pointwise_into(row_sums, lambda ops, i: ops.log(ops.load(total, i)) + finite(ops, top, i))


def register(table: TableBuilder) -> None:
    """Add this family to `table`."""
    for name in (
        "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention",
        "fused_attention_overrideable",
    ):  # fmt: skip
        last_row_sees_all = name in ("flash_attention", "cudnn_attention")
        op = f"aten._scaled_dot_product_{name}"
        table.rule(op)(_forward(last_row_sees_all))
        table.rule(f"{op}_backward")(gradients.backward(last_row_sees_all))
    table.rule("aten.scaled_dot_product_attention")(_forward(False))
    table.rule("aten._scaled_dot_product_attention_math")(library())
    table.rule("aten._flash_attention_forward", "aten._flash_attention_backward")(library())
    table.rule("aten._efficient_attention_forward", "aten._efficient_attention_backward")(library())
