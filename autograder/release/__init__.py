"""The students' package: the course, the labs, and checks without answers."""
