"""`python -m autograder grade`: grade a whole class."""
