// The offload times: positions and names come from offload_times.py, the formula from
// offload_model.js; this file has the sliders, the drawing and the selection.

function build(model, signal) {
  const scene = model.get("scene");
  const { left, right, row, step_top: stepTop, all_top: allTop, bars_right: barsRight, names, roles } = scene;
  let settings = { ...model.get("settings") };
  let all = null; // placement: outcome
  let selected = null; // { bar } of the step, or { placement } of all

  const { root, head, plot, detail } = card({
    name: "offload-times", title: "Offload: time of a step",
    label: "Offload times. Up and down choose a placement, left and right move through its step.",
    hint: "Hover over a bar, or use the arrow keys, for its seconds and bytes.",
  });
  const sub = make("span", { class: "shardlab-sub" });
  head.append(sub);

  // ---- settings ----

  const formatter = (unit) => (value) =>
    unit === "count" ? formatCount(value)
    : unit === "count/s" ? `${formatCount(value)} parameters/s`
    : formatSi(value, unit);
  const controls = make("div", { class: "shardlab-settings" });
  const sliders = scene.sliders.map(([name, label, values, unit]) => {
    const control = listSlider({
      label, values, value: settings[name], format: formatter(unit),
      onInput: (value) => change({ [name]: value }), signal,
    });
    controls.append(control.node);
    return { name, set: control.set };
  });
  const placement = choice({
    label: "Placement",
    options: PLACEMENTS.map((name) => [name, names[name]]),
    value: settings.placement,
    onInput: (name) => change({ placement: name }),
    signal,
  });
  const overlap = choice({
    label: "Transfers",
    options: [["yes", "overlapped"], ["no", "sequential"]],
    value: settings.overlap ? "yes" : "no",
    onInput: (value) => change({ overlap: value === "yes" }),
    signal,
  });
  const delayed = choice({
    label: "Host update",
    options: [["no", "same step"], ["yes", "one step late"]],
    value: settings.delayed_update ? "yes" : "no",
    onInput: (value) => change({ delayed_update: value === "yes" }),
    signal,
  });
  delayed.node.title = "One step late: only with the optimizer on the host. The parameters are then one step old.";
  controls.append(overlap.node, delayed.node);
  const choices = make("div", { class: "shardlab-settings" }, placement.node);

  const stage = createStage({ root, plot, width: scene.width, height: scene.height, draw, signal });
  const small = make("p", { class: "shardlab-small" }, scene.small);
  const headings = () => ["placement", "step", "ratio", "device compute", "device", "host", "NVMe", "fits"];
  const table = tableDetails(headings, rows, signal);
  root.append(head, stickyControls(controls, choices), plot, detail, small, table.node);

  /** Called when the reader changes something. */
  function change(some) {
    settings = { ...settings, ...some };
    update();
    setTraits(model, { settings });
  }

  const fits = (outcome) => outcome.device_bytes <= settings.capacity_bytes;
  const ratio = (outcome) => outcome.step_s / all.device.step_s;
  const ranks = () => plural(settings.world_size, "rank");

  function update() {
    all = Object.fromEntries(PLACEMENTS.map((name) => [name, offloadOutcome(settings, name)]));
    const chosen = all[settings.placement];
    for (const { name, set } of sliders) set(settings[name]);
    placement.set(settings.placement);
    overlap.set(settings.overlap ? "yes" : "no");
    delayed.set(settings.delayed_update ? "yes" : "no");
    sub.textContent = `${formatCount(settings.parameters)} parameters on ${ranks()}`;
    root.dataset.placement = settings.placement;
    root.dataset.parameters = settings.parameters;
    root.dataset.worldSize = settings.world_size;
    root.dataset.stepS = chosen.step_s;
    root.dataset.ratio = ratio(chosen).toFixed(4);
    root.dataset.deviceBytes = chosen.device_bytes;
    root.dataset.fits = fits(chosen);
    stage.canvas.setAttribute("aria-label", summary());
    table.refresh();
    point(null);
  }

  const describePlacement = (name) => {
    const { step_s, compute_s, device_bytes, host_bytes, nvme_bytes } = all[name];
    const share = Math.round((100 * compute_s) / step_s);
    const away = [[host_bytes, "the host"], [nvme_bytes, "NVMe"]]
      .filter(([bytes]) => bytes > 0)
      .map(([bytes, where]) => `${formatSi(bytes, "B")} on ${where}`);
    const held = [`${formatSi(device_bytes, "B")} on the device`, ...away].join(", ");
    const room = fits(all[name]) ? "fits" : `does not fit in ${formatSi(settings.capacity_bytes, "B")}`;
    return (
      `${names[name]}: ${formatSeconds(step_s)}, ${threeDigits(ratio(all[name]))} × no offload; ` +
      `the device computes ${share}% of the time; each rank has ${held}: ${room}`
    );
  };

  function summary() {
    const steps = PLACEMENTS.map(
      (name) => `${names[name]} ${formatSeconds(all[name].step_s)} (${fits(all[name]) ? "fits" : "does not fit"})`,
    );
    return `A step of ${formatCount(settings.parameters)} parameters on ${ranks()}: ${steps.join(", ")}.`;
  }

  function rows() {
    return PLACEMENTS.map((name) => {
      const { step_s, compute_s, device_bytes, host_bytes, nvme_bytes } = all[name];
      const bytes = [device_bytes, host_bytes, nvme_bytes].map((count) => formatSi(count, "B"));
      return [
        names[name], formatSeconds(step_s), threeDigits(ratio(all[name])), formatSeconds(compute_s),
        ...bytes, fits(all[name]) ? "yes" : "no",
      ];
    });
  }

  // ---- bars of the step ----

  /** What a bar computes or moves: a key of scene.colors. */
  function contentOf({ part, piece }) {
    if (piece === "compute") return part;
    if (piece === "host_update") return "Adam";
    if (settings.placement === "swap" || (piece === "nvme" && part === "update")) return "states";
    return piece === "to_host" ? "gradients" : "parameters";
  }

  const toX = (time) => left + (time / all[settings.placement].step_s) * (right - left);
  const topOf = ({ piece }) => stepTop + scene.rows.findIndex(([name]) => name === piece) * row + 4;

  function boxOf(bar) {
    const x = toX(bar.start);
    return { x, y: topOf(bar), width: Math.max(1, toX(bar.end) - x), height: row - 8 };
  }

  function describeBar(bar) {
    const seconds = bar.end - bar.start;
    const [, place] = scene.rows.find(([name]) => name === bar.piece);
    const { link_bytes_per_s: link, nvme_bytes_per_s: nvme, world_size: n, host_parameters_per_s: host } = settings;
    const how = {
      compute: () => "",
      host_update: () => ` (${formatCount(seconds * host)} parameters at ${formatCount(host)}/s)`,
      nvme: () => ` (${formatSi((seconds * nvme) / n, "B")} at ${formatSi(nvme / n, "B/s")} per rank)`,
    }[bar.piece] ?? (() => ` (${formatSi(seconds * link, "B")} at ${formatSi(link, "B/s")})`);
    return (
      `${place}: ${contentOf(bar)}, ${formatSeconds(seconds)}${how()}, in ${bar.part}, ` +
      `from ${formatSeconds(bar.start)} to ${formatSeconds(bar.end)}`
    );
  }

  function point(what) {
    selected = what;
    detail.textContent = !what ? "" : what.bar ? describeBar(what.bar) : describePlacement(what.placement);
    if (what?.bar) root.dataset.selected = `${what.bar.part} ${what.bar.piece}`;
    else if (what) root.dataset.selected = what.placement;
    else delete root.dataset.selected;
    stage.redraw();
  }

  // ---- drawing ----

  function draw(context, theme) {
    const marks = [...scene.background, ...stepMarks(context, theme), ...allMarks()];
    const drawn = paint(context, marks, theme);
    if (!selected) return drawn;
    const { bar, placement: name } = selected;
    const { x, y, width, height } = bar
      ? boxOf(bar)
      : { x: 1, y: allTop + PLACEMENTS.indexOf(name) * row + 1, width: scene.width - 2, height: row - 2 };
    paintFocus(context, theme, x, y, width, height);
    return drawn + 1;
  }

  function stepMarks(context, theme) {
    const { parts, bars, step_s } = all[settings.placement];
    const bottom = stepTop + scene.rows.length * row;
    context.font = `11px ${theme.font}`;
    const wide = (text) => context.measureText(text).width;
    const marks = [
      { kind: "text", x: 0, y: 14, text: `One step, ${names[settings.placement]}`, weight: 600 },
    ];
    for (const [part, [start, end]] of Object.entries(parts)) {
      if (start === end) continue;
      const isDelayed = part === "update" && start === 0;
      const y = isDelayed ? 36 : 52;
      const width = Math.max(1, toX(end) - toX(start) - 2);
      const text = isDelayed ? `${part} (of the previous step)` : part;
      marks.push({ kind: "rect", x: toX(start), y: y + 4, width, height: 3, fill: "muted", opacity: 0.6 });
      if (width > wide(text)) marks.push({ kind: "text", x: toX(start), y, text, size: 11, fill: "muted" });
      if (start) {
        marks.push({ kind: "path", d: `M${toX(start)} ${stepTop}V${bottom}`, stroke: "rule", opacity: 0.8 });
      }
    }
    for (const bar of bars) {
      const [fill, ink] = scene.colors[contentOf(bar)];
      const box = boxOf(bar);
      const seconds = formatSeconds(bar.end - bar.start);
      marks.push({ kind: "rect", ...box, fill, radius: 2 });
      const text = [`${contentOf(bar)} ${seconds}`, seconds].find((label) => wide(label) < box.width - 8);
      if (text) marks.push({ kind: "text", x: box.x + 6, y: box.y + 13, text, size: 11, fill: ink });
    }
    drawTimeAxis(context, theme, { from: 0, to: step_s, left, right, bottom });
    return marks;
  }

  function allMarks() {
    const slowest = Math.max(...PLACEMENTS.map((name) => all[name].step_s));
    const near = Math.max(all.device.step_s, all[settings.placement].step_s);
    const axisSeconds = Math.min(slowest, scene.longest_bar * near);
    const room = barsRight - left;
    const marks = [];
    PLACEMENTS.forEach((name, index) => {
      const each = all[name];
      const y = allTop + index * row;
      const chosen = name === settings.placement;
      const weight = chosen ? 600 : 400;
      if (chosen) {
        marks.push({ kind: "rect", x: 0, y, width: scene.width, height: row, fill: "text", opacity: 0.08, radius: 3 });
      }
      const spent = [
        ...each.bars.filter(({ piece }) => piece === "compute")
          .map(({ part, start, end }) => [scene.colors[part][0], end - start]),
        [roles.wait, each.step_s - each.compute_s],
      ];
      const write = (mark) => marks.push({ kind: "text", y: y + 17, weight, ...mark });
      const bar = (mark) => marks.push({ kind: "rect", y: y + 5, height: row - 10, ...mark });
      write({ x: left - 10, text: names[name], anchor: "end" });
      let at = left;
      for (const [fill, seconds] of spent) {
        const width = Math.min((seconds / axisSeconds) * room, barsRight - at);
        bar({ x: at, width, fill });
        at += width;
      }
      if (each.step_s > 1.0001 * axisSeconds) write({ x: barsRight + 2, text: "»", weight: 400 });
      write({ x: barsRight + 70, text: formatSeconds(each.step_s), anchor: "end", weight: 400 });
      write({ x: barsRight + 126, text: `${threeDigits(ratio(each))} ×`, anchor: "end" });
      marks.push({
        kind: "rect", x: barsRight + 150, y: y + 8, width: 10, height: 10,
        radius: fits(each) ? 5 : 0, fill: fits(each) ? roles.right : roles.wrong,
      });
      const text = `${formatSi(each.device_bytes, "B")}: ${fits(each) ? "fits" : "does not fit"}`;
      write({ x: barsRight + 167, text, weight: 400 });
    });
    return marks;
  }

  // ---- mouse and keyboard ----

  const placementAt = ({ y }) => PLACEMENTS[Math.floor((y - allTop) / row)];

  function under(at) {
    const near = 2; // so that thin bars can be hit
    const bar = all[settings.placement].bars.findLast((each) => {
      const { x, y, width, height } = boxOf(each);
      return at.x >= x - near && at.x <= x + width + near && at.y >= y && at.y <= y + height;
    });
    if (bar) return { bar };
    return placementAt(at) ? { placement: placementAt(at) } : null;
  }

  function pick(name) {
    change({ placement: name });
    point({ placement: name });
  }

  function keys() {
    const at = PLACEMENTS.indexOf(settings.placement);
    const bars = all[settings.placement].bars.toSorted((a, b) => a.start - b.start);
    const place = bars.findIndex(
      ({ part, piece }) => part === selected?.bar?.part && piece === selected?.bar?.piece,
    );
    const to = (index) => point({ bar: bars[clamp(index, 0, bars.length - 1)] });
    return {
      ArrowUp: () => pick(PLACEMENTS[Math.max(at - 1, 0)]),
      ArrowDown: () => pick(PLACEMENTS[Math.min(at + 1, PLACEMENTS.length - 1)]),
      ArrowLeft: () => to(place - 1),
      ArrowRight: () => to(place + 1),
      Home: () => to(0),
      End: () => to(bars.length - 1),
      Escape: () => point(null),
    };
  }

  handlePointer(plot, stage, (at) => point(at && under(at)), signal);
  handleKeys(plot, keys, signal);
  plot.addEventListener(
    "click",
    (event) => {
      const name = placementAt(stage.at(event));
      if (name) pick(name);
    },
    { signal },
  );
  const changed = () => {
    settings = { ...model.get("settings") };
    update();
  };
  onTraits(model, ["settings"], changed, signal);

  update();
  return root;
}

export default widget(build);
