import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def test_the_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})


def test_the_table_has_every_code():
    table = set(re.findall(r"^\| (GY-[A-Z]+-\d+) ", (PACKAGE / "README.md").read_text(), re.M))
    used: set[str] = set()
    for path in (PACKAGE / "src").rglob("*.py"):
        used |= set(re.findall(r'"(GY-[A-Z]+-\d+)"', path.read_text()))
    assert used == table
    tested: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        tested |= set(re.findall(r"GY-INTERP-\d+", path.read_text()))
    assert used <= tested
