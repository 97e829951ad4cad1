"""Everything that runs in a process next to student code, and nothing else."""
