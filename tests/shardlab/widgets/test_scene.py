from xml.etree import ElementTree

from shardlab.widgets.scene import Group, Path, Rect, Text, as_json, to_svg, wrap

HOSTILE_TEXT = '<script>alert("1")</script> & \x00 ]]>'


def test_data_is_never_interpreted_as_markup_in_svg() -> None:
    svg = to_svg(
        [Text(x=1, y=2, text=HOSTILE_TEXT)],
        100,
        50,
        title=HOSTILE_TEXT,
        subtitle=HOSTILE_TEXT,
        footer=HOSTILE_TEXT,
    )
    assert "<script" not in svg
    texts = [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.text]
    assert '<script>alert("1")</script> &   ]]>' in texts


def test_a_mark_with_two_themed_colors_is_well_formed() -> None:
    box = Rect(x=0, y=0, width=5, height=5, fill="surface", stroke="rule", hatch=False)
    ElementTree.fromstring(to_svg([box], 10, 10, title="a box"))


def test_every_kind_of_mark_is_drawn() -> None:
    marks = [
        Rect(x=0, y=0, width=5, height=5, fill="#D55E00", hatch=True),
        Path(d="M0 0L5 5", stroke="rule", dash="2 4"),
        Group(x=3, y=4, scale=0.5, marks=(Text(x=0, y=0, text="inside"),)),
    ]
    svg = to_svg(marks, 10, 10, title="marks")
    assert "url(#shardlab-hatch-D55E00)" in svg
    assert 'id="shardlab-hatch-D55E00"' in svg
    assert 'transform="translate(3 4) scale(0.5)"' in svg


def test_marks_are_sent_without_their_defaults() -> None:
    assert as_json([Rect(x=0, y=1, width=2.0, height=1 / 3, fill="text")]) == [
        {"kind": "rect", "fill": "text", "x": 0, "y": 1, "width": 2.0, "height": 0.33}
    ]


def test_wrapping_keeps_every_word() -> None:
    text = "a deadlock takes as many lines as its text needs"
    lines = wrap(text, 14, 120)
    assert len(lines) > 1
    assert " ".join(lines) == text
