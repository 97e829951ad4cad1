# /// shardlab-submission
# lab = "13_accelerate"
# typed = true
# loses = {port_a_loop = 2.6667}
# says = {port_a_loop = "divides the loss by the accumulation steps and calls accelerator.backward"}
# ///

# %% nbgrader={"grade_id": "port_a_loop", "solution": true}
def port_a_loop(model, dataset, batch_size, accumulation, lr, max_norm, save):
    """same arguments, weights and losses as train_with_ddp"""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(dataset, batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, total = [], torch.zeros(())
    for x, labels in loader:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), labels) / accumulation
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
        total = total + loss.detach()
        if accelerator.sync_gradients:
            losses.append(accelerator.reduce(total, "mean").item())
            total = torch.zeros(())
    if accelerator.is_main_process:
        save(accelerator.unwrap_model(model).state_dict())
    return losses
