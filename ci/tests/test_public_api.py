"""The lists of public names say what the sources say."""


def test_public_names_and_signatures_are_listed(tmp_path, public_api):
    src = tmp_path / "packages" / "ir" / "src" / "gyrator_ir"
    src.mkdir(parents=True)
    (src / "__init__.py").write_text("from gyrator_ir.a import f\n__all__ = ['f']\nhidden = 1\n")
    (src / "_secret.py").write_text("def g(): ...\n")
    (src / "a.py").write_text(
        "LIMIT: int = 3\n_own = 2\n"
        "def f(x: int, *, y: str = 'a') -> bool: ...\ndef _g(): ...\n"
        "class C(Base):\n    size: int\n    _kept = 1\n    def run(self, n: int) -> None: ...\n"
    )
    lists = tmp_path / "lists"
    lists.mkdir()
    assert public_api.listing(src.parent).splitlines() == [
        "gyrator_ir.f = gyrator_ir.a.f",
        "gyrator_ir.a.LIMIT: int",
        "gyrator_ir.a.f(x: int, *, y: str='a') -> bool",
        "gyrator_ir.a.C(Base)",
        "gyrator_ir.a.C.size: int",
        "gyrator_ir.a.C.run(self, n: int) -> None",
    ]
    (lists / "ir.txt").write_text(public_api.listing(src.parent))
    assert public_api.problems(tmp_path, lists) == []
    (src / "a.py").write_text("def f(x: int) -> bool: ...\n")
    changes = public_api.problems(tmp_path, tmp_path / "lists")
    assert "+gyrator_ir.a.f(x: int) -> bool" in changes
    assert "-gyrator_ir.a.f(x: int, *, y: str='a') -> bool" in changes
