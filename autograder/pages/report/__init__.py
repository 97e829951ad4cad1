from pathlib import Path

FOLDER = Path("grading/reports")  # of the reports, unless --to says otherwise
