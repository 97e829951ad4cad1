"""What axe-core finds wrong for people who use a screen reader, a keyboard or a magnifier."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

# Serious findings in JupyterLab 4.6, Notebook 7 and extensions, which the course cannot change.
JUPYTERLABS = (
    "jp-button",  # toolbar buttons have aria-pressed, also those that are no switches
    ".jp-WindowedPanel-viewport",  # a feed has to contain articles, and cells are none
    ".cm-content",  # a cell's editor has no name
    ".jp-collapseHeadingButton",  # nor has the button that folds a section
    ".jp-Cell-outputArea",  # long outputs scroll in Notebook 7, and keys cannot scroll them
    ".jp-RenderedSVG > img",  # a plot's SVG: JupyterLab gives it no alternative text
)


def serious_findings(page: Page, within: str = "body") -> list[str]:
    """Serious and critical violations of axe-core's rules in our part of the page."""
    found = Axe().run(page, within, {"resultTypes": ["violations"]}).response["violations"]
    nodes = [
        (rule["id"], node["target"][-1], node["html"])
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    return [
        f"{rule}: {html[:200]}"
        for rule, target, html in nodes
        if not page.locator(target).first.evaluate(
            "(node, theirs) => node.matches(theirs)", ", ".join(JUPYTERLABS)
        )
    ]
