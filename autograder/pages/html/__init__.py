"""Students' work as inert HTML, which runs and loads nothing."""
