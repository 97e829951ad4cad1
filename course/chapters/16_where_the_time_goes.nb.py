# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16 · Where the time goes
#
# A placeholder: the chapter itself is written elsewhere.
#
# **After this chapter you can**
#
# - take a step's time apart;
# - draw a roofline;
# - compute MFU.
#
# **You need:** [03 Ring all-reduce](03_ring_all_reduce.ipynb) and [08 Tensor parallelism](08_tensor_parallel.ipynb).

# %%
print(16)
