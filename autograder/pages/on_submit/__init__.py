"""`python -m autograder grade-on-submit`: grades what arrives in nbgrader's exchange."""
