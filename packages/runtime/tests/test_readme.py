import re
from pathlib import Path

SOURCES = Path(__file__).parents[1]


def test_the_example_runs():
    text = (SOURCES / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(example, "README.md", "exec"), {})


def test_the_table_has_every_code():
    table = set(re.findall(r"^\| (GY-[A-Z]+-\d+) ", (SOURCES / "README.md").read_text(), re.M))
    used = set()
    for path in (SOURCES / "src" / "gyrator_runtime").rglob("*.py"):
        used |= set(re.findall(r'"(GY-[A-Z]+-\d+)"', path.read_text()))
    assert used == table
