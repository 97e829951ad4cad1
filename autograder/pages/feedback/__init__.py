"""The page that a student gets."""

from autograder.pages.feedback.exchange import ReleaseFeedback
from autograder.pages.feedback.exporter import FeedbackExporter

__all__ = ["FeedbackExporter", "ReleaseFeedback"]
