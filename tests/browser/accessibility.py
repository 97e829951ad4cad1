"""Accessibility problems that axe-core finds."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

# Serious findings in JupyterLab 4.6, Notebook 7 and extensions, which the course cannot change.
JUPYTERLAB_FINDINGS = (
    "jp-button",  # all toolbar buttons have aria-pressed, although not all are toggles
    ".jp-WindowedPanel-viewport",  # role=feed requires articles as children
    ".cm-content",  # a cell's editor has no accessible name
    ".jp-collapseHeadingButton",  # nor does the button that collapses a section
    ".jp-Cell-outputArea",  # long outputs in Notebook 7 cannot be scrolled by keyboard
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
            "(node, known) => node.matches(known)", ", ".join(JUPYTERLAB_FINDINGS)
        )
    ]
