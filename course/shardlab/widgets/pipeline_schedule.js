// The pipeline schedules: names and colours come from pipeline_schedule.py, the simulation from
// pipeline_model.js; here are the sliders, the drawing, the clock and pointing at what is drawn.

function render({ model, el }) {
  const scene = model.get("scene");
  const stop = new AbortController();
  const { signal } = stop;
  const { left, right, peak_left: peakLeft, peak_right: peakRight, names, colors, roles } = scene;
  const [HEAD, GAP, KEY, AXIS] = [26, 12, 26, 24];
  const [PLAY, PAUSE] = [icon("M2 1v12l11-6z"), icon("M2 1h4v12h-4zM8 1h4v12h-4z")];
  const slow = window.matchMedia("(prefers-reduced-motion: reduce)");
  const playMs = 9000; // from the first action to the last
  let settings = { ...model.get("settings") };
  let panels = [];
  let [longest, mostShares, row] = [1, 1, 20];
  let time = null; // of the clock, in units of the costs; null: everything is shown
  let frame = 0; // the pending animation frame, 0 while paused
  let selected = null; // { panel, device, index } of a slot
  let stage = null;
  let stageStop = null;
  let table = null;

  const root = make("div", { class: "shardlab-widget" });
  root.dataset.widget = "pipeline-schedule";
  const sub = make("span", { class: "shardlab-sub" });
  const head = make("div", { class: "shardlab-head" });
  head.append(make("span", { class: "shardlab-title" }, "Pipeline schedules"), sub);

  // ---- settings ----

  const controls = make("div", { class: "shardlab-settings" });
  const whole = (name, label, most) => ({
    name,
    ...placed(name, slider({
      label, min: 1, max: most, value: settings[name],
      onInput: (value) => change({ [name]: value }), signal,
    })),
  });
  const cost = (name, label) => {
    const values = scene.costs[name];
    const control = slider({
      label, min: 0, max: values.length - 1, value: values.indexOf(settings[name]),
      format: (index) => formatTime(values[index]),
      onInput: (index) => change({ [name]: values[index] }), signal,
    });
    const at = (value) => values.indexOf(value);
    return { name, node: placed(name, control).node, set: (value) => at(value) >= 0 && control.set(at(value)) };
  };
  function placed(name, control) {
    control.node.dataset.setting = name;
    controls.append(control.node);
    return { node: control.node, set: (value) => control.set(value) };
  }
  const sliders = [
    whole("p", "Devices p", scene.most.p),
    cost("forward", "Forward"),
    whole("m", "Micro-batches m", scene.most.m),
    cost("backward_input", "Backward, input"),
    whole("v", "Chunks v", scene.most.v),
    cost("backward_weight", "Backward, weights"),
  ];
  sliders.push(cost("send", "Message"));

  const shown = make("div", { class: "shardlab-choice", role: "group", "aria-label": "Schedules" });
  const boxes = make("span", { class: "shardlab-options" });
  shown.append(make("span", {}, "Schedules"), boxes);
  const checks = new Map();
  for (const name of scene.order) {
    const input = make("input", { type: "checkbox", value: name });
    input.addEventListener("change", () => change({ shown: chosen() }), { signal });
    keepKeys(input, signal);
    checks.set(name, input);
    boxes.append(make("label", {}, input, make("span", {}, names[name])));
  }
  const chosen = () => [...checks].filter(([, input]) => input.checked).map(([name]) => name);
  const choices = make("div", { class: "shardlab-settings" }, shown);

  const plot = make("div", {
    class: "shardlab-plot",
    tabindex: "0",
    role: "group",
    "aria-label":
      "Pipeline schedules. Arrow keys move through the actions, space plays the time, Escape lets go.",
  });
  const play = button("Play (space)", PLAY);
  const clockSlider = make("input", {
    type: "range", min: "0", max: "1000", step: "1", value: "1000", "aria-label": "Time",
  });
  const clock = make("span", { class: "shardlab-clock" });
  const bar = make("div", { class: "shardlab-controls", role: "toolbar" }, play, clockSlider, clock);
  keepKeys(clockSlider, signal);
  const detail = make("p", {
    class: "shardlab-detail",
    "aria-live": "polite",
    "data-hint": "Point at an action, or use the arrow keys; play the time to see memory fill.",
  });
  const small = make("p", { class: "shardlab-small" }, scene.small);
  root.append(head, controls, choices, plot, bar, detail, small);

  /** The reader moved something: redrawn at once; the kernel is told and not waited for. */
  function change(some) {
    settings = { ...settings, ...some };
    pause();
    time = null;
    update();
    model.set("settings", settings);
    model.save_changes();
  }

  function formatTime(value) {
    if (scene.unit_s !== null) return formatSeconds(value * scene.unit_s);
    return String(Number(value.toFixed(2)));
  }
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const shareOf = (held, v) => String(Number((held / v).toFixed(2)));

  // ---- what is shown ----

  function panelsOf() {
    const found = [];
    for (const name of settings.shown) {
      const schedule = scene.own[name] ?? GENERATORS[name](settings);
      if (schedule === null) {
        found.push({ name, title: names[name], slots: null });
        continue;
      }
      const told = simulatePipeline(schedule, settings);
      found.push({ name, title: names[name], ...told, chunks: chunkNumbers(schedule) });
      const ran = measuredSlots(name, told.slots);
      if (ran) {
        const title = `${names[name]}, measured`;
        const { v, peaks } = told;
        found.push({ name, title, v, peaks, slots: ran, ...bubbleOf(ran), chunks: chunkNumbers(schedule), isMeasured: true });
      }
    }
    return found;
  }

  /** Stage -> the how-manieth of its device's stages it is. */
  function chunkNumbers(schedule) {
    const chunks = new Map();
    for (const actions of schedule) {
      const stages = [...new Set(actions.map(([, stage]) => stage))].sort((a, b) => a - b);
      stages.forEach((stage, index) => chunks.set(stage, index));
    }
    return chunks;
  }

  /** What ran, if it is this very schedule. */
  function measuredSlots(name, slots) {
    const ran = scene.measured[name];
    const same = ran && ran.length === slots.length && slots.every(
      (list, device) => list.length === ran[device].length && list.every(
        ({ kind, stage, microBatch }, i) => {
          const [k, s, m] = ran[device][i];
          return k === kind && s === stage && m === microBatch;
        },
      ),
    );
    if (!same) return null;
    const unit = scene.unit_s ?? 1;
    return ran.map((list) => list.map(([kind, stage, microBatch, start, end]) => (
      { kind, stage, microBatch, start: start / unit, end: end / unit }
    )));
  }

  function update() {
    panels = panelsOf();
    const drawn = panels.filter(({ slots }) => slots);
    longest = Math.max(...drawn.map(({ makespan }) => makespan), 1e-9);
    mostShares = Math.max(...drawn.flatMap(({ peaks, v }) => peaks.map((held) => held / v)), 1e-9);
    const rows = panels.reduce((sum, { slots }) => sum + (slots ? slots.length : 1), 0);
    row = rows <= 8 ? 20 : rows <= 16 ? 18 : rows <= 28 ? 15 : rows <= 40 ? 12 : 9;
    let y = KEY;
    for (const panel of panels) {
      panel.y = y;
      panel.top = y + HEAD;
      y = panel.top + (panel.slots?.length ?? 0) * row + GAP;
    }
    restage(Math.max(y + AXIS, 120));
    for (const { name, set } of sliders) set(settings[name]);
    for (const [name, input] of checks) input.checked = settings.shown.includes(name);
    sub.textContent = `${settings.p} devices, ${settings.m} micro-batches`;
    for (const name of ["p", "m", "v"]) root.dataset[name] = settings[name];
    const figure = (what) => Object.fromEntries(drawn.map((panel) => [panel.title, what(panel)]));
    root.dataset.bubbles = JSON.stringify(figure(({ overIdeal }) => Number(overIdeal.toFixed(6))));
    root.dataset.peaks = JSON.stringify(figure(({ peaks }) => peaks));
    root.dataset.makespans = JSON.stringify(figure(({ makespan }) => Number(makespan.toFixed(6))));
    stage.canvas.setAttribute("aria-label", summary(drawn));
    const fresh = tableDetails(
      "As a table",
      ["schedule", "time", "bubble over the ideal", "of all time", "own first to last", "in flight, by device"],
      () => drawn.map((panel) => [
        panel.title, formatTime(panel.makespan), percent(panel.overIdeal), percent(panel.fraction),
        percent(panel.spanBubble), panel.peaks.map((held) => shareOf(held, panel.v)).join(", "),
      ]),
      signal,
    );
    if (table) {
      fresh.open = table.open;
      table.replaceWith(fresh);
    } else root.append(fresh);
    table = fresh;
    point(null);
    tellTime();
  }

  function summary(drawn) {
    const each = drawn.map(
      (panel) => `${panel.title}: bubble ${percent(panel.overIdeal)} of the ideal, ` +
        `${shareOf(Math.max(...panel.peaks), panel.v)} micro-batches in flight at most`,
    );
    return `${settings.p} devices, ${settings.m} micro-batches. ${each.join(". ")}.`;
  }

  /** A canvas as high as the panels need: another one when that changes. */
  function restage(height) {
    if (stage?.height === height) return;
    stageStop?.abort();
    stageStop = new AbortController();
    const made = createStage({ root, width: scene.width, height, label: "", draw, signal: stageStop.signal });
    stage = { ...made, height };
    plot.replaceChildren(stage.canvas);
  }

  // ---- drawing ----

  const toX = (at) => left + (at / longest) * (right - left);
  const high = () => row - (row > 12 ? 3 : 2);
  const labelSize = () => (row > 12 ? 11 : row - 2);

  function draw(context, theme) {
    const marks = [...key(context, theme)];
    for (const panel of panels) {
      marks.push(...headMarks(panel));
      (panel.slots ?? []).forEach((slots, device) => marks.push(...rowMarks(context, theme, panel, slots, device)));
    }
    let drawn = paint(context, marks, theme);
    drawAxis(context, theme);
    if (time !== null) drawCursor(context, theme);
    if (selected) {
      const { x, y, width, height } = boxOf(selected);
      paintFocus(context, theme, x, y, width, height);
      drawn += 1;
    }
    return drawn;
  }

  function key(context, theme) {
    context.font = `11px ${theme.font}`;
    const marks = [];
    let x = left;
    const entries = [
      [colors.F[0][0][0], 1, "forward"],
      [colors.B[0][0][0], 1, "backward (or its input half)"],
      [colors.W[0][0][0], 1, "its weight half"],
      [roles.wait, 0.3, "idle"],
    ];
    for (const [fill, opacity, text] of entries) {
      marks.push({ kind: "rect", x, y: 2, width: 10, height: 10, fill, opacity, radius: 2 });
      marks.push({ kind: "text", x: x + 15, y: 11, text, size: 11, fill: "muted" });
      x += 15 + context.measureText(text).width + 16;
    }
    const text = time === null ? "in flight, at most" : "in flight, now";
    marks.push({ kind: "text", x: peakLeft, y: 11, text, size: 11, fill: "muted" });
    return marks;
  }

  function headMarks(panel) {
    const { y, title, isMeasured } = panel;
    const text = panel.slots
      ? `bubble ${percent(panel.overIdeal)} of the ideal, ${percent(panel.fraction)} of all time · ${formatTime(panel.makespan)}`
      : "m does not divide into rounds of p micro-batches";
    const marks = [
      { kind: "text", x: isMeasured ? 15 : 0, y: y + 16, text: title, weight: 600 },
      { kind: "text", x: right, y: y + 16, text, size: 11, anchor: "end", fill: "muted" },
    ];
    if (isMeasured) {
      marks.push({ kind: "rect", x: 0, y: y + 6, width: 10, height: 10, fill: roles.measured, radius: 2 });
    }
    return marks;
  }

  const shade = (panel, { kind, stage: number }) => {
    const v = clamp(panel.v, 1, colors.F.length);
    return colors[kind][v - 1][Math.min(panel.chunks.get(number), v - 1)];
  };

  function rowMarks(context, theme, panel, slots, device) {
    const y = panel.top + device * row;
    const name = row > 12 ? `device ${device}` : String(device);
    const marks = [
      { kind: "text", x: left - 8, y: y + high() / 2 + 0.36 * labelSize(), text: name, size: labelSize(), anchor: "end", fill: "muted" },
      { kind: "rect", x: left, y, width: toX(panel.makespan) - left, height: high(), fill: roles.wait, opacity: 0.22 },
    ];
    context.font = `10px ${theme.font}`;
    for (const slot of slots) {
      const [fill, ink] = shade(panel, slot);
      const [x, width] = [toX(slot.start), toX(slot.end) - toX(slot.start)];
      const gap = Math.min(1, width / 5);
      const box = { kind: "rect", x, y, height: high(), fill, radius: Math.min(2, gap * 2) };
      const full = Math.max(width - gap, 0.6);
      // What the clock has not come to yet is pale.
      const done = time === null ? 1 : clamp((time - slot.start) / (slot.end - slot.start), 0, 1);
      if (done < 1) marks.push({ ...box, width: full, opacity: 0.2 });
      if (done > 0) marks.push({ ...box, width: full * done });
      const text = String(slot.microBatch);
      if (row > 12 && context.measureText(text).width < width - 3) {
        const label = { kind: "text", x: x + (width - gap) / 2, y: y + high() / 2 + 3.6, text, size: 10, anchor: "middle" };
        marks.push({ ...label, fill: done > 0.5 ? ink : "muted" });
      }
    }
    if (panel.isMeasured) {
      const d = `M${left} ${y + high() + 1}H${toX(panel.makespan)}`;
      marks.push({ kind: "path", d, stroke: roles.measured });
    }
    const held = time === null ? panel.peaks[device] : heldAt(slots, time);
    const width = ((peakRight - peakLeft) * held) / panel.v / mostShares;
    const peak = ((peakRight - peakLeft) * panel.peaks[device]) / panel.v / mostShares;
    if (panel.isMeasured && time === null) return marks; // the same as was simulated
    if (time !== null) {
      marks.push({ kind: "rect", x: peakLeft, y, width: peak, height: high(), fill: colors.F[0][0][0], opacity: 0.2, radius: 2 });
    }
    marks.push(
      { kind: "rect", x: peakLeft, y, width, height: high(), fill: colors.F[0][0][0], radius: 2 },
      { kind: "text", x: peakLeft + (time === null ? width : peak) + 6, y: y + high() / 2 + 0.36 * labelSize(), text: shareOf(held, panel.v), size: labelSize() },
    );
    return marks;
  }

  function drawAxis(context, theme) {
    const y = stage.height - AXIS - GAP + 4;
    const power = (n) => 10 ** n;
    let step = 1;
    search: for (let n = -9; n < 10; n += 1) {
      for (const factor of [1, 2, 5]) {
        step = factor * power(n);
        if (longest / step <= 7) break search;
      }
    }
    context.fillStyle = theme.rule;
    context.fillRect(left, y, right - left, 1);
    for (let i = 0; i * step <= longest * (1 + 1e-9); i += 1) {
      const x = toX(i * step);
      context.fillStyle = theme.rule;
      context.fillRect(x - 0.5, y, 1, 4);
      paintText(context, { x, y: y + 16, text: formatTime(i * step), size: 11, anchor: "middle", fill: "muted" }, theme);
    }
  }

  function drawCursor(context, theme) {
    const x = toX(time);
    context.fillStyle = theme.text;
    context.fillRect(x - 0.75, KEY - 6, 1.5, stage.height - AXIS - GAP + 4 - (KEY - 6));
  }

  // ---- the clock ----

  function tellTime() {
    const at = time ?? longest;
    clockSlider.value = Math.round((1000 * at) / longest);
    clock.textContent = formatTime(Number(at.toFixed(2)));
    clockSlider.setAttribute("aria-valuetext", clock.textContent);
    const running = frame !== 0;
    root.dataset.playing = String(running);
    root.dataset.time = time === null ? "" : time.toFixed(3);
    play.replaceChildren(running ? PAUSE : PLAY);
    play.title = running ? "Pause (space)" : "Play (space)";
    play.setAttribute("aria-label", play.title);
    stage.redraw();
  }

  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
  }

  function toggle() {
    if (frame !== 0) {
      pause();
      return tellTime();
    }
    if (time === null || time >= longest) time = 0;
    let before = performance.now();
    const tick = (now) => {
      const passed = now - before;
      // No motion: stand still for a while, then jump a twelfth on.
      if (!slow.matches || passed > playMs / 12) {
        before = now;
        time += (Math.max(passed, 0) / playMs) * longest;
      }
      if (time >= longest) {
        pause();
        time = null;
      } else frame = requestAnimationFrame(tick);
      tellTime();
    };
    frame = requestAnimationFrame(tick);
    tellTime();
  }

  play.addEventListener("click", toggle, { signal });
  clockSlider.addEventListener(
    "input",
    () => {
      pause();
      time = clockSlider.value === "1000" ? null : (Number(clockSlider.value) / 1000) * longest;
      tellTime();
    },
    { signal },
  );

  // ---- mouse and keyboard ----

  function boxOf({ panel, device, index }) {
    const { start, end } = panels[panel].slots[device][index];
    const y = panels[panel].top + device * row;
    return { x: toX(start), y, width: Math.max(toX(end) - toX(start), 1), height: high() };
  }

  const WORDS = { F: "forward", B: "backward", I: "input half of the backward", W: "weight half of the backward" };

  function describe({ panel, device, index }) {
    const { title, slots, v } = panels[panel];
    const { kind, stage: number, microBatch, start, end } = slots[device][index];
    const where = v > 1 ? `device ${device}, stage ${number}` : `device ${device}`;
    return (
      `${title}: ${where}, ${WORDS[kind]} of micro-batch ${microBatch}, ` +
      `from ${formatTime(start)} to ${formatTime(end)}; ` +
      `then ${shareOf(heldAt(slots[device], end), v)} in flight`
    );
  }

  function point(what) {
    selected = what;
    detail.textContent = what ? describe(what) : "";
    if (what) {
      const { kind, stage: number, microBatch } = panels[what.panel].slots[what.device][what.index];
      root.dataset.selected = `${panels[what.panel].title} ${number}${kind}${microBatch}`;
    } else delete root.dataset.selected;
    stage.redraw();
  }

  function under({ x, y }) {
    const panel = panels.findIndex(({ slots, top }) => slots && y >= top && y < top + slots.length * row);
    if (panel < 0) return null;
    const device = Math.floor((y - panels[panel].top) / row);
    const slots = panels[panel].slots[device];
    const index = slots.findIndex(({ start, end }) => x >= toX(start) && x <= toX(end));
    return index < 0 ? null : { panel, device, index };
  }

  plot.addEventListener("pointermove", (event) => point(under(stage.at(event))), { signal });
  plot.addEventListener("pointerleave", () => point(null), { signal });

  /** The slot of a row that is nearest in time to the selected one. */
  function besides(panel, device) {
    const old = selected ? panels[selected.panel].slots[selected.device][selected.index].start : 0;
    const slots = panels[panel].slots[device];
    let index = 0;
    slots.forEach(({ start }, i) => {
      if (Math.abs(start - old) < Math.abs(slots[index].start - old)) index = i;
    });
    return { panel, device, index };
  }

  function move(across, down) {
    const rows = panels.flatMap(({ slots }, panel) => (slots ?? []).map((_, device) => [panel, device]));
    if (!rows.length) return;
    if (!selected) return point({ panel: rows[0][0], device: rows[0][1], index: 0 });
    const { panel, device, index } = selected;
    if (across) {
      const last = panels[panel].slots[device].length - 1;
      return point({ panel, device, index: clamp(index + across, 0, last) });
    }
    const at = rows.findIndex(([a, b]) => a === panel && b === device);
    point(besides(...rows[clamp(at + down, 0, rows.length - 1)]));
  }

  plot.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        ArrowLeft: () => move(-1, 0),
        ArrowRight: () => move(1, 0),
        ArrowUp: () => move(0, -1),
        ArrowDown: () => move(0, 1),
        Home: () => move(-Infinity, 0),
        End: () => move(Infinity, 0),
        " ": toggle,
        Escape: () => point(null),
      };
      if (!keys[event.key]) return;
      keys[event.key]();
      event.preventDefault();
      event.stopPropagation(); // or the notebook would move to another cell
    },
    { signal },
  );
  const changed = () => {
    settings = { ...model.get("settings") };
    pause();
    time = null;
    update();
  };
  model.on("change:settings", changed);

  update();
  el.append(root);
  return () => {
    pause();
    model.off("change:settings", changed);
    stageStop?.abort();
    stop.abort();
  };
}

export default { render };
