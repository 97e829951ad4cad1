// The panels of pipeline schedules and their positions, as in pipeline_schedule.py's panels() and
// pipeline_panels.py, but with a clock.

const ABOVE_PANEL = 26;
const BELOW_PANEL = 12;
const ABOVE_ALL = 26; // the legend
const BELOW_ALL = 24; // the axis
const MAX_SLOWER = 2; // a run that is slower still gets a scale of its own

/** In units of the costs, or in seconds if the length of a unit is known. */
function formatPipelineTime(time, unitS) {
  return unitS === null ? String(Number(time.toFixed(2))) : formatSeconds(time * unitS);
}

const formatPercent = (share) => `${(100 * share).toFixed(1)}%`;
const formatShare = (held, v) => String(Number((held / v).toFixed(2)));

// ---- the panels ----

/**
 * Each schedule simulated, followed by the run if it ran that schedule: [{ title, slots, v, peaks,
 * chunks, isMeasured, …bubbleOf }]. Slots are null if the schedule does not exist for these settings.
 */
function pipelinePanels({ custom, names, measured, unit_s: unitS }, settings) {
  return settings.shown.flatMap((name) => {
    const schedule = custom[name] ?? GENERATORS[name](settings);
    const title = names[name];
    if (schedule === null) return [{ title, slots: null }];
    const chunks = chunkNumbers(schedule);
    const simulated = { title, chunks, ...simulatePipeline(schedule, settings) };
    const { v, peaks, slots } = simulated;
    if (!matchesSlots(measured[name], slots)) return [simulated];
    const ran = measured[name].map((list) => list.map(([kind, stage, microBatch, start, end]) => (
      { kind, stage, microBatch, start: start / (unitS ?? 1), end: end / (unitS ?? 1) }
    )));
    const measuredPanel = {
      name, title: `${title}, measured`, chunks, v, peaks, slots: ran, isMeasured: true,
    };
    return [simulated, { ...measuredPanel, ...bubbleOf(ran) }];
  });
}

/** Stage -> its index among the stages of its device. */
function chunkNumbers(schedule) {
  const chunks = new Map();
  for (const actions of schedule) {
    const stages = [...new Set(actions.map(([, stage]) => stage))].sort((a, b) => a - b);
    stages.forEach((stage, index) => chunks.set(stage, index));
  }
  return chunks;
}

/** Whether each device ran the actions of this schedule, in its order. */
function matchesSlots(ran, slots) {
  const actual = ran?.map((list) => list.map(([kind, stage, microBatch]) => [kind, stage, microBatch]));
  const expected = slots.map((list) => list.map(({ kind, stage, microBatch }) => [kind, stage, microBatch]));
  return JSON.stringify(actual) === JSON.stringify(expected);
}

// ---- the picture ----

/**
 * The panels one below another, on one scale of time and one of in-flight counts. A run that was far slower
 * than the simulations, on a busy machine, has a scale of its own, or they would be too small to read.
 * Returns { panels, longest (the end of the axis), height, draw(context, theme, time), boxOf(slot),
 * slotAt({ x, y }) }; a slot is { panel, device, index }, a null time shows everything.
 */
