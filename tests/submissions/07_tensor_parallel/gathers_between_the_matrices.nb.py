# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_mlp = 3.0}
# says = {tp_mlp = "communicates more than once in forward"}
# ///

# %% nbgrader={"grade_id": "tp_mlp", "solution": true}
def tp_mlp(mlp):
    class Gathered(ColumnLinear):
        def forward(self, x):
            y = super().forward(x)
            columns = [torch.empty_like(y) for _ in range(dist.get_world_size())]
            dist.all_gather(columns, y.detach())
            columns[dist.get_rank()] = y
            return torch.cat(columns, dim=-1).chunk(len(columns), dim=-1)[dist.get_rank()]

    mlp.up = Gathered(mlp.up)
    mlp.down = RowLinear(mlp.down)
    return mlp
