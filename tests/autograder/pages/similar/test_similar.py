"""`python -m autograder similar`: a class with a copy in it, and one from last year."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.pages.similar import tokens, winnowing
from autograder.pages.similar.compare import MIN_COMMON, Text, Work, compare
from tests.autograder.pages.similar.disguises import all_disguises
from tests.submissions.corpus import answers_in, released, save

REPO = Path(__file__).parents[4]
LAB = "03_ring_all_reduce"
PAGE = Path("grading/reports", f"{LAB}.similar.html")
INDEPENDENT = {
    path.name.removesuffix(".nb.py"): answers_in(path.read_text())
    for path in sorted((REPO / "tests/submissions/independent").glob("*.nb.py"))
}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course without submissions."""
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    (tmp_path / "labs").symlink_to(REPO / "labs")
    (tmp_path / "course").symlink_to(REPO / "course")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(folder: Path, student: str, answers: dict[str, str]) -> Path:
    notebook = released(LAB)
    for cell in notebook["cells"]:
        cell["source"] = answers.get(cell["id"], cell["source"])
    place = folder / student / LAB
    place.mkdir(parents=True)
    save(notebook, place)
    return place / f"{LAB}.ipynb"


def test_a_copy_and_one_from_last_year_are_found(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted = course / "grading/submitted"
    for student, answers in INDEPENDENT.items():
        submit(submitted, student, answers)
    copy = {cell: all_disguises(source) for cell, source in INDEPENDENT["narrow"].items()}
    copy["all_gather"] = f"# <script>alert(1)</script>\n{copy['all_gather']}"
    copy["chunk_bounds"] += "\nopen('ran', 'w')\nif (:  # not Python"
    submit(submitted, "eve", copy)
    submit(submitted, "untouched", {})
    submit(submitted, "fay", {}).write_text("not a notebook")
    last_year = course / "last-year"
    submit(last_year, "zed", INDEPENDENT["cursor"])
    submit(last_year, "yan", INDEPENDENT["cursor"])  # pairs within last year are not listed
    before = {path: path.read_bytes() for path in submitted.rglob("*.ipynb")}

    assert main(["similar", LAB, "--with", "last-year"]) == 0
    output = capsys.readouterr().out
    assert "12 submissions; similar pairs: 3" in output
    pairs = re.findall(r"^  (\S+) and (.+): \d+ tokens, (\d+)%", output, re.M)
    assert [pair[:2] for pair in pairs[:2]] == [
        ("cursor", "yan (last-year)"), ("cursor", "zed (last-year)"),
    ]  # fmt: skip
    assert pairs[2][:2] in (("eve", "narrow"), ("narrow", "eve"))
    assert [int(share) for *_, share in pairs[:2]] == [100, 100]
    assert int(pairs[2][2]) > 80
    assert "fay: Not compared: it is not a Jupyter notebook" in output
    assert "Similarity is a reason to look, not a verdict" in output

    page = PAGE.read_text()
    assert "Similarity is a reason to look, not a verdict" in page
    assert page.count("<tr data-pair>") == 3
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert not re.search(r"\b(src|href)=\"(?!data:|#)", page)
    marked = "".join(re.findall(r"<mark>(.*?)</mark>", page, re.S))
    assert "tensor.narrow(0, start, end - start)" in marked
    assert "renamed_" in marked  # the same passages in the copy
    assert "raise NotImplementedError" not in page
    assert not (course / "ran").exists()
    assert before == {path: path.read_bytes() for path in submitted.rglob("*.ipynb")}
    assert not (course / "grading/gradebook.db").exists()
    assert [path.name for path in PAGE.parent.iterdir()] == [PAGE.name]


def test_errors_say_what_to_do(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: str) -> str:
        assert main(["similar", *arguments]) == 2
        return capsys.readouterr().err

    assert "no released lab '03_rign' (released labs: 01_one_device" in error("03_rign")
    assert "no readable submissions" in error(LAB)
    submit(course / "grading/submitted", "ann", {})
    assert "name a folder like grading/submitted" in error(LAB, "--with", "nowhere")
    assert "is this term's folder" in error(LAB, "--with", "grading/submitted")
    assert not PAGE.exists()


def test_tokens_omit_what_is_easily_changed() -> None:
    plain = "def f(a):\n    return a.view(len(a), 'x')\n"
    other = 'def g(b):\n  """Why."""\n  # because\n  return b.view(\n    len(b), "y")'
    assert winnowing.hashes(tokens.tokens(plain * 3)) != []
    assert texts(plain) == texts(other).replace("g", "f").replace("b", "a")
    assert texts("x = f'{a!r} {f\"{b}\"}' + rb'c'") == 'x = "" + ""'
    for source in (plain, "for x in (range(3:\n  'open\né = x['y'"):
        found = tokens.tokens(source)
        assert found[0].text in ("def", "for")
        assert all(token.text in (source[token.start : token.end], '""') for token in found)


def texts(source: str) -> str:
    return " ".join(token.text for token in tokens.tokens(source))


def test_every_passage_of_the_guaranteed_length_has_a_common_fingerprint() -> None:
    """The paper's guarantee, for a passage at each place between unrelated tokens."""
    source = "".join(f"v{n} = {n} * w{n} + u[{n}:]\n" for n in range(40))
    whole = tokens.tokens(source)
    fingerprints = winnowing.winnow(winnowing.hashes(whole))
    for start in range(len(whole) - winnowing.T):
        passage = whole[start : start + winnowing.T]
        assert winnowing.winnow(winnowing.hashes(passage)) & fingerprints


def test_code_that_is_common_or_given_does_not_count() -> None:
    source = "".join(f"total += weights[{n}] * values[{n} + 1] - {n}\n" for n in range(12))
    two = [Work(name, (Text("cell", source),)) for name in "ab"]
    (pair,) = compare(two, []).pairs
    assert pair.share == 1
    assert compare(two, [Text("", f"if True:\n  # given\n  {source}")]).pairs == []
    many = [Work(str(n), (Text("cell", source),)) for n in range(MIN_COMMON + 1)]
    assert compare(many, []).pairs == []
    assert len(compare(many[1:], []).pairs) == 6
