"""Lab 10: checkpoints in slices, for other ranks, whenever a rank is killed, and to the bit."""

EXERCISES = ("save_sharded", "load_sharded", "atomic_commit", "train_resumable")
