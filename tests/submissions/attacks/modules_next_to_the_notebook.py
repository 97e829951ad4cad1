"""Modules, settings and start-up files next to the notebook, which run if grading imports them."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "graded"
SEEN_BY = "canary"


def submit(place: Place) -> None:
    trap = f"open({str(place.home / 'trapped')!r}, 'w'); open('/tmp/{place.mark}', 'w')"
    for name in ("torch", "autograder", "random", "sitecustomize", "nbgrader_config", "conftest"):
        (place.folder / f"{name}.py").write_text(trap)
        (place.folder.parent / f"{name}.py").write_text(trap)
    startup = place.folder / ".ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text(trap)
    save(released(), place.folder)
