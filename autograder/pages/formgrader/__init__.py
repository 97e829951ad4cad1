"""formgrader for a whole class: nbgrader's own pages, faster, with late penalties and states.

A Jupyter server extension, enabled in jupyter/jupyter_server_config.py. nbgrader has no settings
for its pages' queries and scripts, but looks up ``NbGraderAPI`` and ``BaseHandler.render`` on every
request.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from autograder.grading.course_time import to_course_time

LISTS_OF_A_LAB = ("manage_submissions.tpl", "gradebook_notebook_submissions.tpl")
LISTS = (
    *LISTS_OF_A_LAB,
    "manage_students_assignments.tpl",
    "manage_students_notebook_submissions.tpl",
)
SCRIPT = Path(__file__).with_name("late_and_state.js")


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "autograder.pages.formgrader"}]


def _load_jupyter_server_extension(server: Any) -> None:
    # Imported here: exporting a notebook imports this package, and needs no server.
    from nbgrader.server_extensions.formgrader import base, handlers

    from autograder.pages.formgrader import class_report, written
    from autograder.pages.formgrader.api import ClassAPI

    base.NbGraderAPI = ClassAPI
    handlers.to_numeric_tz = str  # the zone's name, not today's offset: see ClassAPI
    base.BaseHandler.gradebook = property(_unless_moved(base.BaseHandler.gradebook.fget))
    base.BaseHandler.render = _with_script(base.BaseHandler.render)
    prefix = str(server.base_url).rstrip("/")
    pages = [(prefix + page.URL, page.handler()) for page in (written, class_report)]
    server.web_app.add_handlers(".*$", pages)


def _with_script(render: Callable[..., str]) -> Callable[..., str]:
    """nbgrader's ``render``, which adds our script to lists of submissions, after its own."""

    @functools.wraps(render)
    def rendered(handler: Any, name: str, **values: Any) -> str:
        if why := _moved(handler):
            return f"<!DOCTYPE html><title>formgrader</title><pre>{escape(why)}</pre>"
        page = render(handler, name, **values)
        if name not in LISTS:
            return page
        links = name in LISTS_OF_A_LAB and _has_written_answers(handler, values["assignment_id"])
        report = _report(handler, values["assignment_id"]) if name in LISTS_OF_A_LAB else ""
        about = (
            f"var has_written_answers = {str(links).lower()}, class_report = {json.dumps(report)};"
        )
        script = f"<script>\n{about}\n{SCRIPT.read_text(encoding='utf-8')}</script>\n</head>"
        return page.replace("</head>", script, 1)

    return rendered


def _unless_moved(gradebook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Refuses requests from a page that was loaded before the gradebook was moved."""

    @functools.wraps(gradebook)
    def checked(handler: Any) -> Any:
        from tornado import web

        if why := _moved(handler):
            raise web.HTTPError(409, why, reason="The gradebook was moved: see the log")
        return gradebook(handler)

    return checked


def _moved(handler: Any) -> str:
    """Why formgrader must not use its gradebook, or ""."""
    from autograder.grading.gradebook.database import GradebookError, require_not_moved

    try:
        require_not_moved(handler.coursedir.db_url)
    except GradebookError as error:
        return str(error)
    return ""


def _report(handler: Any, lab: str) -> str:
    """When the lab's class report was written, or "" if there is none."""
    from autograder.pages.formgrader.class_report import path_of

    path = path_of(handler.coursedir, lab)
    if path is None:
        return ""
    at = to_course_time(datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(tzinfo=None))
    return f"{at.day} {at:%B %Y, %H:%M %Z}"


def _has_written_answers(handler: Any, lab: str) -> bool:
    from nbgrader.api import MissingEntry

    from autograder.pages.formgrader.written import written_questions

    with handler.api.gradebook as gradebook:
        try:
            return bool(written_questions(gradebook, lab))
        except MissingEntry:
            return False
