"""What Linux knows about a process: its threads, its memory, its pages."""
