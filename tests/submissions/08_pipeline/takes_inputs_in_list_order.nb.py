# /// shardlab-submission
# lab = "08_pipeline"
# loses = {run_schedule = 2.0}
# says = {run_schedule = "has wrong values in 'gradients'"}
# ///

# %% nbgrader={"grade_id": "run_schedule", "solution": true}
def run_schedule(schedule, stages, inputs, targets, shape):
    rank_of = {s: rank for rank, actions in enumerate(schedule) for _, s, _ in actions}
    last, most = max(rank_of), max(map(len, schedule))
    kept, losses, sending, next_input = {}, [], [], iter(inputs or ())

    def tag_of(kind, s, k):
        return (2 * s + (kind == "F")) * most + k

    def send(tensor, *action):
        work = dist.isend(tensor, rank_of[action[1]], tag=tag_of(*action))
        sending.append((work, tensor))

    def receive(source, *action):
        tensor = torch.empty(shape)
        dist.recv(tensor, rank_of[source], tag=tag_of(*action))
        return tensor

    for kind, s, k in schedule[dist.get_rank()]:
        if kind == "F":
            x = next(next_input) if s == 0 else receive(s - 1, kind, s, k).requires_grad_()
            y = stages[s](x)
            if s == last:
                y = functional.mse_loss(y, targets[k]) / len(targets)
                losses.append(y.detach())
            else:
                send(y.detach(), kind, s + 1, k)
            kept[s, k] = x, y
        else:
            x, y = kept.pop((s, k))
            y.backward(None if s == last else receive(s + 1, kind, s, k))
            if s > 0:
                send(x.grad, kind, s - 1, k)
    for work, _ in sending:
        work.wait()
    return sum(losses) if losses else None
