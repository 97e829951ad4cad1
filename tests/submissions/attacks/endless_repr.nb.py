# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "values whose repr, str and class never return"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
class Evil(Exception):
    def __repr__(self):
        while True:
            pass
    __str__ = __repr__
raise Evil
