"""Verdicts as text and as HTML."""

from __future__ import annotations

import dataclasses

from autograder.evaluation.present import as_html, as_text
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.exercise import BudgetUsage


def test_a_hidden_case_shows_neither_name_nor_bytes():
    spent = (BudgetUsage("sends", (987, 987), (987, 987), (0, 0)),)
    cases = (
        CaseResult("2 ranks", False, 1, True, outputs_right=True),
        CaseResult(
            "987 ranks", True, 1, False, "m", "a rank <b>m", "rank 987", True, (987,), spent
        ),
    )
    verdict = Verdict("lab.answer", 4.0, cases, seed=987)
    for shown in (as_text(verdict), as_html(verdict)):
        assert "987" not in shown
        assert "hidden case" in shown
    assert "<b>" not in as_html(verdict)
    assert 'data-passed="false"' in as_html(verdict)


def test_each_budget_has_a_column_that_shows_what_exceeded_it():
    spent = (
        BudgetUsage("sends", (100, 40), (110, 50), (0, 0)),
        BudgetUsage("calls", (8, 8), (8, 8), (0, 0), "collectives", "calls"),
        BudgetUsage("largest bucket", (10, 70), (60, 60), (0, 0), "collectives", "B"),
    )
    case = CaseResult("2 ranks", False, 1, False, "m", "rank 1 m", outputs_right=True, spent=spent)
    text = as_text(Verdict("lab.answer", 4.0, (case,), seed=1))
    assert "✗ 2 ranks  right, but:  collectives 70 B, limit ≤ 60 B\n      rank 1 m" in text
    assert "sent by a rank" not in text  # a budget that fits is not why the case fails
    html = as_html(Verdict("lab.answer", 4.0, (case,), seed=1))
    assert html.count('<th class="number">') == 4
    assert '<td class="number bad">70 B</td>' in html
    passed = dataclasses.replace(case, passed=True, spent=spent[:1])
    text = as_text(Verdict("lab.answer", 4.0, (passed,), seed=1))
    assert "✓ 2 ranks  as expected  sent by a rank 100 B, limit ≤ 110 B" in text
    idle = dataclasses.replace(case, spent=(BudgetUsage("sends", (20, 9), (50, 50), (10, 10)),))
    text = as_text(Verdict("lab.answer", 4.0, (idle,), seed=1))
    assert "sent by a rank 9 B, limit at least 10 B" in text


def test_cases_that_were_not_run_share_a_row():
    def skipped(name):
        return CaseResult(name, False, 1, False, "m", "fix it first", was_run=False)

    first = CaseResult("2 ranks", False, 1, False, "hangs", "rank 1 hangs")
    verdict = Verdict("lab.answer", 4.0, (first, *map(skipped, ("3 ranks", "4 ranks"))), seed=1)
    assert "  ✗ 2 cases  not run\n      fix it first" in as_text(verdict)
    assert as_html(verdict).count("not run") == 1


def test_what_ranks_printed_is_below_the_diagnosis_and_escaped():
    case = CaseResult("2 ranks", False, 1, False, "m", "rank 1 m", printed="rank 0 printed: <b>")
    verdict = Verdict("lab.answer", 4.0, (case,), seed=1)
    assert as_text(verdict).endswith("\n      rank 1 m\n      rank 0 printed: <b>")
    assert "<pre>rank 0 printed: &lt;b&gt;</pre>" in as_html(verdict)


def test_a_repeated_mistake_is_written_once():
    cases = tuple(CaseResult(name, False, 1, False, "m", f"{name} m") for name in ("a", "b"))
    text = as_text(Verdict("lab.answer", 4.0, cases, seed=1))
    assert "a m" in text
    assert "b m" not in text
    assert text.endswith("as above")
    cases = tuple(dataclasses.replace(case, quotes=True) for case in cases)
    assert as_text(Verdict("lab.answer", 4.0, cases, seed=1)).endswith("b m")


def test_a_mistake_that_is_repeated_after_another_names_its_case():
    mistakes = {"a": "m", "b": "other", "c": "m", "d": "m"}
    cases = [CaseResult(name, False, 1, False, m, f"{name} {m}") for name, m in mistakes.items()]
    text = as_text(Verdict("lab.answer", 4.0, tuple(cases), seed=1))
    shown = [line.strip() for line in text.splitlines() if line.startswith("      ")]
    assert shown == ["a m", "b other", "as in the case “a”", "as above"]
    hidden = tuple(dataclasses.replace(case, hidden=True) for case in cases[:3])
    text = as_text(Verdict("lab.answer", 4.0, hidden, seed=1))
    assert "as " not in text.replace("as expected", "")
