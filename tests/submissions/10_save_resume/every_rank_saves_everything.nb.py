# /// shardlab-submission
# lab = "10_save_resume"
# loses = {train_resumable = 3.429}
# says = {train_resumable = "saves the ranks' common state more than once"}
# ///

# %% nbgrader={"grade_id": "train_resumable", "solution": true}
def train_resumable(root, job, steps, every):
    """root a Path, job a Job  ->  {step: loss} of the steps that this call ran"""
    rank, done, losses = dist.get_rank(), 0, {}
    names = ("model", "optimizer", "scheduler", "stream", "scaler")
    pieces = {name: getattr(job, name) for name in names}

    def write(folder):
        everything = {name: piece.state_dict() for name, piece in pieces.items()}
        everything |= {"done": done, "torch": torch.get_rng_state(), "python": random.getstate()}
        torch.save(everything, folder / f"rank_{rank}.pt")

    newest = latest(root)
    if newest is not None:
        shared = own = torch.load(newest / f"rank_{rank}.pt", weights_only=True)
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
    return losses
