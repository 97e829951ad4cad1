"""Lab 11: sharded checkpoints, resharding, atomic commits, and bit-equal resuming after a kill."""

EXERCISES = ("save_sharded", "load_sharded", "atomic_commit", "train_resumable")
