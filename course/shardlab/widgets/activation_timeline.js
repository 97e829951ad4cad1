// The activation timeline: the shapes come from activation_timeline.py; this file selects an operator
// and a tensor in the stack.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right, panels } = scene;
  let selected = null; // { panel, operator, place }: place counts from the bottom of the stack, or null
  const picture = keptPicture(scene.width, (context, theme) =>
    paint(context, [...scene.background, ...scene.ribbons, ...scene.overlay], theme));

  const { root, refresh, mark } = frame({
    name: "activation-timeline", title: "Activations of a step, tensor by tensor", scene, keys, signal,
    label:
      "Activation timeline. Left and right move from operator to operator, up and down from tensor to " +
      "tensor in the stack, P goes to the peak, Page Up and Page Down move from run to run.",
    hint: "Hover over a tensor, or use the arrow keys, for its bytes and lifetime. P goes to the peak.",
    headings: () => ["run", "tensor", "kind", "bytes", "created by operator", "freed before"],
    rows: () => panels.flatMap(({ name, lives }) =>
      lives.toSorted((a, b) => a[2] - b[2]).map(([tensor, bytes, created, freed, kind]) =>
        [name, tensor, kind, bytes.toLocaleString("en-US"), created, freed])),
    draw: (context, theme) => {
      const drawn = picture(context, theme);
      if (selected) drawActivation(context, theme, scene, selected);
      return drawn;
    },
    point: (at) => select(at && pointAt(at)),
  });
  root.dataset.runs = panels.length;
  for (const name of ["peak", "kept"]) {
    root.dataset[`${name}Bytes`] = panels.map((panel) => panel[`${name}_bytes`]).join(" ");
  }
  root.dataset.operators = panels.map(({ operators }) => operators).join(" ");
  const peaks = panels.map(({ name, peak_bytes, kept_bytes }) =>
    `${name && `${name}: `}peak ${formatBytes(peak_bytes)}, ${formatBytes(kept_bytes)} kept by forward`);
  refresh(`Activation timeline. ${peaks.join("; ")}.`);

  function select(next) {
    selected = next;
    if (selected) mark(...describeActivation(panels[selected.panel], selected));
    else mark("");
  }

  function pointAt({ x, y }) {
    const panel = panels.findIndex(({ top, bottom }) => y >= top && y <= bottom);
    if (panel < 0 || x < left || x >= right) return null;
    const operator = Math.floor(((x - left) / (right - left)) * scene.operators);
    if (operator >= panels[panel].operators) return null;
    const { top, bottom } = panels[panel];
    const bytes = ((bottom - y) / (bottom - top)) * scene.max_bytes;
    const place = stackAt(panels[panel], operator).findIndex(
      ({ life, below }) => bytes >= below && bytes < below + life[1],
    );
    return { panel, operator, place: place < 0 ? null : place };
  }

  // ---- keys ----

  /** Moves to another operator, keeping the tensor if it is still live. */
  function goTo(panel, at) {
    const operator = clamp(at, 0, panels[panel].operators - 1);
    let place = null;
    if (selected && selected.place !== null && selected.panel === panel) {
      const { life } = stackAt(panels[panel], selected.operator)[selected.place];
      const found = stackAt(panels[panel], operator).findIndex((each) => each.life === life);
      place = found < 0 ? null : found;
    }
    select({ panel, operator, place });
  }

  function moveInStack({ panel, operator, place }, by) {
    const top = stackAt(panels[panel], operator).length - 1;
    const next = place === null ? (by > 0 ? 0 : top) : clamp(place + by, 0, top);
    select({ panel, operator, place: top < 0 ? null : next });
  }

  function keys() {
    const from = selected ?? { panel: 0, operator: 0, place: null };
    const { panel, operator } = from;
    const toPanel = (by) => goTo(clamp(panel + by, 0, panels.length - 1), operator);
    return {
      ArrowLeft: () => goTo(panel, operator - 1),
      ArrowRight: () => goTo(panel, selected ? operator + 1 : 0),
      ArrowUp: () => moveInStack(from, 1),
      ArrowDown: () => moveInStack(from, -1),
      PageUp: () => toPanel(-1),
      PageDown: () => toPanel(selected ? 1 : 0),
      Home: () => goTo(panel, 0),
      End: () => goTo(panel, panels[panel].operators - 1),
      Escape: () => select(null),
      p: () => goTo(panel, panels[panel].peak_at),
    };
  }

  return root;
}

/** The tensors live after this operator, from the bottom up: [{ life, below }]. */
function stackAt({ lives }, operator) {
  const stack = [];
  let below = 0;
  for (const life of lives) {
    const [, bytes, created, freed] = life;
    if (operator < created || operator >= freed) continue;
    stack.push({ life, below });
    below += bytes;
  }
  return stack;
}

/** [the selection in words, its values] */
function describeActivation(panel, { operator, place }) {
  const stack = stackAt(panel, operator);
  const bytes = stack.reduce((sum, { life }) => sum + life[1], 0);
  const phase = panel.phases.find(([, start, end]) => start <= operator && operator < end);
  const where = [panel.name, `operator ${operator}`, phase && `in ${phase[0]}`].filter(Boolean).join(", ");
  const text = `${where}: ${formatBytes(bytes)} in ${plural(stack.length, "tensor")}`;
  const values = { selectedRun: panel.name, selectedOperator: operator, selectedBytes: bytes };
  if (place === null || !stack[place]) return [text, values];
  const [name, size, created, freed, kind] = stack[place].life;
  return [
    `${text} · ${name}, ${exactBytes(size)}, ${kind}, created by operator ${created}, freed before ${freed}`,
    { ...values, selectedTensor: name, selectedKind: kind },
  ];
}

/** The selected operator, and the whole lifetime of a tensor, which moves down when one below it is freed. */
function drawActivation(context, theme, { left, right, operators, max_bytes, panels }, selected) {
  const panel = panels[selected.panel];
  const toX = (operator) => left + (operator / operators) * (right - left);
  const toY = (bytes) => panel.bottom - (bytes / max_bytes) * (panel.bottom - panel.top);
  const life = stackAt(panel, selected.operator)[selected.place]?.life;
  if (life) {
    const [, bytes, created, freed] = life;
    const edges = Array.from({ length: freed - created }, (_, index) => {
      const { below } = stackAt(panel, created + index).find((each) => each.life === life);
      return [toX(created + index), toX(created + index + 1), below];
    });
    context.beginPath();
    for (const [from, to, below] of edges) {
      context.lineTo(from, toY(below));
      context.lineTo(to, toY(below));
    }
    for (const [from, to, below] of edges.toReversed()) {
      context.lineTo(to, toY(below + bytes));
      context.lineTo(from, toY(below + bytes));
    }
    context.closePath();
    strokeVisibly(context, theme, 2);
  }
  paintMoment(context, theme, toX(selected.operator + 0.5), panel);
}

export default widget(build);
