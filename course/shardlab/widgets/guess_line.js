// A guess drawn as a line over axes: the same functions as in guess_line.py.

const LINE = { height: 232, left: 64, right: 612, top: 30, bottom: 184 };

function circle(x, y, fill) {
  const at = `M${(x - 6).toFixed(2)} ${y.toFixed(2)}`;
  return { kind: "path", d: `${at}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0Z`, fill };
}

function diamond(x, y, fill) {
  const corners = [[x, y - 7], [x + 7, y], [x, y + 7], [x - 7, y]];
  const d = `M${corners.map((corner) => corner.map((each) => each.toFixed(2)).join(" ")).join("L")}Z`;
  return { kind: "path", d, fill, stroke: "surface" };
}

const lineX = (index, count) => LINE.left + ((LINE.right - LINE.left) * (index + 0.5)) / count;
const lineY = (amount, top) => LINE.bottom - ((LINE.bottom - LINE.top) * amount) / top;

function axesMarks(labels, axis, top, unit) {
  const { left, right, bottom } = LINE;
  const marks = [];
  for (const amount of [0, top / 2, top]) {
    const y = lineY(amount, top);
    marks.push({ kind: "path", d: `M${left} ${y}L${right} ${y}`, stroke: "rule" });
    const text = amount ? formatAmount(amount, unit) : "0";
    marks.push({ kind: "text", x: left - 10, y: y + 4, text, anchor: "end", fill: "muted" });
  }
  for (const [i, text] of labels.entries()) {
    marks.push({ kind: "text", x: lineX(i, labels.length), y: bottom + 20, text, anchor: "middle" });
  }
  const middle = (left + right) / 2;
  marks.push({ kind: "text", x: middle, y: bottom + 40, text: axis, anchor: "middle", fill: "muted" });
  return marks;
}

/** A line through the values; a guess that is not complete has null for some of them. */
function lineMarks(values, top, color, isGuess) {
  const places = values.flatMap((v, i) => (v === null ? [] : [[lineX(i, values.length), lineY(v, top)]]));
  if (!places.length) return [];
  const d = `M${places.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}`;
  const shape = isGuess ? diamond : circle;
  const dash = isGuess ? { dash: "6 4" } : {};
  return [
    { kind: "path", d, stroke: color, stroke_width: 2, ...dash },
    ...places.map(([x, y]) => shape(x, y, color)),
  ];
}
