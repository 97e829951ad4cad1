"""Why no package was made."""


class ReleaseError(Exception):
    """The text says what to do."""
