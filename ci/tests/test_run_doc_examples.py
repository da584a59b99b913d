"""The runner of documentation examples runs what it should and reports where a page fails."""

import subprocess
import sys

PAGE = """# Title

```python
x = 1
```

```text
this is not run: x = 2
```

- in a list:

    ```python
    assert x == {value}
    ```

```console
$ gyrator --version
$ nox -s tests
```
"""


def test_blocks_of_a_page_share_one_process(tmp_path, examples):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(value=1).replace("$ gyrator --version\n", ""))

    outcome = examples.run_page(page)

    assert outcome.failure == ""
    assert outcome.ran == 2


def test_failure_names_the_line_of_the_page(tmp_path, examples):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(value=2))

    outcome = examples.run_page(page)

    assert "AssertionError" in outcome.failure
    assert 'page.py", line 14' in outcome.failure
    assert examples.main([str(page)]) == 1


def test_only_gyrator_commands_are_run(examples):
    assert examples.commands(list(examples.blocks(PAGE))) == ["gyrator --version"]


def test_unclosed_fence_is_a_failure(tmp_path, examples):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n")

    assert "never closed" in examples.run_page(page).failure


def test_several_pages_are_run_in_forked_processes(tmp_path, root):
    pages = [tmp_path / "good.md", tmp_path / "bad.md"]
    for value, page in enumerate(pages, 1):
        text = PAGE.format(value=value).replace("x = 1", "import sys\nx = 'torch' in sys.modules")
        page.write_text(text)
    command = [sys.executable, str(root / "ci" / "run_doc_examples.py"), *map(str, pages)]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 1
    assert f"{pages[0]}: 3 ran" in done.stdout
    assert f"{pages[1]}: FAILED" in done.stdout
    assert 'bad.py", line 15' in done.stdout
