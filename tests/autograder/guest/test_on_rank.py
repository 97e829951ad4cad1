"""Replacing the functions that an answer calls, and running an answer on a rank."""

from __future__ import annotations

import functools
from fractions import Fraction

import cloudpickle

from autograder.exercise import Case
from autograder.guest.on_rank import formula_results, identity, on_rank, with_functions_replaced

SOURCE = """
def piece():
    return "the student's"

def helper():
    return piece()

def answer():
    return piece(), helper()
"""


def as_on_a_rank(name, decorate=lambda function: function):
    namespace = {"__name__": "__main__"}
    exec(SOURCE, namespace)
    return namespace, cloudpickle.loads(cloudpickle.dumps(decorate(namespace[name])))


def test_functions_are_also_replaced_in_helpers():
    _, answer = as_on_a_rank("answer")
    assert answer() == ("the student's", "the student's")
    assert with_functions_replaced(answer, piece=lambda: "ours")() == ("ours", "ours")


def test_the_students_own_namespace_is_unchanged():
    namespace, answer = as_on_a_rank("answer")
    with_functions_replaced(answer, piece=lambda: "ours")
    assert namespace["answer"]() == ("the student's", "the student's")


def test_functions_are_replaced_below_a_decorator():
    def decorate(function):
        return functools.wraps(function)(lambda: function())

    _, answer = as_on_a_rank("answer", decorate)
    assert with_functions_replaced(answer, piece=lambda: "ours")() == ("ours", "ours")


def test_an_object_without_a_namespace_is_returned_unchanged():
    assert with_functions_replaced(len, piece=None) is len
    assert with_functions_replaced(3, piece=None) == 3


def test_drive_gets_the_answer_the_ranks_input_and_the_case():
    case = Case("one", 1)
    drive = cloudpickle.dumps(lambda *arguments: arguments)
    seen = on_rank("given", drive, case, cloudpickle.dumps("answer"), ())
    assert seen == ("answer", "given", case)


def test_a_formula_may_answer_in_fractions():
    def answer(n):
        return {"parts": [(Fraction(n, 2), Fraction(2 * n, 2))]}

    found = formula_results(identity, answer, [[3]], Case("fractions", 1, {}))
    assert repr(found) == "[{'parts': [(1.5, 3)]}]"
