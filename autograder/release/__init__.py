"""The students' package: the course, the labs, and checks that hold no answer."""
