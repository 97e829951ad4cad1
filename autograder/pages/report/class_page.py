"""The class report as one page that stands alone."""

from __future__ import annotations

import statistics
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from autograder.pages.html.prose import prose
from autograder.pages.report import charts
from autograder.pages.report.summary import Summary, amount

HERE = Path(__file__).parent


def render(summary: Summary) -> str:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "amount": amount}
    return environment.get_template("page.html").render(
        summary=summary,
        median=statistics.median(summary.totals) if summary.totals else None,
        style=Markup((HERE.parent / "html/page.css").read_text(encoding="utf-8")),
        totals=Markup(charts.totals(summary)),
        exercises=Markup(charts.exercises(summary)),
    )
