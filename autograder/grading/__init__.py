"""From submissions to points in the gradebook. No student code runs in this process."""
