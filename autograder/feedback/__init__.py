"""The page that a student gets, and the same care for what an instructor opens in formgrader."""

from autograder.feedback.exchange import ReleaseFeedback
from autograder.feedback.exporter import FeedbackExporter
from autograder.feedback.formgrader import InertOutputs

__all__ = ["FeedbackExporter", "InertOutputs", "ReleaseFeedback"]
