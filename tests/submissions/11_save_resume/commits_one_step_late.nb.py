# /// shardlab-submission
# lab = "11_save_resume"
# loses = {train_resumable = 6}
# says = {train_resumable = "gives a checkpoint a number that is not that of the steps done"}
# ///
# After step s it writes number s, if that is a multiple: one step later than it says.

# %% nbgrader={"grade_id": "train_resumable", "solution": true}
def train_resumable(root, job, steps, every):
    rank = dist.get_rank()
    first = 0
    folder = latest(root)
    if folder is not None:
        state = torch.load(folder / "shared.pt", weights_only=True)
        own = torch.load(folder / f"rank_{rank}.pt", weights_only=True)
        job.model.load_state_dict(state["model"])
        job.optimizer.load_state_dict(state["optimizer"])
        job.scheduler.load_state_dict(state["scheduler"])
        job.stream.load_state_dict(state["stream"])
        job.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(own["torch_rng"])
        random.setstate(own["python_rng"])
        first = state["step"] + 1
    losses = {}
    for step in range(first, steps):
        losses[step] = job.step()
        if step > 0 and step % every == 0:
            def write(folder):
                if rank == 0:
                    torch.save({
                        "model": job.model.state_dict(),
                        "optimizer": job.optimizer.state_dict(),
                        "scheduler": job.scheduler.state_dict(),
                        "stream": job.stream.state_dict(),
                        "scaler": job.scaler.state_dict(),
                        "step": step,
                    }, folder / "shared.pt")
                torch.save({"torch_rng": torch.get_rng_state(), "python_rng": random.getstate()},
                           folder / f"rank_{rank}.pt")
            atomic_commit(root, step, write)
    return losses
