"""A hundred thousand identical cells."""

from tests.submissions.corpus import Place, released, save

KIND = "smuggling"
STATE = "graded"
SEEN_BY = "neighbors"


def submit(place: Place) -> None:
    cell = {"cell_type": "code", "metadata": {}, "source": "pass"}
    save({**released(), "cells": [cell] * 100_000}, place.folder)
