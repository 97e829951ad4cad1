"""The markdown cell that shows a chapter's opener."""

from __future__ import annotations

from tools.openers.opener import Opener


def cell(name: str, opener: Opener) -> str:
    """Its source. A reader may close it, and plays it again by following the picture's link.

    Only a picture plays before any code is run: scripts in markdown do not, and JupyterLab asks
    before a button in a notebook that is not trusted may do anything. A picture begins when it is
    loaded, and JupyterLab keeps no ``loading="lazy"``: so it plays twice, and the link opens it in
    a tab of its own.
    """
    path = f"openers/{name}.svg"
    return (
        f"<details open><summary>{opener.title}</summary>\n\n"
        f"[![Animation: {opener.title}]({path})]({path})\n\n"
        f"{opener.caption} (Recorded from real processes. [Play it again]({path}))\n\n"
        "</details>"
    )
