"""A student's feedback page."""

from autograder.pages.feedback.exporter import FeedbackExporter
from autograder.pages.feedback.release_feedback import ReleaseFeedback

__all__ = ["FeedbackExporter", "ReleaseFeedback"]
