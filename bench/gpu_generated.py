"""Models on a GPU without a library: products, convolutions and attention in generated kernels.

    python bench/gpu_generated.py --out FOLDER [--seconds 200] [--only NAME]

Each model runs in bfloat16, inference first, with `extern_kernels` `library` and `none`, both by
Gyrator, in one interleaved run with eager. `relative` is the library's time over that of generated
kernels; `calls` counts the calls of ATen that are left.
"""

import sys
from statistics import geometric_mean

from gpu import MODELS, Contest, Row, collect, command_line, facts

from gyrator import Session
from gyrator.reports.records import GraphRecord

WAYS = ("library", "none")


def compare(name: str, training: bool) -> Row:
    """Compile one model both ways, and time it."""
    contest = Contest(name, training)
    row = contest.row
    sessions = []
    for way in WAYS:
        records: list[GraphRecord] = []
        options = {"strict": True, "progress": False, "extern_kernels": way}
        session = Session(options=options, observer=records.append)
        sessions.append(session)
        contest.compile(way, session.backend)
        row[f"{way}_calls"] = sorted({c.target for r in records for c in r.externs})
    contest.time()
    row["relative"] = round(row["library_ms"] / row["none_ms"], 3)
    row["relative_kernels"] = round(row["library_kernels_ms"] / row["none_kernels_ms"], 3)
    for session in sessions:
        session.close()
    return row


def main() -> int:
    """Measure every model; print and store a table."""
    args = command_line(__doc__, 200).parse_args()
    cases = [(name, t) for t in (False, True) for name in MODELS if args.only in name]
    path = args.out / "bench_gpu_generated.json"
    rows = collect(cases, compare, facts(), path, args.seconds)
    good = [r for r in rows if "wrong" not in r]
    for what in ("relative", "relative_kernels"):
        if good:
            mean = geometric_mean(r[what] for r in good)
            print(f"{what}: geometric mean {mean:.2f}")
    return int(len(good) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
