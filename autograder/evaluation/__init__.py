"""What `check` runs, and a grader: try an answer on ranks, judge each case, decide, present."""
