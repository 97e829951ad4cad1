// The activation timeline: the shapes come from activation_timeline.py; this file selects an operator
// and a tensor in the stack.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right, panels } = scene;
  let selected = null; // { panel, operator, place }: place counts from the bottom of the stack, or null
  let drawn = null; // the picture without the selection, kept until it changes

  const { root, head, plot, detail } = card({
    name: "activation-timeline", title: "Activations of a step, tensor by tensor",
    label:
      "Activation timeline. Left and right move from operator to operator, up and down from tensor to " +
      "tensor in the stack, P goes to the peak, Page Up and Page Down move from run to run.",
    hint: "Hover over a tensor, or use the arrow keys, for its bytes and lifetime. P goes to the peak.",
  });
  root.dataset.runs = panels.length;
  for (const name of ["peak", "kept"]) {
    root.dataset[`${name}Bytes`] = panels.map((panel) => panel[`${name}_bytes`]).join(" ");
  }
  root.dataset.operators = panels.map(({ operators }) => operators).join(" ");
  const peaks = panels.map(
    ({ name, peak_bytes, kept_bytes }) =>
      `${name && `${name}: `}peak ${formatBytes(peak_bytes)}, ${formatBytes(kept_bytes)} kept by forward`,
  );
  const stage = createStage({
    root, plot, width: scene.width, height: scene.height, draw, signal,
    label: `Activation timeline. ${peaks.join("; ")}.`,
  });
  const headings = () => ["run", "tensor", "kind", "bytes", "created by operator", "freed before"];
  root.append(head, plot, detail, tableDetails(headings, rows, signal).node);

  function rows() {
    return panels.flatMap(({ name, lives }) =>
      [...lives]
        .sort((a, b) => a[2] - b[2])
        .map(([tensor, bytes, created, freed, kind]) => [
          name, tensor, kind, bytes.toLocaleString("en-US"), created, freed,
        ]),
    );
  }

  // ---- the selection ----

  const toX = (operator) => left + (operator / scene.operators) * (right - left);
  const toY = (panel, bytes) => panel.bottom - (bytes / scene.max_bytes) * (panel.bottom - panel.top);

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

  function select(next) {
    selected = next;
    for (const name of ["selectedRun", "selectedOperator", "selectedBytes", "selectedTensor", "selectedKind"]) {
      delete root.dataset[name];
    }
    detail.textContent = "";
    if (selected) describe();
    stage.redraw();
  }

  function describe() {
    const panel = panels[selected.panel];
    const stack = stackAt(panel, selected.operator);
    const bytes = stack.reduce((sum, { life }) => sum + life[1], 0);
    const phase = panel.phases.find(([, start, end]) => start <= selected.operator && selected.operator < end);
    const where = [panel.name, `operator ${selected.operator}`, phase && `in ${phase[0]}`];
    let text = `${where.filter(Boolean).join(", ")}: ${formatBytes(bytes)} in ${plural(stack.length, "tensor")}`;
    Object.assign(root.dataset, {
      selectedRun: panel.name, selectedOperator: selected.operator, selectedBytes: bytes,
    });
    if (selected.place !== null && stack[selected.place]) {
      const [name, size, created, freed, kind] = stack[selected.place].life;
      text += ` · ${name}, ${exactBytes(size)}, ${kind}, created by operator ${created}, freed before ${freed}`;
      Object.assign(root.dataset, { selectedTensor: name, selectedKind: kind });
    }
    detail.textContent = text;
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

  function moveInStack(by) {
    const { panel, operator, place } = selected ?? start();
    const top = stackAt(panels[panel], operator).length - 1;
    const next = place === null ? (by > 0 ? 0 : top) : clamp(place + by, 0, top);
    select({ panel, operator, place: top < 0 ? null : next });
  }

  const start = () => ({ panel: 0, operator: 0, place: null });

  function keys() {
    const { panel, operator } = selected ?? start();
    const toPanel = (by) => goTo(clamp(panel + by, 0, panels.length - 1), operator);
    return {
      ArrowLeft: () => goTo(panel, operator - 1),
      ArrowRight: () => goTo(panel, selected ? operator + 1 : 0),
      ArrowUp: () => moveInStack(1),
      ArrowDown: () => moveInStack(-1),
      PageUp: () => toPanel(-1),
      PageDown: () => toPanel(selected ? 1 : 0),
      Home: () => goTo(panel, 0),
      End: () => goTo(panel, panels[panel].operators - 1),
      Escape: () => select(null),
      p: () => goTo(panel, panels[panel].peak_at),
    };
  }

  handlePointer(plot, stage, (at) => select(at && pointAt(at)), signal);
  handleKeys(plot, keys, signal);

  // ---- drawing ----

  function picture({ canvas }, theme) {
    const image = new OffscreenCanvas(canvas.width, canvas.height);
    const context = image.getContext("2d");
    const scale = canvas.width / scene.width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const marks = paint(context, [...scene.background, ...scene.ribbons, ...scene.overlay], theme);
    return { image, marks };
  }

  function draw(context, theme) {
    const key = JSON.stringify([context.canvas.width, context.canvas.height, theme]);
    if (drawn?.key !== key) drawn = { key, ...picture(context, theme) };
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(drawn.image, 0, 0);
    context.restore();
    if (selected) drawSelection(context, theme);
    return drawn.marks;
  }

  function drawSelection(context, theme) {
    const panel = panels[selected.panel];
    const x = toX(selected.operator + 0.5);
    const stack = stackAt(panel, selected.operator);
    if (selected.place !== null && stack[selected.place]) outline(context, theme, panel, stack[selected.place].life);
    for (const [color, width] of [[theme.surface, 4], [theme.text, 1.5]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(x, panel.top);
      context.lineTo(x, panel.bottom);
      context.stroke();
    }
  }

  /** The whole lifetime of a tensor, which moves down when one below it is freed. */
  function outline(context, theme, panel, life) {
    const [, bytes, created, freed] = life;
    const below = [];
    for (let operator = created; operator < freed; operator += 1) {
      below.push(stackAt(panel, operator).find((each) => each.life === life).below);
    }
    context.beginPath();
    below.forEach((edge, index) => {
      const y = toY(panel, edge);
      if (index === 0) context.moveTo(toX(created), y);
      else context.lineTo(toX(created + index), y);
      context.lineTo(toX(created + index + 1), y);
    });
    for (let index = below.length - 1; index >= 0; index -= 1) {
      const y = toY(panel, below[index] + bytes);
      context.lineTo(toX(created + index + 1), y);
      context.lineTo(toX(created + index), y);
    }
    context.closePath();
    for (const [color, width] of [[theme.surface, 4], [theme.text, 2]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.stroke();
    }
  }

  return root;
}

export default widget(build);
