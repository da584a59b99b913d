"""Loop operations point by point, in Python: what the vectorised interpreter is compared with."""

import itertools

import numpy as np

from gyrator_ir.body.nodes import Bind, Const, IndexValue, Let, Load, Store, StoreMode
from gyrator_ir.expr import evaluate
from gyrator_ir.loop.nodes import Extern, Reduction, Scan, Sort
from gyrator_testing.interp import folds
from gyrator_testing.interp.calls import Machine, bind_inputs
from gyrator_testing.interp.dtypes import NUMPY, scalar
from gyrator_testing.interp.externs import DEFAULT
from gyrator_testing.interp.memory import created
from gyrator_testing.interp.ops import apply

MODES = {
    StoreMode.SET: lambda old, new: new,
    StoreMode.ADD: lambda old, new: old + new,
    StoreMode.MUL: lambda old, new: old * new,
    StoreMode.MIN: np.minimum,
    StoreMode.MAX: np.maximum,
}


def run(program, inputs):
    machine = Machine({b.name: b for b in program.all_buffers}, DEFAULT, None)
    bind_inputs(machine, program.inputs, inputs)
    for b in program.buffers:
        machine.storage[b.name] = created(b, machine.symbols)
    for op in program.operations:
        if isinstance(op, Extern):
            machine.run(op)
        else:
            _operation(op, machine)
    return [machine.output(o) for o in program.outputs]


def points(axes, env):
    ranges = [range(evaluate(a.extent, env)) for a in axes]
    for point in itertools.product(*ranges):
        yield env | {a.symbol: p for a, p in zip(axes, point, strict=True)}


def _operation(op, machine):
    sizes = dict(machine.symbols)
    match op:
        case Reduction(_, axes, inner, body, fold, stores):
            for env in points(axes, sizes):
                lines = [statements(body, e, machine)[0] for e in points(inner, env)]
                rows = [column(lines, a, fold.dtype) for a in fold.args]
                found = folds.reduce(fold.kind, rows, fold.dtype)
                values = {n: np.asarray(f[0]) for n, f in zip(fold.names, found, strict=True)}
                statements(stores, env, machine, values)
        case Scan(_, axes, line, body, step, stores) | Sort(_, axes, line, body, step, stores):
            for env in points(axes, sizes):
                at = list(points((line,), env))
                row = column(
                    [statements(body, e, machine)[0] for e in at], step.args[0], step.dtype
                )
                if isinstance(op, Scan):
                    found = [folds.scan(step.kind, row, step.reverse)]
                else:
                    found = list(folds.sort(row, step.descending))
                for k, e in enumerate(at):
                    values = {n: f[0, k] for n, f in zip(step.names, found, strict=True)}
                    statements(stores, e, machine, values)
        case _:
            for env in points(op.axes, sizes):
                statements(op.body, env, machine)


def column(lines, name, dtype):
    return np.array([[v[name] for v in lines]], NUMPY[dtype]).reshape(1, len(lines))


def statements(body, env, machine, values=None):
    values, env = dict(values or {}), dict(env)
    for s in body:
        masked = getattr(s, "mask", None)
        on = masked is None or bool(values[masked])
        match s:
            case Load(name, buffer, index):
                flat = machine.storage[buffer]
                zero = np.zeros((), flat.dtype)
                values[name] = np.asarray(flat[evaluate(index, env)]) if on else zero
            case Let(name, op, args, dtype):
                values[name] = apply(op, [np.asarray(values[a]) for a in args], dtype)
            case Const(name, value, dtype):
                values[name] = scalar(value, dtype)
            case IndexValue(name, index, dtype):
                values[name] = np.asarray(evaluate(index, env), NUMPY[dtype])
            case Bind(symbol, value, size, wrap):
                at, n = int(values[value]), evaluate(size, env)
                at += n if wrap and at < 0 else 0
                assert not on or 0 <= at < n
                env[symbol] = at if on else 0
            case Store(buffer, index, value, mode) if on:
                flat, at = machine.storage[buffer], evaluate(index, env)
                assert at >= 0
                flat[at] = MODES[mode](flat[at], values[value])
    return values, env
