"""Records in nbgrader's gradebook, and what nbgrader's own commands run."""
