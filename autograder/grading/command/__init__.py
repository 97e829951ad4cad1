"""`python -m autograder grade`: a whole class, to the end."""
