"""Words for a call that was started and never waited for."""

from __future__ import annotations

from shardlab.run.call import Call

_STARTED = {
    "send": ("a send with isend", "its buffer may be reused before it is sent"),
    "recv": ("a receive with irecv", "its buffer may be read before the data is there"),
}


def never_waited_text(call: Call) -> str:
    """ "starts a send with isend and never waits for it: its buffer may be reused …" """
    collective = f"{call.op} with async_op=True", "its result may be used too early"
    what, why = _STARTED.get(call.op, collective)
    return f"starts {what} and never waits for it: {why}"
