# /// shardlab-submission
# lab = "10_save_resume"
# loses = {train_resumable = 6.0}
# says = {train_resumable = "commits more checkpoints than one"}
# ///

# %% nbgrader={"grade_id": "train_resumable", "solution": true}
def train_resumable(root, job, steps, every):
    """root a Path, job a Job  ->  {step: loss} of the steps that this call ran"""
    rank, done, losses = dist.get_rank(), 0, {}
    pieces = {name: getattr(job, name) for name in
              ("model", "optimizer", "scheduler", "stream", "scaler")}

    def write(folder):
        if rank == 0:
            shared = {name: piece.state_dict() for name, piece in pieces.items()}
            torch.save({"done": done, **shared}, folder / "shared.pt")
        own = {"torch": torch.get_rng_state(), "python": random.getstate()}
        torch.save(own, folder / f"rank_{rank}.pt")

    newest = latest(root)
    if newest is not None:
        shared = torch.load(newest / "shared.pt", weights_only=True)
        own = torch.load(newest / f"rank_{rank}.pt", weights_only=True)
        for name, piece in pieces.items():
            piece.load_state_dict(shared[name])
        torch.set_rng_state(own["torch"])
        random.setstate(own["python"])
        done = shared["done"]
    while done < steps:
        losses[done] = job.step()
        done += 1
        if done % every == 0:
            atomic_commit(root, done, write)
    atomic_commit(root, done, write)
    return losses
