"""`python -m autograder similar`: answers that share passages, for a person to review."""
