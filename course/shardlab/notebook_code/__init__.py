"""The code of the chapters' notebooks, read without running it."""
