"""`python -m proofs` in `packages/ir/tests`: prove the rewrites, and print a table."""

import sys
from importlib import import_module
from pathlib import Path
from types import CodeType

from attrs import define

from gyrator_ir import expr as E
from proofs.engine import NAMES, Term, Words, World, points, term_of, valid
from proofs.rules import LAWS, NONE, RULES, Rule

MODULES = ("build", "conditions", "division", "prover", "recombine", "simplify")
PACKAGE = Path(E.__file__).parent
WORDS = Words()
GIVES_UP = ("return None", "return ANY", "return False", "return", "continue", "break")
"""Lines after which nothing was rewritten or claimed: they need no proof."""
UNPROVED = {
    "build._extremum: raise TypeError": "an error",
    "division._zero_divisor": "an error",
    "division.floordiv: raise": "an error",
    "division.mod: raise": "an error",
    "conditions.both": "all_of of two",
    "conditions.either": "any_of of two",
    "simplify.Simplifier._simplify: except ExprError": "a divisor is 0: nothing changes",
    "simplify.Simplifier._simplify: break": "as above",
    "recombine._accumulate: return value.value": "adds a constant, as build.accumulate does",
    "prover.Prover._equal: return True": "an interval [0, 0]: the intervals are proved",
}
"""Lines, or whole functions, that no statement reaches, and why that is well."""


class Ours:
    """The words as `gyrator_ir.expr` has them."""

    def __getattr__(self, name):
        return getattr(E, name)

    @staticmethod
    def relation(op, a, b):
        relation = getattr(E, NAMES[op])(a, b)
        assert relation is E.relation(op, E.expr(a), E.expr(b))
        return relation


@define
class Outcome:
    """What became of a rule."""

    rule: Rule
    proved: int = 0
    exhausted: int = 0
    wrong: str = ""

    @property
    def status(self):
        if self.wrong:
            return f"WRONG: {self.wrong}"
        total = self.proved + self.exhausted
        more = f", {self.exhausted} on small integers" if self.exhausted else ""
        return f"{self.proved} of {total} for all integers{more}"


def claims_of(rule, ours, raw, world):
    """Return what is said of a statement: `raw` is its value as z3 sees it."""
    if isinstance(ours, E.Cond):
        forms = [raw == term_of(n, world) for n in (ours, rule.facts.simplify(ours))]
        return forms + ([raw] if rule.facts.known(ours) else [])
    simpler = rule.facts.simplify(ours)
    claims = [raw == term_of(n, world) for n in (ours, simpler)]
    low, high = rule.facts.bounds(ours)
    claims += [raw >= low] if low is not None else []
    claims += [raw <= high] if high is not None else []
    divisor = rule.facts._engine().prover.divisor_of(simpler)
    return claims + ([raw % divisor == 0] if divisor > 1 else [])


def holds_on(rule, ours, statement, constants, values):
    """Say whether the same holds for given integers; where the statement divides by 0, it does."""
    try:
        raw = statement(WORDS, *(values[s] for s in rule.symbols), *constants)
    except ZeroDivisionError:
        return True
    value = E.holds if isinstance(ours, E.Cond) else E.evaluate
    named = dict(values)
    if any(value(n, named) != raw for n in (ours, rule.facts.simplify(ours))):
        return False
    if isinstance(ours, E.Cond):
        return raw or not rule.facts.known(ours)
    low, high = rule.facts.bounds(ours)
    divisor = rule.facts._engine().prover.divisor_of(rule.facts.simplify(ours))
    inside = (low is None or low <= raw) and (high is None or raw <= high)
    return inside and (divisor <= 1 or raw % divisor == 0)


def defined(rule, statement, constants, values):
    """Say whether a statement means something for given integers."""
    try:
        statement(WORDS, *(values[s] for s in rule.symbols), *constants)
    except ZeroDivisionError:
        return False
    return True


