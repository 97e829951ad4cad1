"""A verdict as a table: HTML for notebooks, text for terminals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby

from autograder.evaluation.verdict import CaseResult, Verdict
from shardlab.display.palette import ERROR, OK

MARK = {True: "✓", False: "✗"}
SINGULAR = {"calls": "call", "chunks": "chunk", "micro-batches": "micro-batch", "slots": "slot"}
# JupyterLab's CSS variables follow its theme; the fallbacks are for nbconvert and GitHub.
# The long selectors override JupyterLab's own for tables in outputs.
_STYLE = f"""<style>
.shardlab-check {{ color: var(--jp-ui-font-color1, inherit);
  font-family: var(--jp-ui-font-family, system-ui, sans-serif);
  font-size: var(--jp-ui-font-size1, 13px); max-width: 60em; }}
.shardlab-check .line {{ border-left: 4px solid; padding: 2px 8px; margin: 4px 0;
  font-weight: 600; }}
.shardlab-check .line.ok {{ border-color: {OK}; }}
.shardlab-check .line.bad {{ border-color: {ERROR}; }}
.shardlab-check table.cases {{ border-collapse: collapse; margin: 4px 0; color: inherit;
  font-size: inherit; table-layout: auto; }}
.shardlab-check table.cases tbody tr, .shardlab-check table.cases thead tr {{
  background: transparent; border: 0; }}
