"""The ring player: a recorded run as an animation of chunks that move between ranks.

Up to eight ranks are cards: one row for each chunk, one column for each rank whose data may be
in it, filled in that rank's colour once it is. More ranks are the sectors of a wheel: one ring
for each chunk, the bluer the more ranks' data it holds, green once it holds everyone's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from shardlab.run import Run
from shardlab.widgets.circle import HEIGHT, WIDTH, layout_of
from shardlab.widgets.message_story import Story, Transfer, read_story
from shardlab.widgets.palette import rank_color
from shardlab.widgets.picture import Picture, module
from shardlab.widgets.scene import Group, Mark, Text, as_json, to_svg
from shardlab.widgets.units import format_bytes


class RingPlayer(Picture):
    """The animation of a run's messages. Made by `ring_player`."""

    _esm: ClassVar[str] = module("player.js", "ring_player.js")

    def __init__(self, story: Story, notes: tuple[str, ...]) -> None:
        self._story = story
        layout = layout_of(story)
        self._layout = layout
        scene = {
            "world_size": story.world_size,
            "width": WIDTH,
            "height": HEIGHT,
            "steps": story.steps,
            "chunks": len(story.chunks),
            "notes": list(notes),
            "colors": [rank_color(rank) for rank in range(story.world_size)],
            "marks": as_json(layout.ground()),
            "layout": layout.as_json(),
            "key": layout.key,
            "messages": [_plain(message) for message in story.messages],
        }
        super().__init__(scene=scene)

    def static_svg(self) -> str:
        """The run at its start (if there is room), half way and at its end, side by side."""
        story, layout = self._story, self._layout
        moments = sorted({0, story.steps // 2, story.steps}) if story.messages else []
        if layout.width > 500:
            moments = moments[1:]
        scale = min(0.62, 810 / max(1, len(moments)) / layout.width)
        width, height = layout.width * scale, HEIGHT * scale
        marks: list[Mark] = []
        for index, step in enumerate(moments):
            middle = (index + 0.5) * width
            still = (*layout.ground(), *layout.state(story, step))
            marks.append(Group(x=middle - WIDTH / 2 * scale, y=0, scale=scale, marks=still))
            label = "before" if step == 0 else f"after step {step} of {story.steps}"
            marks.append(Text(x=middle, y=height + 14, text=label, anchor="middle"))
        return to_svg(
            marks,
            max(520.0, len(moments) * width),
            height + 30 if moments else 0,
            title="Messages between ranks",
            subtitle=self.summary(),
            footer=" ".join((*self.scene["notes"], layout.key if moments else "")),
        )

    def summary(self) -> str:
        story = self._story
        if not story.messages:
            return "no sends recorded"
        total = sum(message.bytes for message in story.messages)
        return (
            f"{len(story.messages)} messages, {format_bytes(total)}, in {story.steps} steps "
            f"between {story.world_size} ranks"
        )


def ring_player(run: Run) -> RingPlayer:
    """Replay what the ranks of ``run`` sent each other with send, isend, recv and irecv.

    A chunk is known by the part of its buffer that was sent (``Call.offset``). Colours show whose
    data has reached a chunk: a receive straight into a chunk replaces what it held, one into
    another tensor is taken to be added to it. Where whole tensors or copies were sent, messages
    are shown by their bytes instead.
    """
    story = read_story(run.calls, run.world_size)
    if not story.messages:
        what = "only collectives" if run.calls else "no calls"
        notes: tuple[str, ...] = (
            f"This run recorded {what}: the player draws runs that use send and recv "
            "(or isend and irecv) between ranks.",
        )
    else:
        lost = sum(message.end_s is None for message in story.messages)
        told = f"{lost} of {len(story.messages)} messages never arrived." if lost else ""
        notes = tuple(note for note in (story.why_no_chunks, told) if note)
    return RingPlayer(story, notes)


def _plain(message: Transfer) -> dict[str, Any]:
    return {
        "step": message.step,
        "from": message.sender,
        "to": message.receiver,
        "bytes": message.bytes,
        "start_s": round(message.start_s, 7),
        "end_s": None if message.end_s is None else round(message.end_s, 7),
        "chunk": message.chunk,
        "lands_in": message.lands_in,
        "carried": f"{message.carried:x}",
        "held": f"{message.held_after:x}",
    }
