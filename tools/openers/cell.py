"""The markdown cell that shows a chapter's opener."""

from __future__ import annotations

from tools.openers.opener import Opener


def cell(name: str, opener: Opener) -> str:
    """Its source. A reader may close it.

    The course's JupyterLab puts buttons next to the picture (page/). Elsewhere scripts in markdown
    do not run: there it plays when it is loaded, and again when its link is followed.
    """
    path = f"openers/{name}.svg"
    return (
        f"<details open><summary>{opener.title}</summary>\n\n"
        f"[![Animation: {opener.title}]({path})]({path})\n\n"
        f"{opener.caption} (Recorded from real processes.)\n\n"
        "</details>"
    )
