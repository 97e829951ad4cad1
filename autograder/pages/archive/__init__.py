"""Feedback pages for a learning platform."""
