"""The README's example runs."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_example(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    exec(compile(example, str(README), "exec"), {})
    assert "@triton.jit" in capsys.readouterr().out
