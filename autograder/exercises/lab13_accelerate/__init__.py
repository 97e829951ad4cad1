"""Lab 13: a loop ported to Accelerate, and what goes wrong on several ranks."""

EXERCISES = ("port_a_loop", "token_mean", "metrics", "schedule", "save_everything")
