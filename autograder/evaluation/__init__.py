"""Evaluates answers, for `check` and for grading: run on ranks, judge each case, present."""
