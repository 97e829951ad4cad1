"""formgrader for a whole class: the same pages as nbgrader's own, in less time.

A Jupyter server extension, enabled in jupyter/jupyter_server_config.py. nbgrader has no setting for
its pages' queries, but looks up ``NbGraderAPI`` at each request.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "autograder.pages.formgrader"}]


def _load_jupyter_server_extension(server: Any) -> None:
    # Imported here: an export imports this package for its outputs, and needs no server.
    from nbgrader.server_extensions.formgrader import base

    from autograder.pages.formgrader.api import ClassAPI

    base.NbGraderAPI = ClassAPI
