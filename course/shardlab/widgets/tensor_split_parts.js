// The parts of the matrices that ranks hold: where they are, and in words.

const layoutOf = (cut, { step }, name) => cut.steps[step].layouts[name];
const splitOp = ({ op, matrix }) => `${op.replace("_", "-")} of ${matrix}`;

/** The parts on each rank or on all, from left to right, forward first: [{ name, rank }]. */
function splitParts(cut, settings) {
  const { layouts } = cut.steps[settings.step];
  const names = Object.keys(cut.boxes).filter((name) => layouts[name]);
  names.sort((a, b) => (a.length - b.length) || cut.boxes[a][0] - cut.boxes[b][0]);
  return names.flatMap((name) =>
    layouts[name] === "replicated"
      ? [{ name, rank: null }]
      : Array.from({ length: settings.ranks }, (_, rank) => ({ name, rank })),
  );
}

function boxOfPart(cut, settings, { name, rank }) {
  const whole = cut.boxes[name];
  return rank === null ? whole : splitPartBox(whole, layoutOf(cut, settings, name), rank, settings.ranks);
}

function describePart(scene, cut, settings, { name, rank }) {
  const how = layoutOf(cut, settings, name);
  const shape = splitShape(scene, name, settings);
  const bytes = shape[0] * shape[1] * settings.element_bytes;
  if (rank === null) return `${name}: all of it on every rank, ${exactBytes(bytes)} each`;
  if (how === "partial") return `rank ${rank}: a partial sum of all of ${name}, ${exactBytes(bytes)}`;
  const whole = shape[how === "rows" ? 0 : 1];
  const [from, to] = [rank, rank + 1].map((each) => Math.round((whole * each) / settings.ranks));
  const size = exactBytes((bytes / whole) * (to - from));
  return `rank ${rank}: ${how} ${from} to ${to} of ${name}'s ${whole}, ${size}`;
}

function splitRows(scene, cut, settings) {
  return cut.steps.map((step, index) => [
    index + 1, step.backward ? "backward" : "forward", step.text, step.op ? splitOp(step) : "–",
    exactBytes(splitStepBytes(scene, step, settings)),
  ]);
}
