# /// shardlab-submission
# lab = "09_pipeline"
# loses = {run_schedule = 6.0}
# says = {run_schedule = "changes its argument schedule"}
# ///

# %% nbgrader={"grade_id": "run_schedule", "solution": true}
def run_schedule(schedule, stages, inputs, targets, shape):
    rank = dist.get_rank()
    rank_of = {s: r for r, actions in enumerate(schedule) for _, s, _ in actions}
    last = max(rank_of)
    most = max(map(len, schedule))
    micro_batches = 1 + max(k for _, _, k in schedule[rank])
    tag = lambda kind, s, k: (2 * s + (kind == "F")) * most + k
    held, sending, total = {}, [], torch.zeros(())
    while schedule[rank]:
        kind, s, k = schedule[rank].pop(0)
        if kind == "F":
            if s == 0:
                x = inputs[k]
            else:
                x = torch.empty(shape)
                dist.recv(x, rank_of[s - 1], tag=tag("F", s, k))
                x.requires_grad_()
            y = stages[s](x)
            if s == last:
                y = F.mse_loss(y, targets[k]) / micro_batches
                total += y.detach()
            else:
                out = y.detach()
                sending.append((dist.isend(out, rank_of[s + 1], tag=tag("F", s + 1, k)), out))
            held[s, k] = x, y
        else:
            x, y = held.pop((s, k))
            if s == last:
                y.backward()
            else:
                g = torch.empty(shape)
                dist.recv(g, rank_of[s + 1], tag=tag("B", s, k))
                y.backward(g)
            if s > 0:
                sending.append((dist.isend(x.grad, rank_of[s - 1], tag=tag("B", s - 1, k)), x.grad))
    for work, _ in sending:
        work.wait()
    return total if last in stages else None
