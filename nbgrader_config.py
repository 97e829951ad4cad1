"""nbgrader's configuration for this repository; also read by formgrader, Validate and the
assignment list inside JupyterLab. Grading itself is in autograder/grading/."""

import importlib.util
import os
import sys
from pathlib import Path

from autograder.grading.course_time import use_timezone

c = get_config()  # noqa: F821  (provided by traitlets)

repo = Path(__file__).resolve().parent
grading = repo / "grading"
exchange = grading / "exchange"
# SQLite creates its file but not the folder. The folder contains grades: only you have access.
grading.mkdir(mode=0o700, exist_ok=True)
# The assignment list needs a writable exchange.
exchange.mkdir(parents=True, exist_ok=True)

# nbgrader creates a new gradebook with the command `alembic`, which is in the venv, but not on the
# PATH if .venv/bin/jupyter was started without activating the venv.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

# ---- folders and the gradebook

c.CourseDirectory.course_id = "shardlab"
c.CourseDirectory.root = str(repo)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
c.CourseDirectory.submitted_directory = "grading/submitted"
c.CourseDirectory.autograded_directory = "grading/autograded"
c.CourseDirectory.feedback_directory = "grading/feedback"
c.CourseDirectory.solution_directory = "grading/solution"
c.CourseDirectory.source_with_tests_directory = "grading/source_with_tests"
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback",  # nbgrader's own
    "*.nb.py",  # the notebooks' sources, with solutions
    "rubric.toml",  # for grading by hand
]  # fmt: skip
# The only place that sets where grades are stored. To use PostgreSQL, set its URL here or in the
# environment: postgresql+psycopg://user@host/database?connect_timeout=10
# Wait 60 s for a locked database instead of SQLite's 5: a whole class is written at once.
c.CourseDirectory.db_url = os.environ.get(
    "SHARDLAB_DB_URL", f"sqlite:///{grading / 'gradebook.db'}?timeout=60"
)

c.Exchange.root = str(exchange)
c.Exchange.cache = str(grading / "cache")
# `nbgrader collect --update` keeps the submission that it replaces, in grading/earlier.
c.ExchangeFactory.collect = "autograder.grading.collect.from_exchange.Collect"
c.ZipCollectApp.downloaded_directory = "grading/downloaded"
c.ExportApp.plugin_class = "autograder.pages.report.nbgrader_export.GradedPoints"
c.ExportPlugin.to = str(grading / "grades.csv")

# ---- times

# The time zone of due dates and submission times that do not name one.
use_timezone(c, "UTC")

# ---- release

# labs/ is in git, and nbgrader skips existing labs: without this, none would enter the gradebook.
c.GenerateAssignment.force = True
# Stops if a notebook differs from its source, as after a failed `python -m autograder build`, or if
# a lab that has grades has other questions.
c.GenerateAssignment.exporter_class = "autograder.grading.gradebook.same_questions.GradedNotebooks"

# ---- autograde

c.Autograde.exporter_class = "autograder.grading.gradebook.read_and_rebuild.SubmissionReader"
c.Autograde.sanitize_preprocessors = [
    "autograder.grading.gradebook.read_and_rebuild.RebuildSubmission",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    "autograder.grading.gradebook.run_and_decide.RunAndDecide",
    "nbgrader.preprocessors.LimitOutput",
    "autograder.grading.gradebook.graded_answers.SaveGrades",
    "autograder.grading.late.ApplyExtension",
    "autograder.grading.late.LatePenalties",
]
# Late work costs no points until you set c.LateDays (docs/instructors.md, "Late work").
c.AssignLatePenalties.plugin_class = "autograder.grading.late.LateDays"

# ---- feedback

c.GenerateFeedback.exporter_class = "autograder.pages.feedback.FeedbackExporter"
c.ExchangeFactory.release_feedback = "autograder.pages.feedback.ReleaseFeedback"
c.GenerateFeedback.preprocessors = []  # grades come from the gradebook, styles from our own page

# ---- formgrader: displays student content without running it

c.HTMLExporter.preprocessors = ["autograder.pages.formgrader.inert_outputs.InertOutputs"]
c.HTMLExporter.filters = {"markdown2html": "autograder.pages.formgrader.inert_outputs.markdown"}
c.HTMLExporter.template_file = str(
    Path(importlib.util.find_spec("autograder").origin).parent / "pages/html/formgrader.html"
)

# ---- Validate

# nbgrader's 30 s per cell is too short for a check that starts real ranks on a busy laptop.
c.Execute.timeout = 180
# Error lines on a terminal are truncated to this width; the default would cut a mistake's name.
c.Validator.width = 240
