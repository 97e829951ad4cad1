"""The student's copy of a lab, made from the solution by nbgrader's own generate_assignment."""

from __future__ import annotations

import logging
import tempfile
from logging.handlers import BufferingHandler
from pathlib import Path

from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from autograder.build.text import SourceError


def release(repo: Path, lab: str, notebooks: dict[str, bytes]) -> dict[str, bytes]:
    """{file name: bytes} of labs/``lab``, from {file name: bytes} of solutions/``lab``.

    Raises SourceError if nbgrader rejects them.

    Runs in a temporary folder, with the repository's nbgrader_config.py but no gradebook, so the
    result is what ``nbgrader generate_assignment`` writes and nothing in the repository changes.
    """
    with tempfile.TemporaryDirectory(prefix="shardlab-release-") as folder:
        root = Path(folder).resolve()
        config = _config(repo, root)
        course = CourseDirectory(config=config)
        source = root / course.source_directory / lab
        source.mkdir(parents=True)
        for name, content in notebooks.items():
            (source / name).write_bytes(content)

        converter = GenerateAssignment(coursedir=course, config=config)
        # nbgrader logs the cause; its exception only refers to the log.
        errors = BufferingHandler(capacity=1_000)
        errors.setLevel(logging.ERROR)
        converter.log = logging.Logger("autograder.build.nbgrader")
        converter.log.addHandler(errors)
        try:
            converter.start()
        except Exception as error:
            why = "\n".join(record.getMessage() for record in errors.buffer) or str(error)
            solution = repo / "solutions" / lab
            raise SourceError(f"{solution}: nbgrader rejected it:\n{why}") from error
        lab_folder = root / course.release_directory / lab
        return {
            str(path.relative_to(lab_folder)): path.read_bytes()
            for path in sorted(lab_folder.rglob("*"))
            if path.is_file()
        }


def _config(repo: Path, root: Path) -> Config:
    config = PyFileConfigLoader("nbgrader_config.py", path=str(repo)).load_config()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.assignment_id = "*"
    config.GenerateAssignment.no_database = True
    config.SaveCells.enabled = False
    return config
