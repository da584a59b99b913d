import io

from gyrator_runtime.progress import ProgressReporter, TerminalProgress, make_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_no_terminal_no_progress():
    assert type(make_progress(io.StringIO())) is ProgressReporter
    closed = io.StringIO()
    closed.close()
    assert type(make_progress(closed)) is ProgressReporter
    assert type(make_progress(None)) is ProgressReporter
    assert isinstance(make_progress(Terminal()), TerminalProgress)


def test_short_work_shows_nothing():
    stream = Terminal()
    with TerminalProgress(stream, delay=1000.0) as progress:
        progress.start("compiling kernels", 3)
        for _ in range(3):
            progress.advance()
    assert stream.getvalue() == ""


def test_long_work_shows_a_bar():
    stream = Terminal()
    progress = TerminalProgress(stream, delay=0.0)
    progress.start("compiling kernels", 7)
    progress.advance(2)
    progress.advance(0)
    assert "compiling kernels" in stream.getvalue()
    assert "2/7" in stream.getvalue()
    progress.start("linking", 1)  # a new phase replaces the old one
    progress.advance()
    progress.finish()
    progress.finish()
    assert "1/1" in stream.getvalue()


def test_builder_reports_each_unit(tmp_path, toolchain):
    from gyrator_ir.source import HostUnit
    from gyrator_runtime.build import Builder
    from gyrator_runtime.cache import Cache

    class Counting(ProgressReporter):
        def __init__(self):
            self.seen = []

        def start(self, what, total):
            self.seen.append((what, total))

        def advance(self, done=1):
            self.seen.append(done)

        def finish(self):
            self.seen.append("finish")

    progress = Counting()
    builder = Builder(toolchain, Cache(tmp_path / "c"), "plain", progress=progress)
    units = [HostUnit(f"u{n}", f"int x{n};", ()) for n in range(3)]
    builder.submit(units).built()
    builder.close()
    assert progress.seen[0] == ("compiling kernels", 3)
    assert sum(s for s in progress.seen if isinstance(s, int)) == 3
    assert progress.seen[-1] == "finish"
