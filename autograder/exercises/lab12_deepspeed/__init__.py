"""Lab 12: what a configuration of DeepSpeed really runs."""

EXERCISES = ("config_lint",)
