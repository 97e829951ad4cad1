"""The page that a student gets, and the same care for what an instructor opens in formgrader."""

from autograder.pages.feedback.exchange import ReleaseFeedback
from autograder.pages.feedback.exporter import FeedbackExporter
from autograder.pages.formgrader.inert_outputs import InertOutputs

__all__ = ["FeedbackExporter", "InertOutputs", "ReleaseFeedback"]
