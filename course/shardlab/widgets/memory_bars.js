// Memory bars: sliders, selection, and the picture of memory_rows.py with the formula of
// memory_formula.js. Nothing here asks the kernel.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right, row, costs } = scene;
  const stages = [0, 1, 2, 3];
  let settings = { ...model.get("settings") };
  let rows = []; // { key, label, parts, y, height, chosen }
  let axisBytes = 1; // at the end of the axis
  let selected = null; // { row, part }: indices; part -1 is the whole row

  const { root, head, plot, detail } = card({
    name: "memory-bars", title: "Model states on each rank",
    label:
      "Memory bars. Up and down move from bar to bar, left and right through its categories, Enter selects a stage.",
    hint: "Hover over a bar for its bytes, click a stage to select it.",
  });
  root.dataset.measuredRanks = scene.measured.length;
  if (scene.capacity_bytes !== null) root.dataset.capacityBytes = scene.capacity_bytes;
  const formatSize = (bytes) => (settings.unit === "GB" ? formatSi(bytes, "B") : formatBytes(bytes));
  const exactly = (bytes) => {
    const whole = `${Math.round(bytes).toLocaleString("en-US")} bytes`;
    return bytes < 1000 ? whole : `${formatSize(bytes)} (${whole})`;
  };

  // ---- settings ----

  const exponent = (value) => Math.log10(value);
  const given = settings.parameters; // may lie between the slider's steps; kept exactly
  const lowest = Math.min(5, Math.floor(exponent(given)));
  const highest = Math.max(12.3, Math.ceil(exponent(given)));
  const parametersAt = (x) =>
    Math.abs(x - exponent(given)) <= 0.0051 ? given : Number((10 ** x).toPrecision(3));
  const change = (changes) => {
    show({ ...settings, ...changes });
    setTraits(model, { settings });
  };
  const controls = {
    parameters: slider({
      label: "Ψ parameters", min: lowest, max: highest, step: 0.01, value: exponent(given), signal,
      format: (x) => formatCount(parametersAt(x)),
      onInput: (x) => change({ parameters: parametersAt(x) }),
    }),
    worldSize: listSlider({
      label: "N ranks", values: scene.world_sizes, value: settings.worldSize, signal,
      onInput: (worldSize) => change({ worldSize }),
    }),
    stage: choice({
      label: "ZeRO stage", options: stages.map((s) => [s, String(s)]), value: settings.stage, signal,
      onInput: (stage) => change({ stage: Number(stage) }),
    }),
    precision: choice({
      label: "precision", options: scene.precisions.map((name) => [name, name]),
      value: settings.precision, signal, onInput: (precision) => change({ precision }),
    }),
    optimizer: choice({
      label: "optimizer",
      options: [["sgd", "SGD"], ["momentum", "momentum"], ["adam", "Adam"], ["adam8bit", "8-bit Adam"]],
      value: settings.optimizer, signal, onInput: (optimizer) => change({ optimizer }),
    }),
    offload: choice({
      label: "offload",
      options: [["none", "none"], ["optimizer", "optimizer"], ["parameters", "params"], ["both", "both"]],
      value: settings.offload, signal, onInput: (offload) => change({ offload }),
    }),
    unit: choice({
      label: "unit", options: [["GB", "GB (10⁹)"], ["GiB", "GiB (2³⁰)"]],
      value: settings.unit, signal, onInput: (unit) => change({ unit }),
    }),
  };
  const panel = make("div", { class: "shardlab-settings" });
  for (const control of Object.values(controls)) panel.append(control.node);
  controls.optimizer.node.classList.add("shardlab-wide");

  const verdict = make("p", { class: "shardlab-verdict", role: "status" });
  const stage = createStage({ root, plot, width: scene.width, height: scene.height, draw, signal });
  const small = make("p", { class: "shardlab-small" }, scene.footer);
  const headings = () => ["row", "category", settings.unit === "GB" ? "GB (10⁹)" : "GiB (2³⁰)", "bytes"];
  const table = tableDetails(headings, tableRows, signal);
  root.append(head, stickyControls(panel), verdict, plot, detail, small, table.node);

  // ---- contents of the rows ----

  function compute() {
    const predicted = stages.map((s) => modelStates({ ...settings, stage: s }, costs));
    const parts = (bytes) => CATEGORIES.map((name) => [name, bytes[name]]);
    rows = stages.map((s) => ({
      key: `stage ${s}`, label: `stage ${s}`, stage: s, parts: parts(predicted[s].device),
      y: scene.stages_y + s * row, height: row, chosen: s === settings.stage,
      solid: s === settings.stage || s === opposite(settings.stage),
    }));
    scene.measured.forEach((measured, index) => {
      rows.push({
        key: scene.measured_labels[index], label: scene.measured_labels[index], parts: measured,
        y: scene.measured_y + index * scene.measured_row, height: scene.measured_row, chosen: true,
        solid: true, measured: true,
      });
    });
    rows.push({
      key: "host", label: "host", parts: parts(predicted[settings.stage].host), y: scene.host_y,
      height: row, chosen: true, solid: true,
    });
    for (const each of rows) each.bytes = each.parts.reduce((sum, [, bytes]) => sum + bytes, 0);
    axisBytes = 1.04 * Math.max(...rows.map((each) => each.bytes), scene.capacity_bytes ?? 0);
  }

  function show(next) {
    settings = next;
    for (const name of ["worldSize", "stage", "precision", "optimizer", "offload", "unit"]) {
      controls[name].set(settings[name]);
    }
    if (parametersAt(controls.parameters.value) !== settings.parameters) {
      controls.parameters.set(exponent(settings.parameters));
    }
    compute();
    const device = rows[settings.stage].bytes;
    root.dataset.parameters = settings.parameters;
    for (const name of ["worldSize", "stage", "precision", "optimizer", "offload", "unit"]) {
      root.dataset[name] = settings[name];
    }
    root.dataset.deviceBytes = device;
    root.dataset.hostBytes = rows.at(-1).bytes;
    showVerdict(device);
    stage.canvas.setAttribute("aria-label", summary());
    table.refresh();
    if (selected && !rows[selected.row]) selected = null;
    point(selected);
  }

  /** Whether the stage fits, in words and in color. */
  function showVerdict(device) {
    const capacity = scene.capacity_bytes;
    const n = settings.worldSize;
    const other = opposite(settings.stage);
    const usage =
      `Stage ${settings.stage}: ${formatSize(device)} on ${n === 1 ? "the device" : `each of ${n} devices`}, ` +
      `stage ${other}: ${formatSize(rows[other].bytes)}`;
    const limits = offloadLimits();
    if (capacity === null) {
      verdict.textContent = `${usage}.${limits}`;
      root.dataset.fits = "";
      return;
    }
    const fits = device <= capacity;
    root.dataset.fits = fits ? "yes" : "no";
    const largest = largestModel(capacity, settings, costs);
    const limit = Number.isFinite(largest)
      ? ` Largest model that fits: ${formatCount(largest)} parameters.`
      : " With everything on the host, the device sets no limit.";
    root.dataset.largestModel = largest;
    const word = make("strong", {}, fits ? "✓ Fits. " : "✗ Does not fit. ");
    const room = fits
      ? `${formatSize(capacity - device)} of ${formatSize(capacity)} left.`
      : `Exceeds ${formatSize(capacity)} by ${formatSize(device - capacity)}.`;
    verdict.replaceChildren(word, `${usage}. ${room}${limit}${limits}`);
  }

  /** A note if this stage cannot offload what the settings request. */
  function offloadLimits() {
    const { stage: at, offload } = settings;
    if (offload === "none") return "";
    if (at === 0) return " Stage 0 shards nothing, so nothing is offloaded.";
    if (at < 3 && offload !== "optimizer") return " Only stage 3 offloads parameters.";
    return "";
  }

  function summary() {
    const bars = rows.map((each) => `${each.label} ${formatSize(each.bytes)}`).slice(0, 24).join(", ");
    const { parameters, worldSize, precision, optimizer, offload } = settings;
    return `Memory bars: ${formatCount(parameters)} parameters, ${worldSize} ranks, ${precision}, ${optimizer}, offload ${offload}. ${bars}. ${verdict.textContent}`;
  }

  function tableRows() {
    const scale = settings.unit === "GB" ? 1e9 : 2 ** 30;
    return rows.flatMap((each) =>
      each.parts.map(([name, bytes]) => [
        each.label, name, (bytes / scale).toPrecision(4), Math.round(bytes).toLocaleString("en-US"),
      ]),
    );
  }

  /** The formula of a predicted part: 12 bytes × Ψ/64. */
  function formulaOf({ stage: s, label }, category) {
    const [parameter, gradient, master] = costs.precision[settings.precision];
    const each = { parameters: parameter, gradients: gradient, optimizer: master + costs.optimizer[settings.optimizer] };
    const shardedFrom = { parameters: 3, gradients: 2, optimizer: 1 };
    const bytes = Number(each[category].toFixed(3));
    const sharded = (s ?? settings.stage) >= shardedFrom[category] || label === "host";
    return `${bytes} bytes × ${sharded && settings.worldSize > 1 ? `Ψ/${settings.worldSize}` : "Ψ"}`;
  }

  function describe({ row: index, part }) {
    const each = rows[index];
    const where = each.measured ? `measured, ${each.label}` : each.label === "host" ? "host, per rank" : `${each.label}, each rank's device`;
    if (part < 0) {
      const all = each.parts.filter(([, bytes]) => bytes > 0);
      return `${where}: ${exactly(each.bytes)}${all.length ? ` = ${all.map(([name, bytes]) => `${name} ${formatSize(bytes)}`).join(" + ")}` : ""}`;
    }
    const [category, bytes] = each.parts[part];
    const formula = each.measured || !bytes ? "" : `, ${formulaOf(each, category)}`;
    return `${where}: ${category} ${exactly(bytes)}${formula}`;
  }

  function point(at) {
    selected = at;
    if (at) {
      const [category, bytes] = at.part < 0 ? ["", rows[at.row].bytes] : rows[at.row].parts[at.part];
      detail.textContent = describe(at);
      root.dataset.selected = category ? `${rows[at.row].key}:${category}` : rows[at.row].key;
      root.dataset.selectedBytes = bytes;
    } else {
      detail.textContent = "";
      delete root.dataset.selected;
      delete root.dataset.selectedBytes;
    }
    stage.redraw();
  }

  // ---- drawing: the same as memory_rows.py ----

  const perByte = () => (right - left) / axisBytes;
  const textWidth = (text, size) => 0.58 * size * text.length;
  const text = (x, y, words, look = {}) => ({ kind: "text", x, y, text: words, size: 11, ...look });

  function thickness(each) {
    const thick = each.height - (each.height >= 20 ? 8 : each.height >= 9 ? 3 : 1);
    return { thick, top: each.y + (each.height - thick) / 2 };
  }

  /** [{ x, width, category, bytes }] of a row, cut off at the end of the axis. */
  function boxes(each) {
    let x = left;
    return each.parts.map(([category, bytes]) => {
      const box = { x, width: Math.max(Math.min(bytes * perByte(), right - x), 0), category, bytes };
      x += box.width;
      return box;
    });
  }

  function barMarks(each) {
    const { thick, top } = thickness(each);
    const marks = [];
    const baseline = each.y + each.height / 2 + 4;
    const named = each.height >= 10;
    if (named) {
      const bold = each.stage !== undefined && each.chosen;
      marks.push(text(left - 10, baseline, `${bold ? "▶ " : ""}${each.label}`, {
        size: 12, anchor: "end", weight: bold ? 700 : 400,
      }));
    }
    let end = left;
    for (const { x, width, category, bytes } of boxes(each)) {
      if (width <= 0) continue;
      const [color, ink] = scene.colors[category];
      marks.push({ kind: "rect", x, y: top, width, height: thick, fill: color, opacity: each.solid ? 1 : 0.45 });
      const words = formatSize(bytes);
      if (thick >= 14 && textWidth(words, 11) + 8 <= width) {
        marks.push(text(x + width / 2, top + thick / 2 + 4, words, {
          anchor: "middle", fill: each.solid ? ink : "text",
        }));
      }
      end = x + width;
    }
    const capacity = scene.capacity_bytes;
    const isHost = each.label === "host";
    if (each.chosen && capacity !== null && !isHost && end > left + capacity * perByte()) {
      const edge = left + capacity * perByte();
      marks.push({
        kind: "rect", x: edge, y: top - 1, width: end - edge, height: thick + 2,
        stroke: scene.error_color, stroke_width: 2.5,
      });
    }
    if (named) {
      const fits = each.bytes <= capacity;
      let words = formatSize(each.bytes);
      if (isHost && !each.bytes) words = "nothing";
      else if (!isHost && capacity !== null) words += fits ? " ✓ fits" : " ✗ does not fit";
      marks.push(text(right + 12, baseline, words));
    }
    return marks;
  }

  function marksNow() {
    const marks = [];
    const heading = (y, words) => marks.push(text(left, y - 8, words, { size: 12, fill: "muted" }));
    for (const tick of roundTicks(axisBytes, 5, settings.unit === "GB")) {
      const x = left + tick * perByte();
      marks.push({ kind: "path", d: `M${x} ${scene.stages_y - 4}L${x} ${scene.axis_y}`, stroke: "rule", opacity: 0.5 });
      marks.push(text(x, scene.axis_y + 14, tick ? formatSize(tick) : "0", { anchor: "middle", fill: "muted" }));
    }
    const n = settings.worldSize;
    heading(scene.stages_y - 18, `predicted on ${n === 1 ? "the device" : `each of ${n} devices`}, by stage`);
    if (scene.measured.length) heading(scene.measured_y, "measured, by rank");
    heading(scene.host_y, "on the host, per rank");
    for (const each of rows) marks.push(...barMarks(each));
    if (scene.measured.length) {
      const x = left + Math.min(rows[settings.stage].bytes * perByte(), right - left);
      const height = scene.measured.length * scene.measured_row + 4;
      marks.push({ kind: "rect", x: x - 1.5, y: scene.measured_y - 2, width: 3, height, fill: scene.predicted_color });
    }
    if (scene.capacity_bytes !== null) {
      const x = left + scene.capacity_bytes * perByte();
      marks.push({
        kind: "path", d: `M${x} ${scene.stages_y - 6}L${x} ${scene.host_y - 26}`, stroke: "text",
        stroke_width: 2, dash: "6 4",
      });
      const back = x > left + 160;
      marks.push(text(x + (back ? -6 : 6), scene.stages_y - 8, `capacity ${formatSize(scene.capacity_bytes)}`, {
        anchor: back ? "end" : "start", weight: 600,
      }));
    }
    return [...marks, ...scene.legend];
  }

  function draw(context, theme) {
    const drawn = paint(context, marksNow(), theme);
    if (!selected) return drawn;
    const each = rows[selected.row];
    const { thick, top } = thickness(each);
    const all = boxes(each);
    const box = selected.part < 0
      ? { x: left, width: Math.max(all.at(-1).x + all.at(-1).width - left, 2) }
      : all[selected.part];
    paintFocus(context, theme, box.x, top, Math.max(box.width, 2), thick);
    return drawn + 1;
  }

  // ---- mouse and keyboard ----

  function partAt({ x, y }) {
    const index = rows.findIndex((each) => y >= each.y && y < each.y + each.height);
    if (index < 0) return null;
    const part = boxes(rows[index]).findIndex((box) => x >= box.x && x < box.x + box.width);
    return { row: index, part };
  }

  function chooseStage(at) {
    const chosen = at && rows[at.row].stage;
    if (chosen === undefined || chosen === null) return;
    change({ stage: chosen });
  }

  function keys() {
    const at = selected ?? { row: -1, part: -1 };
    const to = (index, part) => {
      const next = clamp(index, 0, rows.length - 1);
      point({ row: next, part: clamp(part, -1, rows[next].parts.length - 1) });
    };
    return {
      ArrowUp: () => to(at.row - 1, at.part),
      ArrowDown: () => to(at.row + 1, at.part),
      ArrowLeft: () => to(at.row, at.part - 1),
      ArrowRight: () => to(at.row, at.part + 1),
      Home: () => to(0, -1),
      End: () => to(rows.length - 1, -1),
      Enter: () => chooseStage(selected),
      " ": () => chooseStage(selected),
      Escape: () => point(null),
    };
  }

  handlePointer(plot, stage, (at) => point(at && partAt(at)), signal);
  handleKeys(plot, keys, signal);
  plot.addEventListener("click", (event) => chooseStage(partAt(stage.at(event))), { signal });
  onTraits(model, ["settings"], () => show({ ...model.get("settings") }), signal);

  show(settings);
  return root;
}

/** The stage with which another one is compared. */
const opposite = (stage) => (stage === 0 ? 3 : 0);

/** The same as ticks() in memory_rows.py. */
function roundTicks(end, count, decimal) {
  const rough = end / count;
  const step = decimal ? roundStep(rough) : 2 ** Math.ceil(Math.log2(rough));
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

export default widget(build);
