"""Collects submissions from a platform's download and puts them where grading expects them."""
