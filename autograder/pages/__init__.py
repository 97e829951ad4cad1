"""What is read after grading: feedback, reports, formgrader's pages."""
