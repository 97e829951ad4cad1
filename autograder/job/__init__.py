"""A check on the processes of a job, such as torchrun's, and the script that runs it there."""
