"""Submissions: read, repaired, and inserted into the lab as it was released."""