def prove(rule):
    """Return what z3, or else a run through small integers, says of a rule."""
    outcome = Outcome(rule)
    for statement, constants in rule.cases():
        ours = statement(Ours(), *rule.symbols, *constants)
        ours = ours if isinstance(ours, E.Cond) else E.expr(ours)
        world = World()
        raw = statement(WORDS, *(world.symbol(s.name) for s in rule.symbols), *constants)
        raw = raw.value if isinstance(raw, Term) else raw
        proved = valid(claims_of(rule, ours, raw, world), world, rule.facts, rule.symbols)
        if proved is None:
            proved = all(
                holds_on(rule, ours, statement, constants, values)
                for values in points(rule.symbols, rule.facts)
            )
            outcome.exhausted += 1
        else:
            outcome.proved += 1
        if not any(
            defined(rule, statement, constants, v) for v in points(rule.symbols, rule.facts)
        ):
            proved = False  # whatever follows from nothing is no proof
        if not proved:
            outcome.wrong = f"{ours!r} with {constants}"
    return outcome


def clear():
    """Forget what the constructors remember, so that every rule runs again."""
    for name in MODULES:
        for function in vars(import_module(f"gyrator_ir.expr.{name}")).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()


class Reached:
    """Records the lines of the rewriting modules that run in a `with` block."""

    def __init__(self):
        self.lines = set()
        self.files = {str(PACKAGE / f"{name}.py"): name for name in MODULES}

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _call(self, frame, event, _):
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame, event, _):
        if event == "line":
            self.lines.add((self.files[frame.f_code.co_filename], frame.f_lineno))
        return self._line


def lines_of(name):
    """Return the lines in functions of a module: number, function and text."""
    path = PACKAGE / f"{name}.py"
    text = path.read_text().splitlines()
    functions = {}

    def walk(code, inside):
        for part in code.co_consts:
            if isinstance(part, CodeType):
                function = part.co_flags & 0x2
                if function:
                    first = part.co_firstlineno
                    for _, _, line in part.co_lines():
                        if (
                            line
                            and line != first
                            and not text[line - 1].lstrip().startswith("def ")
                        ):
                            functions.setdefault(line, (part.co_qualname, text[line - 1].strip()))
                walk(part, function)

    walk(compile(path.read_text(), str(path), "exec"), inside=False)
    return functions


def unreached(lines):
    """Return the lines of the rewriting modules that are not among those and should be."""
    missing = [
        f"{name}.{function}: {text}"
        for name in MODULES
        for line, (function, text) in sorted(lines_of(name).items())
        if (name, line) not in lines and text not in GIVES_UP
    ]
    return [line for line in missing if not line.startswith(tuple(UNPROVED))]


def law_holds(law):
    """Return what z3 says of an identity with symbols for its constants."""
    world = World()
    x, y, c, d = map(world.symbol, "xycd")
    value = law(WORDS, x, y, c, d).value
    world.conditions += [c.value > 0, d.value > 0]
    return valid([value == 0], world, NONE, ())


def law_holds_here(law):
    """Say whether it holds for small integers."""
    return all(
        law(WORDS, x, y, c, d) == 0
        for x in range(-30, 31) for y in range(-4, 5) for c in range(1, 6) for d in range(1, 6)
    )  # fmt: skip


def run(rules=RULES):
    """Prove rules; return the outcomes and the lines that were run."""
    clear()
    with Reached() as reached:
        outcomes = [prove(rule) for rule in rules]
    return outcomes, reached.lines


def main():
    outcomes, lines = run()
    width = max(len(o.rule.name) for o in outcomes)
    for o in outcomes:
        print(f"{o.rule.name:{width}}  {o.rule.source:32}  {o.status}")
    whole = sum(not o.exhausted for o in outcomes)
    cases = sum(o.proved + o.exhausted for o in outcomes)
    proved = sum(o.proved for o in outcomes)
    laws = {name: law_holds(law) for name, law in LAWS.items()}
    for name, holds in laws.items():
        small = holds is None and law_holds_here(LAWS[name])
        verdict = "for small integers" if small else "for all integers" if holds else "WRONG"
        print(f"{name:{width}}  {'any divisors':32}  {verdict}")
    print(
        f"\n{sum(map(bool, laws.values()))} of {len(laws)} identities of division for all divisors"
    )
    print(f"{whole} of {len(outcomes)} rules, {proved} of {cases} statements for all integers")
    missing = unreached(lines)
    for line in missing:
        print(f"not reached: {line}")
    return int(bool(missing) or any(o.wrong for o in outcomes) or False in laws.values())


if __name__ == "__main__":
    sys.exit(main())
