"""Grades reach only their student: a notebook of several people identifies none of them."""

from __future__ import annotations

from autograder.grading.roster.roster import Person
from autograder.pages.archive.feedback_zip import Submitter, assign


def test_a_notebook_identifies_only_the_one_person_who_can_be_its_author() -> None:
    ada, ida = Person("ada", canvas_id="1"), Person("ida")
    own = Submitter("lovelaceada", "1", 11, frozenset({"solution"}))
    stranger = Submitter("strangersam", "9", 12, frozenset({"solution"}))
    digests = {"ada": "solution", "ida": "solution"}
    assert assign([ada, ida], digests, [own, stranger]) == {"ada": own}
    # A copy of ida's notebook, under a Canvas id that is not hers.
    assert assign([Person("ida", canvas_id="2")], {"ida": "solution"}, [stranger]) == {}
    assert assign([ida], {"ida": "solution"}, [stranger]) == {"ida": stranger}


def test_in_moodle_a_group_may_come_before_a_name() -> None:
    ada, lena = Person("ada", "Ada", "Lovelace"), Person("lena", "Lena", "Meyer")
    red = Submitter("Red-Ada Lovelace", "11", 0, frozenset({"solution"}))
    too = Submitter("Red-Lena Meyer", "12", 0, frozenset({"solution"}))
    digests = {"ada": "solution", "lena": "solution"}
    assert assign([ada, lena], digests, [red, too]) == {"ada": red, "lena": too}
    anna = Submitter("Anna-Lena Meyer", "13", 0, frozenset({"another"}))
    assert assign([ada, lena], digests, [anna]) == {}
