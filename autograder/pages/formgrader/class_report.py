"""The page that `python -m autograder report` has written, for a link from formgrader."""

from __future__ import annotations

import functools
from pathlib import Path

from nbgrader.coursedir import CourseDirectory
from tornado import web

from autograder.pages.report import FOLDER

URL = r"/shardlab/report/(?P<lab>[^/]+)/?"


def path_of(coursedir: CourseDirectory, lab: str) -> Path | None:
    """The report's file; None if there is none."""
    path = Path(coursedir.root) / FOLDER / f"{lab}.html"
    return path if Path(lab).name == lab and path.is_file() else None


@functools.cache
def handler() -> type[web.RequestHandler]:
    """Created when the server starts, because importing nbgrader's server code takes a while."""
    from nbgrader.server_extensions.formgrader.base import (
        BaseHandler,
        check_notebook_dir,
        check_xsrf,
    )

    class ClassReport(BaseHandler):
        @web.authenticated
        @check_xsrf
        @check_notebook_dir
        def get(self, lab: str) -> None:
            path = path_of(self.coursedir, lab)
            if path is None:
                raise web.HTTPError(404, reason="No such report")
            self.write(path.read_text(encoding="utf-8"))

    return ClassReport