function pipelinePicture(scene, settings) {
  const { left, right, peak_left: peakLeft, peak_right: peakRight, colors, roles, unit_s: unitS } = scene;
  const panels = pipelinePanels(scene, settings);
  const drawn = panels.filter(({ slots }) => slots);
  const simulated = Math.max(...drawn.filter((panel) => !panel.isMeasured).map(({ makespan }) => makespan));
  for (const panel of drawn) {
    const slower = panel.makespan / simulated;
    panel.slower = panel.isMeasured && slower > MAX_SLOWER ? Math.ceil(10 * slower) / 10 : 1;
    if (panel.slower > 1) panel.title += ` (drawn at 1 : ${panel.slower})`;
  }
  const longest = Math.max(...drawn.map(({ makespan, slower }) => makespan / slower), 1e-9);
  const mostShares = Math.max(...drawn.flatMap(({ peaks, v }) => peaks.map((held) => held / v)), 1e-9);
  const rows = panels.reduce((sum, { slots }) => sum + (slots ? slots.length : 1), 0);
  const row = rows <= 8 ? 20 : rows <= 16 ? 18 : rows <= 28 ? 15 : rows <= 40 ? 12 : 9;
  const barHeight = row - (row > 12 ? 3 : 2);
  const labelSize = row >= 12 ? 11 : row - 1;
  let below = ABOVE_ALL;
  for (const panel of panels) {
    panel.y = below;
    panel.top = below + ABOVE_PANEL;
    below = panel.top + (panel.slots?.length ?? 0) * row + BELOW_PANEL;
  }
  const height = Math.max(below + BELOW_ALL, 120);
  const axisY = height - BELOW_ALL - BELOW_PANEL + 4;

  const toX = (time, { slower } = { slower: 1 }) => left + (time / slower / longest) * (right - left);

  function boxOf({ panel, device, index }) {
    const { start, end } = panels[panel].slots[device][index];
    const y = panels[panel].top + device * row;
    const x = toX(start, panels[panel]);
    return { x, y, width: Math.max(toX(end, panels[panel]) - x, 1), height: barHeight };
  }

  function slotAt({ x, y }) {
    const panel = panels.findIndex(({ slots, top }) => slots && y >= top && y < top + slots.length * row);
    if (panel < 0) return null;
    const device = Math.floor((y - panels[panel].top) / row);
    const slots = panels[panel].slots[device];
    const index = slots.findIndex(({ start, end }) => x >= toX(start, panels[panel]) && x <= toX(end, panels[panel]));
    return index < 0 ? null : { panel, device, index };
  }

  function draw(context, theme, time) {
    const marks = legendMarks(context, theme, time);
    for (const panel of panels) {
      marks.push(...headMarks(panel));
      const now = time === null ? null : time * (panel.slower ?? 1);
      (panel.slots ?? []).forEach((slots, device) => {
        marks.push(...slotMarks(context, theme, panel, slots, device, now));
        // A run has the in-flight counts of its simulation, which is drawn above it.
        if (!panel.isMeasured || time !== null) marks.push(...flightMarks(panel, slots, device, now));
      });
    }
    marks.push(...axisMarks());
    if (time !== null) {
      const top = ABOVE_ALL - 6;
      marks.push({ kind: "rect", x: toX(time) - 0.75, y: top, width: 1.5, height: axisY - top, fill: "text" });
    }
    return paint(context, marks, theme);
  }

  function legendMarks(context, theme, time) {
    context.font = `11px ${theme.font}`;
    const marks = [];
    let x = left;
    const entries = [
      [colors.F[0][0][0], 1, "forward"],
      [colors.B[0][0][0], 1, "backward (or input gradient)"],
      [colors.W[0][0][0], 1, "weight gradient"],
      [roles.wait, 0.3, "idle"],
    ];
    for (const [fill, opacity, text] of entries) {
      marks.push({ kind: "rect", x, y: 2, width: 10, height: 10, fill, opacity, radius: 2 });
      marks.push({ kind: "text", x: x + 15, y: 11, text, size: 11, fill: "muted" });
      x += 15 + context.measureText(text).width + 16;
    }
    const text = time === null ? "in flight (peak)" : "in flight (now)";
    marks.push({ kind: "text", x: peakLeft, y: 11, text, size: 11, fill: "muted" });
    return marks;
  }

  function headMarks({ y, title, isMeasured, slots, overIdeal, fraction, makespan }) {
    const text = slots
      ? `bubble ${formatPercent(overIdeal)} of ideal time, ${formatPercent(fraction)} of total time · ` +
        formatPipelineTime(makespan, unitS)
      : "m micro-batches do not divide into equal rounds";
    const marks = [
      { kind: "text", x: isMeasured ? 15 : 0, y: y + 16, text: title, weight: 600 },
      { kind: "text", x: right, y: y + 16, text, size: 11, anchor: "end", fill: "muted" },
    ];
    if (isMeasured) {
      marks.push({ kind: "rect", x: 0, y: y + 6, width: 10, height: 10, fill: roles.measured, radius: 2 });
    }
    return marks;
  }

  /** [its color, the text color on it] */
  function shade(panel, { kind, stage }) {
    const v = clamp(panel.v, 1, colors.F.length);
    return colors[kind][v - 1][Math.min(panel.chunks.get(stage), v - 1)];
  }

  function slotMarks(context, theme, panel, slots, device, time) {
    const y = panel.top + device * row;
    const name = row > 12 ? `device ${device}` : String(device);
    const baseline = y + barHeight / 2 + 0.36 * labelSize;
    const end = toX(panel.makespan, panel);
    const marks = [
      { kind: "text", x: left - 8, y: baseline, text: name, size: labelSize, anchor: "end", fill: "muted" },
      { kind: "rect", x: left, y, width: end - left, height: barHeight, fill: roles.wait, opacity: 0.22 },
    ];
    context.font = fontOf(theme, 11);
    const labels = []; // above all actions
    slots.forEach((slot, index) => {
      const [fill, ink] = shade(panel, slot);
      const x = toX(slot.start, panel);
      const width = toX(slot.end, panel) - x;
      const gap = Math.min(1, width / 5);
      // The paler colors of later chunks have an outline in the color itself.
      const base = colors[slot.kind][0][0][0];
      const stroke = fill === base ? "none" : base;
      const box = { kind: "rect", x, y, height: barHeight, fill, stroke, radius: Math.min(2, gap * 2) };
      const full = Math.max(width - gap, 0.6);
      // Actions that the clock has not reached yet are pale.
      const done = time === null ? 1 : clamp((time - slot.start) / (slot.end - slot.start), 0, 1);
      if (done < 1) marks.push({ ...box, width: full, opacity: 0.2 });
      if (done > 0) marks.push({ ...box, width: full * done });
      const text = String(slot.microBatch);
      const wide = context.measureText(text).width;
      const isAmongEquals = [-1, 1].every((by) => slots[index + by]?.kind === slot.kind);
      // Narrower digits, then a number on every fourth of a row of equal actions.
      const room = 0.6 * wide < width - 1 ? width - 1 : isAmongEquals && slot.microBatch % 4 === 0 ? wide : 0;
      if (row > 12 && room > 0) {
        const place = { x: x + (width - gap) / 2, y: y + barHeight / 2 + 4, size: 11, anchor: "middle", room };
        labels.push({ kind: "text", ...place, text, fill: done > 0.5 ? ink : "muted" });
      }
    });
    marks.push(...labels);
    if (panel.isMeasured) {
      marks.push({ kind: "path", d: `M${left} ${y + barHeight + 1}H${end}`, stroke: roles.measured });
    }
    return marks;
  }

  function flightMarks({ top, v, peaks }, slots, device, time) {
    const y = top + device * row;
    const held = time === null ? peaks[device] : heldAt(slots, time);
    const wide = (count) => ((peakRight - peakLeft) * count) / v / mostShares;
    const bar = { kind: "rect", x: peakLeft, y, height: barHeight, fill: roles.in_flight, radius: 2 };
    const x = peakLeft + wide(time === null ? held : peaks[device]) + 6;
    const text = formatShare(held, v);
    return [
      ...(time === null ? [] : [{ ...bar, width: wide(peaks[device]), opacity: 0.2 }]),
      { ...bar, width: wide(held) },
      { kind: "text", x, y: y + barHeight / 2 + 0.36 * labelSize, text, size: labelSize },
    ];
  }

  function axisMarks() {
    const marks = [{ kind: "rect", x: left, y: axisY, width: right - left, height: 1, fill: "rule" }];
    const step = roundStep(longest / 7);
    for (let i = 0; i * step <= longest * (1 + 1e-9); i += 1) {
      const x = toX(i * step);
      const text = formatPipelineTime(i * step, unitS);
      marks.push({ kind: "rect", x: x - 0.5, y: axisY, width: 1, height: 4, fill: "rule" });
      marks.push({ kind: "text", x, y: axisY + 16, text, size: 11, anchor: "middle", fill: "muted" });
    }
    return marks;
  }

  return { panels, longest, height, draw, boxOf, slotAt };
}
