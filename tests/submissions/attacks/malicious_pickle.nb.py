# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "forging"
# tries = "an answer whose pickle runs a program when it is loaded"
# seen_by = "canary"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import os
class Evil:
    def __reduce__(self):
        command = "touch @HOME@/pickled @COURSE@/pickled /tmp/@MARK@-pickled; echo $SHARDLAB_CANARY"
        return os.system, (command,)
from autograder.guest import kernel

chunk_bounds = Evil()
