"""From what students handed in to points in the gradebook. No student code runs in this process."""
