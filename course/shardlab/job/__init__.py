"""The processes of a job that another program has started, such as torchrun or Slurm, as ranks."""
