"""Lab 11: what configurations really run, and a loop ported to Accelerate."""

EXERCISES = ("config_lint", "port_a_loop", "token_mean", "metrics", "schedule", "save_everything")
