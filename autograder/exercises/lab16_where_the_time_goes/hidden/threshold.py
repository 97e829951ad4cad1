MISTAKES: dict[str, str] = {}
