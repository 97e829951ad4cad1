"""The code that runs in the same process as student code, and nothing else."""
