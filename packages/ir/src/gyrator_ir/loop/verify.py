"""The invariants of Loop IR programs.

GY-LOOP-001 to 010 are those of bodies, see `gyrator_ir.body.verify`. The others are:

GY-LOOP-011  a created buffer is written before it is read or scattered into
GY-LOOP-012  a created buffer is written by only one operation, not counting scatters and mutating
             calls
GY-LOOP-013  every created buffer is written
GY-LOOP-014  a layout has as many strides as sizes, which are nonnegative and use symbols in scope
GY-LOOP-015  the subprograms and user kernels of calls exist, and have the numbers of operands and
             results that the calls pass
GY-LOOP-016  the results of an out-variant are buffers, each with a keyword
GY-LOOP-017  rows of origins exist
GY-LOOP-018  inputs, constants, buffers, operations and outputs are of the classes of this level
GY-LOOP-019  a template's tensors and attributes are as its kind requires, and its fallback computes
             the same buffers

They are checked at each stage boundary, and after each pass under `Pipeline(verify="each")`, in
time linear in the size of the program.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from gyrator_ir.body.nodes import Load, Statement, Store
from gyrator_ir.body.print import show_statement
from gyrator_ir.body.verify import SIZE_KINDS, Checker, Scope, Where, storage_of
from gyrator_ir.expr import Cond, Expr, Sym, SymKind
from gyrator_ir.expr import Const as ConstExpr
from gyrator_ir.loop import nodes
from gyrator_ir.loop.formulas import check_formulas, sizes_in
from gyrator_ir.loop.nodes import Buffer, LoopOperation, LoopProgram, Operation, TensorRef
from gyrator_ir.loop.print import show_operation
from gyrator_ir.loop.templates import template_error
from gyrator_ir.loop.uses import collective_of, inner_of, stores_after
from gyrator_ir.text.program import show_buffer
from gyrator_ir.text.scanner import Writer
from gyrator_ir.text.values import ARG

__all__ = ["verify"]


def verify(program: LoopProgram) -> LoopProgram:
    """Return `program` unchanged, or raise `VerifyError` for the first violation."""
    _Verifier(program).run()
    for sub in program.subprograms:
        verify(sub)
    return program


def check_classes(checker: Checker, classes: Any, items: Sequence[object]) -> None:
    """Check that items are of a class or a union of classes (018)."""
    for item in items:
        if not isinstance(item, classes):
            checker.fail(18, f"{item!r} does not belong here")


class DataFlow:
    """The symbols in scope and the buffers written so far, as operations are visited in order.

    Shared with the verifier of Kernel IR.
    """

    def __init__(
        self,
        checker: Checker,
        inputs: Sequence[nodes.Input],
        constants: Sequence[nodes.Constant],
        created: Sequence[Buffer],
    ) -> None:
        self.checker = checker
        self.symbols: set[Sym] = set()
        self.written: set[str] = set()
        self.created = {b.name: b for b in created}
        self.writer = Writer({b.name: b for b in nodes.declared(inputs, constants, created)})
        self._declare(inputs, constants, created)

    def _declare(
        self,
        inputs: Sequence[nodes.Input],
        constants: Sequence[nodes.Constant],
        created: Sequence[Buffer],
    ) -> None:
        names: set[str] = set()
        for i in inputs:
            match i:
                case nodes.TensorInput(buffer):
                    self._initialized(buffer)
                    name = buffer.name
                case nodes.SizeInput(expr, name):
                    self.symbols |= expr.free_symbols
                case nodes.OpaqueInput(name):
                    pass
                case _:
                    self.checker.fail(18, f"{i!r} is not an input")
            self._unique(name, names)
        for c in constants:
            self._unique(c.buffer.name, names)
            self._initialized(c.buffer)
        for b in created:
            self._unique(b.name, names)
            self._layout(b)
        for symbol in self.symbols:
            if symbol.kind not in SIZE_KINDS:
                self.checker.fail(8, f"input symbol {symbol.name!r} is not a size (s.. or u..)")

    def _initialized(self, buffer: Buffer) -> None:
        self._layout(buffer)
        for expr in (*buffer.shape, *buffer.strides):
            self.symbols |= expr.free_symbols
        self.written.add(buffer.name)

    def _unique(self, name: str, names: set[str]) -> None:
        if name in names:
            self.checker.fail(1, f"{name!r} is declared twice")
        names.add(name)

    def _layout(self, b: Buffer | TensorRef) -> None:
        if len(b.shape) != len(b.strides):
            self.checker.fail(
                14, f"{len(b.shape)} sizes and {len(b.strides)} strides", lambda: self._show(b)
            )
        for expr in (*b.shape, *b.strides):
            if type(expr) is ConstExpr:
                if expr.value < 0:
                    self.checker.fail(
                        14, f"{expr.value} is not a size or stride", lambda: self._show(b)
                    )
            elif not isinstance(expr, Expr):
                self.checker.fail(14, f"{expr!r} is not an expression", lambda: self._show(b))

    def _show(self, b: Buffer | TensorRef) -> str:
        if isinstance(b, Buffer):
            return show_buffer(b, self.writer)
        return ARG.show(b, self.writer)

    def check_sizes(self, exprs: Iterable[Expr], where: Where) -> None:
        """Check that expressions refer only to size symbols in scope."""
        symbols = self.symbols
        for expr in exprs:
            if not expr.free_symbols <= symbols:
                self.checker.sizes((expr,), symbols, where)

    def bind(self, symbol: Sym, where: Where) -> None:
        """Add to the scope a symbol that an operation reads at run time."""
        if symbol.kind not in SIZE_KINDS:
            self.checker.fail(8, f"{symbol.name!r} is not a size (s.. or u..)", where)
        if symbol in self.symbols:
            self.checker.fail(4, f"symbol {symbol.name!r} is defined twice", where)
        self.symbols.add(symbol)

    def read(self, name: str, where: Where) -> None:
        """Check that a buffer is declared and has been written."""
        if name in self.written:
            return
        if name not in self.checker.storages:
            self.checker.fail(2, f"buffer {name!r} is not declared", where)
        self.checker.fail(11, f"{name!r} is read before it is written", where)

    def bind_sizes(self, name: str) -> None:
        """Add to the scope the unbacked sizes of a result, which the call that creates it binds."""
        created = self.created.get(name)
        if created is not None and name not in self.written:
            for expr in created.shape:
                if isinstance(expr, Sym) and expr.kind is SymKind.UNBACKED:
                    self.symbols.add(expr)

    def write(self, name: str, where: Where, *, again: bool = False) -> None:
        """Record that an operation writes a buffer. `again` allows a buffer already written."""
        if name not in self.checker.storages:
            self.checker.fail(2, f"buffer {name!r} is not declared", where)
        created = self.created.get(name)
        if created is None:
            return
        if name not in self.written:
            self.check_sizes((*created.shape, *created.strides), lambda: self._show(created))
            self.written.add(name)
        elif not again:
            self.checker.fail(12, f"{name!r} is written by a second operation", where)

    def finish(self, outputs: Sequence[nodes.Output]) -> None:
        """Check the results, and that every created buffer was written."""
        for name, created in self.created.items():
            if name not in self.written:
                self.checker.fail(13, f"{name!r} is never written", self._show(created))
        for o in outputs:
            if not isinstance(o, TensorRef | Expr | nodes.Literal):
                self.checker.fail(18, f"{o!r} is not an output")
            self.argument(o, partial(_returned, o, self.writer))

    def argument(self, arg: nodes.Arg, where: Where) -> None:
        """Check an argument of a call, or a result of the program."""
        match arg:
            case TensorRef(buffer, _, shape, strides, offset):
                self.read(buffer, where)
                self._layout(arg)
                self.check_sizes((*shape, *strides, offset), where)
            case Expr():
                self.check_sizes((arg,), where)
            case nodes.ListArg(items):
                for item in items:
                    self.argument(item, where)
            case nodes.Literal() | nodes.TypeArg():
                pass
            case _:
                self.checker.fail(18, f"{arg!r} is not an argument", where)


class CallChecker:
    """Checks operations that the host executes. Shared with the verifier of Kernel IR."""

    def __init__(
        self, flow: DataFlow, programs: dict[str, tuple[int, int]], user_kernels: Iterable[str]
    ) -> None:
        self.flow = flow
        self.programs = programs
        """Number of operands and of results of each subprogram."""
        self.user_kernels = frozenset(user_kernels)

    def check(self, op: nodes.CallOperation, where: Where) -> None:
        """Check one operation, and record its writes."""
        flow = self.flow
        match op:
            case nodes.Extern():
                self._extern(op, where)
            case nodes.Template():
                self._template(op, where)
            case nodes.UserTritonKernel():
                self._user_kernel(op, where)
            case nodes.CollectiveCall(_, _, args, results, mutates):
                self._arguments(args, where)
                self._mutates(mutates, where)
                self._results(results, where)
            case nodes.CollectiveWait(_, buffer):
                flow.read(buffer, where)
            case nodes.DeviceCopy(_, source, destination):
                flow.argument(source, where)
                flow.write(destination, where)
            case nodes.ScalarRead(_, source, symbol):
                flow.argument(source, where)
                flow.bind(symbol, where)
            case nodes.AssertCond(_, condition):
                flow.checker.sizes(_sides(condition), flow.symbols, where)
            case nodes.CondOp(_, predicate, then, otherwise, operands, results):
                if isinstance(predicate, TensorRef):
                    flow.argument(predicate, where)
                else:
                    flow.checker.sizes(_sides(predicate), flow.symbols, where)
                self._arguments(operands, where)
                for name in (then, otherwise):
                    self._program(name, len(operands), len(results), where)
                self._new_results(results, where)
            case nodes.WhileOp(_, condition, body, carried, invariants, results, stacked):
                self._arguments((*carried, *invariants), where)
                operands_count = len(carried) + len(invariants)
                self._program(condition, operands_count, 1, where)
                self._program(body, operands_count, len(carried), where)
                self._one_result_each(carried, results, where)
                record = self._new_results if stacked else self._results
                record(results, where)
            case nodes.RepeatOp(_, count, body, carried, operands, results, stacks):
                self._arguments((count, *carried, *operands), where)
                operands_count = 1 + len(carried) + len(operands) + len(stacks)
                self._program(body, operands_count, len(carried), where)
                self._one_result_each(carried, results, where)
                self._results((*results, *stacks), where)
            case nodes.CallOp(_, program, operands, results):
                self._arguments(operands, where)
                self._program(program, len(operands), len(results), where)
                self._new_results(results, where)

    def _arguments(self, args: Iterable[nodes.Arg], where: Where) -> None:
        for arg in args:
            self.flow.argument(arg, where)

    def _results(self, results: Iterable[str], where: Where) -> None:
        for name in results:
            self.flow.write(name, where)

    def _new_results(self, results: Iterable[str], where: Where) -> None:
        """Record writes of tensors that the operation creates, whose sizes it may decide."""
        for name in results:
            self.flow.bind_sizes(name)
        self._results(results, where)

    def _one_result_each(
        self, carried: Sequence[nodes.Arg], results: Sequence[str], where: Where
    ) -> None:
        if len(results) != len(carried):
            message = f"{len(carried)} carried operands, but {len(results)} results"
            self.flow.checker.fail(15, message, where)

    def _mutates(self, names: Iterable[str], where: Where) -> None:
        for name in names:
            self.flow.read(name, where)
            self.flow.write(name, where, again=True)

    def _program(self, name: str, operands: int, results: int, where: Where) -> None:
        signature = self.programs.get(name)
        if signature is None:
            self.flow.checker.fail(15, f"there is no subprogram {name!r}", where)
        if signature != (operands, results):
            self.flow.checker.fail(
                15,
                f"{name!r} has {signature[0]} input(s) and {signature[1]} output(s), "
                f"not {operands} and {results}",
                where,
            )

    def _extern(self, op: nodes.Extern, where: Where) -> None:
        flow = self.flow
        self._arguments(op.args, where)
        self._arguments((arg for _, arg in op.kwargs), where)
        self._mutates(op.mutates, where)
        if op.out is not None:
            named = all(isinstance(r, str) for r in op.results)
            if not named or len(op.out_names) != len(op.results):
                flow.checker.fail(
                    16,
                    f"{op.out!r} needs a buffer and a keyword for each of "
                    f"{len(op.results)} result(s), got the keywords {list(op.out_names)}",
                    where,
                )
        if op.out is None:
            for result in op.results:
                for name in result if isinstance(result, tuple) else (result,):
                    if isinstance(name, str):
                        flow.bind_sizes(name)
        for result in op.results:
            match result:
                case str():
                    flow.write(result, where)
                case tuple():
                    self._results(result, where)
                case Sym():
                    flow.bind(result, where)
                case None:
                    pass
                case _:
                    flow.checker.fail(18, f"{result!r} is not a result", where)

    def _template(self, op: nodes.Template, where: Where) -> None:
        flow = self.flow
        self._arguments(op.inputs, where)
        call = op.fallback
        if call is not None:
            self._arguments((*call.args, *(arg for _, arg in call.kwargs)), where)
        for out in op.outputs:
            flow.write(out.buffer, where)
        self._arguments(op.outputs, where)
        self._arguments((arg for _, arg in op.attributes), where)
        message = template_error(op.kind, op.inputs, op.outputs, op.attributes)
        if message:
            flow.checker.fail(19, message, where)
        flow.check_sizes(sizes_in(op.formulas), where)
        read = [t.buffer for t in op.inputs]
        check_formulas(op.kind, op.formulas, read, flow.symbols, flow.checker, where)
        if call is None:
            return
        results = {r for r in call.results if r is not None}
        if results != {o.buffer for o in op.outputs}:
            flow.checker.fail(19, "the fallback must compute the template's outputs", where)

    def _user_kernel(self, op: nodes.UserTritonKernel, where: Where) -> None:
        if op.kernel not in self.user_kernels:
            self.flow.checker.fail(15, f"there is no user kernel {op.kernel!r}", where)
        for sizes in op.grid:
            self.flow.check_sizes(sizes, where)
        created = self.flow.created
        for _, arg in op.args:
            # A buffer that the kernel fills need not be initialised.
            if isinstance(arg, TensorRef) and arg.buffer in op.mutates and arg.buffer in created:
                self.flow.write(arg.buffer, where, again=True)
            self.flow.argument(arg, where)
        self._arguments((arg for _, arg in op.constants), where)
        self._mutates(op.mutates, where)
        tensors = {name for name, arg in op.args if isinstance(arg, TensorRef)}
        for name, block in op.descriptors:
            if name not in tensors or not isinstance(block, nodes.ListArg):
                self.flow.checker.fail(
                    15, f"{name!r} is not a tensor with a list of block sizes", where
                )


def _sides(condition: Cond) -> tuple[Expr, ...]:
    return tuple(condition.free_symbols)


class _Verifier:
    """Verifies one program."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.checker = Checker("LOOP", {}, program.origins)
        check_classes(self.checker, nodes.Constant, program.constants)
        check_classes(self.checker, Buffer, program.buffers)
        check_classes(self.checker, Operation, program.operations)
        self.checker.storages = {b.name: storage_of(b) for b in program.all_buffers}
        self.flow = DataFlow(self.checker, program.inputs, program.constants, program.buffers)
        programs = {p.name: (len(p.inputs), len(p.outputs)) for p in program.subprograms}
        if len(programs) != len(program.subprograms):
            self.checker.fail(1, "two subprograms have the same name")
        self.calls = CallChecker(self.flow, programs, (k.key for k in program.user_kernels))

    def run(self) -> None:
        names: set[str] = set()
        checker = self.checker
        for op in self.program.operations:
            checker.rows = getattr(op, "origins", ())
            self._origins(checker.rows)
            self._operation(op)
            if op.name in names:
                checker.fail(
                    1,
                    f"two operations are called {op.name!r}",
                    partial(_head, op, self.flow.writer),
                )
            names.add(op.name)
        checker.rows = ()
        self.flow.finish(self.program.outputs)

    def _origins(self, rows: tuple[int, ...]) -> None:
        count = len(self.program.origins)
        for row in rows:
            if not 0 <= row < count:
                self.checker.fail(17, f"there is no origin {row}, the table has {count}")

    def _operation(self, op: Operation) -> None:
        where = partial(_head, op, self.flow.writer)
        if not isinstance(op, LoopOperation):
            self.calls.check(op, where)
            return
        scope = Scope(symbols=set(self.flow.symbols))
        self.checker.axes((*op.axes, *inner_of(op)), scope, where)
        self.checker.statements(op.body, scope)
        if not isinstance(op, nodes.Pointwise | nodes.Scatter):
            step = collective_of(op)
            self.checker.statements((step,), scope)
            if isinstance(op, nodes.Reduction):  # of the loop's values, only its results are left
                scope = Scope({n: scope.values[n] for n in step.names}, set(self.flow.symbols))
                self.checker.axes(op.axes, scope, where)
            self.checker.statements(op.stores, scope)
        self._effects(op, (*op.body, *stores_after(op)))

    def _effects(self, op: LoopOperation, body: tuple[Statement, ...]) -> None:
        """Check the reads of an operation, then record its writes."""
        flow, scatters = self.flow, isinstance(op, nodes.Scatter)
        stored: dict[str, None] = {}
        for s in body:
            if type(s) is Load:
                if s.buffer not in flow.written:
                    flow.read(s.buffer, partial(show_statement, s))
            elif type(s) is Store:
                stored[s.buffer] = None
        for name in stored:
            if scatters:
                flow.read(name, partial(_head, op, self.flow.writer))
            flow.write(name, partial(_head, op, self.flow.writer), again=scatters)


def _head(op: Operation, writer: Writer) -> str:
    return show_operation(op, writer)[0]


def _returned(output: nodes.Output, writer: Writer) -> str:
    return f"return {ARG.show(output, writer)}"
