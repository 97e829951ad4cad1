"""What people read after grading: feedback, reports, formgrader's pages."""
