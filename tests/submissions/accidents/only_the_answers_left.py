"""Everything but the answers was deleted, including imports and checks."""

from pathlib import Path

from tests.submissions.accidents.editing import Notebook, cell, save

RING = ("chunk_bounds", "reduce_scatter", "all_gather", "ring_all_reduce")
SAYS = "`check_chunk_bounds` was missing: it was restored"


def submit(notebook: Notebook, folder: Path) -> None:
    ids = (*RING, "bytes_per_rank", "hierarchical_all_reduce", "from_8_to_64_ranks")
    answers = [cell(notebook, name) for name in ids]
    save({**notebook, "cells": answers}, folder)
