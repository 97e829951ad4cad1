"""The students' package: the course, the labs, and checks that hold no answer."""

from autograder.release.package import package
from autograder.release.refusal import ReleaseError
from autograder.release.write import archives, write

__all__ = ["ReleaseError", "archives", "package", "write"]
