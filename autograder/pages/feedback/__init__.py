"""A student's feedback page."""

from autograder.pages.feedback.exchange import ReleaseFeedback
from autograder.pages.feedback.exporter import FeedbackExporter

__all__ = ["FeedbackExporter", "ReleaseFeedback"]