.shardlab-check table.cases tr th, .shardlab-check table.cases tr td {{ text-align: left;
  padding: 3px 16px 3px 0; vertical-align: top; white-space: normal; max-width: none;
  border: 0; border-bottom: 1px solid var(--jp-border-color2, #cccccc); }}
.shardlab-check table.cases tr th {{ font-weight: 400; color: var(--jp-ui-font-color2, inherit); }}
.shardlab-check table.cases tr .number {{ font-variant-numeric: tabular-nums;
  white-space: nowrap; text-align: right; }}
.shardlab-check table.cases tr th.number {{ white-space: normal; min-width: 5em; }}
.shardlab-check table.cases tr td.case {{ padding-left: 1.5em; text-indent: -1.5em;
  min-width: 9em; }}
.shardlab-check table.cases tr td.case + td {{ white-space: nowrap; }}
.shardlab-check table.cases tr.followed td {{ border-bottom: 0; }}
.shardlab-check table.cases tr.why td {{ padding: 0 0 5px 1.5em; }}
.shardlab-check table.cases tr.why pre {{ margin: 4px 0 0; padding: 4px 8px; font-size: 12px;
  white-space: pre-wrap; background: var(--jp-layout-color2, #f0f0f0); color: inherit; }}
.shardlab-check .mark {{ display: inline-block; width: 1.5em; text-indent: 0;
  font-weight: 700; background: none; }}
.shardlab-check .mark.ok {{ color: {OK}; }}
.shardlab-check .mark.bad, .shardlab-check table.cases tr td.bad {{ color: {ERROR}; }}
</style>"""


def as_html(verdict: Verdict) -> str:
    table = ""
    if not verdict.unwritten:
        budgets = _budgets(verdict)
        number = '<th class="number">'
        heads = [f"{number}{escape(each)}</th>{number}limit</th>" for each in budgets]
        rows = [_html_rows(row, budgets) for row in _rows(verdict)]
        table = (
            '<table class="cases"><thead><tr>'
            f"<th>case</th><th>output</th>{''.join(heads)}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table>"
        )
    return (
        f'{_STYLE}<div class="shardlab-check" data-exercise="{escape(verdict.exercise)}" '
        f'data-passed="{str(verdict.passed).lower()}">'
        f'<div class="line {_css(verdict.passed)}">{escape(_top_line(verdict))}</div>{table}</div>'
    )


def _budgets(verdict: Verdict) -> list[str]:
    """The headings of all budgets in order of declaration, one column each."""
    return list(dict.fromkeys(spent.heading for case in verdict.cases for spent in case.spent))


def _html_rows(row: _Row, budgets: list[str]) -> str:
    case, css = row.case, _css(row.case.passed)
    cells = [
        f'<td class="case"><span class="mark {css}">{MARK[case.passed]}</span>'
        f"{escape(row.title)}</td>",
        f'<td class="{_css(case.outputs_right or not case.was_run)}">{escape(_output(case))}</td>',
    ]
    for heading in budgets:
        used, limit = _used_and_limit(case, heading)
        cells.append(f'<td class="number {css}">{escape(used)}</td>')
        cells.append(f'<td class="number">{escape(limit)}</td>')
    followed = ' class="followed"' if row.why else ""
    html = f'<tr{followed} data-passed="{str(case.passed).lower()}">{"".join(cells)}</tr>'
    if row.why:
        why = "<br>".join(map(escape, row.why))
        if case.printed:
            why += f"<pre>{escape(case.printed)}</pre>"
        html += f'<tr class="why"><td colspan="{len(cells)}" data-diagnosis>{why}</td></tr>'
    return html


def as_text(verdict: Verdict) -> str:
    lines = [f"{MARK[verdict.passed]} {_top_line(verdict)}"]
    if not verdict.unwritten:
        rows = list(_rows(verdict))
        width = max((len(row.title) for row in rows), default=0)
        for row in rows:
            line = f"  {MARK[row.case.passed]} {row.title:<{width}}  {_output(row.case):<11}"
            for heading in _budgets(verdict):
                used, limit = _used_and_limit(row.case, heading)
                line += f"  {heading} {used}, limit {limit}" if used else ""
            lines.append(line.rstrip())
            lines += [f"      {each}" for each in (*row.why, *row.case.printed.splitlines())]
    return "\n".join(lines)


def progress_html(line: str) -> str:
    return f'{_STYLE}<div class="shardlab-check" data-running>{escape(line)} …</div>'


def _top_line(verdict: Verdict) -> str:
    if verdict.unwritten:
        return f"{verdict.answer}: not written yet"
    return f"{verdict.score}. {verdict.note}" if verdict.note else verdict.score


@dataclass(frozen=True)
class _Row:
    case: CaseResult
    title: str
    why: tuple[str, ...]  # why it fails, a line each


def _rows(verdict: Verdict) -> Iterator[_Row]:
    """A row for each case; cases that were not run share one.

    The same finding is not written out again, unless it quotes another error's message, or another
    one is in between: then it is clear only with a case's name, which hidden cases do not have.
    """
    shown: dict[tuple[str, bool, str], str] = {}  # the first case with this finding
    above: tuple[str, bool, str] | None = None
    for (was_run, why), group in groupby(verdict.cases, lambda c: (c.was_run, c.diagnosis)):
        cases = list(group)
        if not was_run and len(cases) > 1:
            yield _Row(cases[0], f"{len(cases)} cases", (why,))
            continue
        for case in cases:
            key = (case.mistake, case.hidden, case.diagnosis if case.quotes else "")
            finding = case.diagnosis
            if finding and key == above:
                finding = "as above"
            elif finding and key in shown and not case.hidden:
                finding = f"as in the case “{shown[key]}”"
            yield _Row(case, case.title, tuple(filter(None, (finding, case.calls_differ))))
            shown.setdefault(key, case.title)
            above = key if case.diagnosis else above


def _css(good: bool) -> str:
    return "ok" if good else "bad"


def _output(case: CaseResult) -> str:
    if not case.was_run:
        return "not run"
    if not case.outputs_right:
        return "wrong"
    return "as expected" if case.passed else "right, but:"


def _used_and_limit(case: CaseResult, heading: str) -> tuple[str, str]:
    """("1,024 B", "≤ 2,048 B"), of the rank furthest over its limit, else of the rank that
    used most.

    A case that fails shows only limits that it does not keep; a hidden case shows none, because its
    bytes would reveal its size.
    """
    budgets = [spent for spent in case.spent if spent.heading == heading]
    broken = next((spent for spent in budgets if not spent.fits), None)
    if case.hidden or not budgets or not (case.passed or broken):
        return "", ""
    spent = broken or budgets[0]
    is_known = min(spent.used) >= 0
    if is_known and spent.ranks_under and not spent.ranks_over:
        rank = spent.ranks_under[0]
        limit = f"at least {_amount(spent.least[rank], spent.unit)}"
    else:
        rank = spent.ranks_over[0] if spent.ranks_over else spent.used.index(max(spent.used))
        limit = f"≤ {_amount(spent.limit[rank], spent.unit)}"
    used = _amount(spent.used[rank], spent.unit) if is_known else "–"
    return used, limit


def _amount(count: int, unit: str) -> str:
    return f"{count:,} {SINGULAR.get(unit, unit) if count == 1 else unit}".rstrip()
