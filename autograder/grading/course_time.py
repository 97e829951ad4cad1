"""The course's time zone, for times that are written without one.

Those are due dates that an instructor types, `timestamp.txt` files and times in the names of
downloaded files. nbgrader reads them as UTC, and the gradebook holds UTC without a zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import dateutil.parser

_HYPHENS = re.compile(r"(\d{4}-\d\d-\d\d)[-_ ](\d\d)[-_](\d\d)[-_](\d\d)")  # nbgrader's own example
_NAMED = re.compile(r"(.*\d.*?)\s+([A-Za-z][\w/+-]*)")
_HALVES = ("am", "pm")
_YEAR_FIRST = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")

_SHOWN = 60  # characters of a text that is not a time

_zone = ZoneInfo("UTC")


def use_timezone(c: Any, name: str) -> None:
    """For nbgrader_config.py; ``c``: the configuration. Applies to this process.

    Raises ValueError if there is no such zone.
    """
    global _zone
    _zone = _zone_of(name)
    c.NbGraderAPI.timezone = name  # formgrader shows times in it
    _replace_nbgraders_functions()


def course_zone() -> ZoneInfo:
    return _zone


def to_utc(time: str | datetime | None) -> datetime | None:
    """A time as the gradebook holds it: in UTC, without a zone.

    Text without a zone is in the course's. When clocks are set back, an hour occurs twice: the
    first one is meant. When they are set forward, an hour does not exist: 02:30 is read as 03:30.
    Text may end in an offset (+0200), the name of a zone (Europe/Berlin) or the course's own
    abbreviation (CEST). A datetime without a zone is UTC. A date is written 2026-10-07: who wrote
    7.10.2026 or 10/7/2026 may have meant July or October.

    Raises ValueError if the text is not a time.
    """
    if time is None:
        return None
    found = _parse(time.strip()) if isinstance(time, str) else time
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)


def to_course_time(time: datetime) -> datetime:
    """A time of the gradebook, in the course's zone."""
    return time.replace(tzinfo=UTC).astimezone(_zone)


def shown(text: str) -> str:
    """A text that is not a time, quoted and not too long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _parse(text: str) -> datetime:
    if not _YEAR_FIRST.match(text):
        raise ValueError(f"{shown(text)} does not begin with a date such as 2026-10-07 (October 7)")
    if hyphens := _HYPHENS.fullmatch(text):
        # dateutil would read the seconds as an offset.
        text = "{} {}:{}:{}".format(*hyphens.groups())
    named = _NAMED.fullmatch(text)
    if named and named[2].lower() not in _HALVES:
        return _in_zone(dateutil.parser.parse(named[1]), named[2])
    found = dateutil.parser.parse(text)
    return found if found.tzinfo else found.replace(tzinfo=_zone)


def _in_zone(time: datetime, name: str) -> datetime:
    if time.tzinfo:
        raise ValueError(f"{time} has a zone, followed by {name!r}")
    return _abbreviated(time, name, _zone) or _in_named_zone(time, name)


def _abbreviated(time: datetime, name: str, zone: ZoneInfo) -> datetime | None:
    """The time by one of the zone's abbreviations, also that of the other half of the year."""
    for fold in (0, 1):
        here = time.replace(tzinfo=zone, fold=fold)
        if here.tzname() == name:
            return here
    for month in range(1, 13):
        other = datetime(time.year, month, 1, tzinfo=zone)
        offset = other.utcoffset()
        if other.tzname() == name and offset is not None:
            return time.replace(tzinfo=timezone(offset))
    return None


def _in_named_zone(time: datetime, name: str) -> datetime:
    zone = _zone_of(name)
    return _abbreviated(time, name, zone) or time.replace(tzinfo=zone)


def _zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"there is no time zone {name!r}: write a name such as Europe/Berlin or UTC"
        ) from error


def _to_aware_utc(time: str) -> datetime | None:
    found = to_utc(time)
    return found.replace(tzinfo=UTC) if found else None


def _as_timezone(time: datetime, name: str) -> datetime:
    return time.replace(tzinfo=UTC).astimezone(_zone_of(name))


def _report_bad_timestamp(course: Any, message: str) -> None:
    course.log.error("%s: write a time such as 2026-10-02 13:00:00 UTC", message)


def _refuse_bad_due_date(command: type[Any]) -> None:
    """One line instead of a traceback."""
    start = command.start
    if start.__module__ == __name__:  # done before
        return

    def start_unless_bad(app: Any) -> None:
        try:
            to_utc(app.duedate)
        except (ValueError, OverflowError) as error:
            app.fail("the due date %s", error)
        start(app)

    command.start = start_unless_bad


def _replace_nbgraders_functions() -> None:
    # nbgrader's modules import the functions by name, and it has no setting.
    import nbgrader.apps.api
    import nbgrader.apps.dbapp
    import nbgrader.apps.zipcollectapp
    import nbgrader.coursedir
    import nbgrader.exchange.default.collect
    import nbgrader.utils

    nbgrader.utils.parse_utc = to_utc
    nbgrader.coursedir.parse_utc = to_utc
    nbgrader.apps.api.parse_utc = to_utc
    nbgrader.exchange.default.collect.parse_utc = to_utc
    # Writes what it read to timestamp.txt, without a zone unless the time has one.
    nbgrader.apps.zipcollectapp.parse_utc = _to_aware_utc
    # Takes the offset of UTC's digits, which is wrong for some hours around a change of clocks.
    nbgrader.apps.api.as_timezone = _as_timezone
    # Does not exist, but is called for a timestamp.txt that is not a time; the AttributeError would
    # end formgrader's list of all students and `nbgrader collect --update`.
    nbgrader.coursedir.CourseDirectory.fail = _report_bad_timestamp
    _refuse_bad_due_date(nbgrader.apps.dbapp.DbAssignmentAddApp)
