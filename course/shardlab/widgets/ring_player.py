"""The ring player: a recorded run as an animation of chunks that move between ranks.

Up to eight ranks are drawn as cards, with a row for each chunk and a column for each rank, filled
in that rank's color once its data is in the chunk. More ranks are sectors of a wheel, with a ring
for each chunk: the more ranks have contributed, the stronger the gray; green means all have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from shardlab.display.palette import ERROR, OK, ink_on, op_color, rank_color
from shardlab.run import Run
from shardlab.widgets.message_history import MessageHistory, Transfer, read_messages
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.ring_layouts import HEIGHT, WIDTH, layout_of
from shardlab.widgets.scene import Group, Mark, Text, as_json, to_svg
from shardlab.widgets.units import format_bytes

STATIC_WIDTH = 820.0  # of a page of feedback


class RingPlayer(Picture):
    """The animation of a run's messages. Made by `ring_player`."""

    _esm: ClassVar[str] = module("player.js", "ring_player_drawing.js", "ring_player.js")

    def __init__(self, history: MessageHistory, notes: tuple[str, ...]) -> None:
        self._history = history
        layout = layout_of(history)
        self._layout = layout
        scene = {
            "world_size": history.world_size,
            "width": WIDTH,
            "height": HEIGHT,
            "steps": history.steps,
            "chunks": len(history.chunks),
            "notes": list(notes),
            "colors": [rank_color(rank) for rank in range(history.world_size)],
            "all": OK,
            "lost": ERROR,
            "message": [op_color("send"), ink_on(op_color("send")), ink_on(ERROR)],
            "marks": as_json(layout.background()),
            "layout": layout.as_json(),
            "key": layout.key,
            "messages": [_for_browser(message) for message in history.messages],
        }
        super().__init__(scene=scene)

    def static_svg(self) -> str:
        """The run halfway and at its end, side by side if both fit."""
        history, layout = self._history, self._layout
        moments = sorted({history.steps // 2, history.steps} - {0}) if history.messages else []
        columns = len(moments) if layout.width < 500 else 1
        scale = min(0.84, STATIC_WIDTH / max(1, columns) / layout.width)
        width, height = layout.width * scale, HEIGHT * scale + 24
        marks: list[Mark] = []
        for index, step in enumerate(moments):
            middle = (index % columns + 0.5) * width
            top = index // columns * height
            at_step = [*layout.background(), *layout.state(history, step)]
            readable = tuple(  # text keeps its size
                replace(mark, size=mark.size / scale) if isinstance(mark, Text) else mark
                for mark in at_step
            )
            marks.append(Group(x=middle - WIDTH / 2 * scale, y=top, scale=scale, marks=readable))
            label = f"after step {step} of {history.steps}"
            marks.append(Text(x=middle, y=top + height - 10, text=label, anchor="middle"))
        return to_svg(
            marks,
            max(520.0, columns * width),
            len(moments) // max(1, columns) * height if moments else 0,
            title="Messages between ranks",
            subtitle=self.summary(),
            footer=" ".join((*self.scene["notes"], layout.key if moments else "")),
        )

    def summary(self) -> str:
        history = self._history
        if not history.messages:
            return "no sends recorded"
        total = sum(message.bytes for message in history.messages)
        return (
            f"{len(history.messages)} messages, {format_bytes(total)}, in {history.steps} steps "
            f"between {history.world_size} ranks"
        )


def ring_player(run: Run) -> RingPlayer:
    """Replay what the ranks of ``run`` sent each other with send, isend, recv and irecv.

    A chunk is identified by the part of its buffer that was sent (``Call.offset``). Colors show
    which ranks have contributed to a chunk: a receive directly into a chunk replaces its contents,
    one into another tensor is assumed to be added to it. If whole tensors or copies were sent,
    only the bytes of messages are shown.
    """
    history = read_messages(run.calls, run.world_size)
    if not history.messages:
        recorded = "only collectives" if run.calls else "no calls"
        notes: tuple[str, ...] = (
            f"This run recorded {recorded}: the player draws runs that use send and recv "
            "(or isend and irecv) between ranks.",
        )
    else:
        lost = sum(message.end_s is None for message in history.messages)
        note = f"{lost} of {len(history.messages)} messages never arrived." if lost else ""
        notes = tuple(each for each in (history.why_no_chunks, note) if each)
    return RingPlayer(history, notes)


def _for_browser(message: Transfer) -> dict[str, Any]:
    return {
        "step": message.step,
        "from": message.sender,
        "to": message.receiver,
        "bytes": message.bytes,
        "start_s": round(message.start_s, 7),
        "end_s": None if message.end_s is None else round(message.end_s, 7),
        "chunk": message.chunk,
        "target_chunk": message.target_chunk,
        "carried": f"{message.carried:x}",
        "held": f"{message.held_after:x}",
    }
