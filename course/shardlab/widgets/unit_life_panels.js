// The panels of the unit life and their positions, as in unit_life.py's panels() and
// unit_life_panels.py, but with a selection.

/** The simulated step, followed by the chosen rank's recorded one: [{ title, timeline, lanes, … }]. */
function unitPanels({ measured, max_lanes: maxLanes }, settings) {
  const simulated = simulateUnits(settings);
  const panels = [{ title: "Simulated", timeline: simulated, lanes: [simulated], isMeasured: false }];
  if (measured.length) {
    const timeline = measured[settings.rank];
    const lanes = measured.length <= maxLanes ? measured : [timeline];
    panels.push({ title: `Measured, rank ${settings.rank}`, timeline, lanes, isMeasured: true });
  }
  return panels;
}

/** A timeline's spans, later ones on top, with those in which a gathered unit waits in its buffer. */
function drawnUnitSpans({ spans }, kinds) {
  const byKind = Object.fromEntries(kinds.map((kind) => [kind, spans.filter((span) => span.kind === kind)]));
  for (const { row, end } of byKind.gather) {
    const starts = byKind.whole.filter((span) => span.row === row && span.start >= end).map(({ start }) => start);
    if (starts.length) byKind.waits.push({ row, kind: "waits", start: end, end: Math.min(...starts) });
  }
  return kinds
    .flatMap((kind) => byKind[kind])
    .filter(({ row, kind }) => row !== 0 || (kind !== "forward" && kind !== "backward"));
}

const unitMessages = (timeline) => {
  const { gather, reduce } = messagesOf(timeline);
  return `${plural(gather, "all-gather")}, ${plural(reduce, "reduce-scatter")}`;
};

/**
 * Returns { panels, height, draw(context, theme), boxOf(bar), barAt({ x, y }), timeAt({ x, y }),
 * momentMarks({ panel, time }) }. A bar is { panel, lane, span }.
 */
function unitPicture(scene, settings) {
  const { left, right, gap, curve, head, colors, looks, kinds, roles } = scene;
  const panels = unitPanels(scene, settings);
  const longest = Math.max(...panels.map(({ timeline }) => timeline.step));
  for (const panel of panels) panel.peak = peakOfUnits(panel.timeline);
  const maxBytes = 1.25 * Math.max(settings.parameter_bytes, ...panels.map(({ peak }) => peak.bytes));
  let below = scene.legend_height;
  for (const panel of panels) {
    const rows = panel.timeline.names.length;
    const row = rows <= 6 ? 20 : rows <= 10 ? 17 : rows <= 18 ? 14 : Math.max(5, 252 / rows);
    panel.row = Math.max(row, scene.lane * panel.lanes.length + 3);
    panel.y = below;
    panel.top = below + head;
    panel.bottom = panel.top + panel.row * rows;
    panel.floor = panel.bottom + gap + curve;
    panel.laneHeight = (panel.row - 3) / panel.lanes.length;
    panel.bars = panel.lanes.flatMap((timeline, lane) =>
      drawnUnitSpans(timeline, kinds).map((span) => ({ panel, lane, span })),
    );
    below = panel.floor + scene.below;
  }
  const axisY = below - scene.below;
  const height = axisY + scene.axis_height;

  const toX = (time) => left + clamp(time / longest, 0, 1) * (right - left);
  const toY = (panel, bytes) => panel.floor - (bytes / maxBytes) * curve;

  function boxOf({ panel, lane, span }) {
    const x = toX(span.start);
    const y = panel.top + span.row * panel.row + 1 + lane * panel.laneHeight;
    const barHeight = panel.laneHeight - (panel.lanes.length > 1 ? 1 : 0);
    return { x, y, width: Math.max(toX(span.end) - x, 1), height: barHeight };
  }

  function barAt(at) {
    const near = 1.5; // so that thin bars can be hit
    for (const panel of panels) {
      const bar = panel.bars.findLast((each) => {
        const { x, y, width, height: high } = boxOf(each);
        return at.x >= x - near && at.x <= x + width + near && at.y >= y && at.y <= y + high;
      });
      if (bar) return bar;
    }
    return null;
  }

  function timeAt({ x, y }) {
    const panel = panels.find(({ top, floor }) => y >= top && y <= floor);
    if (!panel || x < left || x > right) return null;
    const time = ((x - left) / (right - left)) * longest;
    return time <= panel.timeline.step ? { panel, time } : null;
  }

  // ---- marks ----

  function draw(context, theme) {
    const marks = [...scene.legend];
    for (const panel of panels) {
      marks.push(...headMarks(panel), ...rowMarks(context, theme, panel), ...curveMarks(context, theme, panel));
    }
    marks.push(...axisMarks());
    return paint(context, marks, theme);
  }

  function headMarks({ y, title, timeline, isMeasured }) {
    const fill = isMeasured ? roles.measured : roles.predicted;
    const text = `${unitMessages(timeline)} · ${formatSeconds(timeline.step)}`;
    return [
      { kind: "rect", x: 0, y: y + 5, width: 10, height: 10, fill, radius: 2 },
      { kind: "text", x: 16, y: y + 14, text: title, weight: 600 },
      { kind: "text", x: right, y: y + 14, text, size: 11, anchor: "end", fill: "muted" },
    ];
  }

  function rowMarks(context, theme, panel) {
    const { top, row, floor, timeline, bars } = panel;
    const marks = [];
    const ends = timeline.spans.filter(({ kind }) => kind === "forward").map(({ end }) => end);
    if (ends.length) {
      const x = toX(Math.max(...ends));
      const label = { kind: "text", y: top - 5, size: 11, fill: "muted" };
      marks.push({ kind: "path", d: `M${x} ${top - 14}V${floor}`, stroke: "muted", dash: "2 3" });
      marks.push({ ...label, x: x - 6, text: "forward", anchor: "end" }, { ...label, x: x + 6, text: "backward" });
    }
    const every = Math.max(1, Math.ceil(13 / row));
    context.font = `11px ${theme.font}`;
    timeline.names.forEach((name, index) => {
      const y = top + index * row;
      marks.push({ kind: "path", d: `M${left} ${y + row - 1}H${right}`, stroke: "rule", opacity: 0.5 });
      if (index % every) return;
      let text = name;
      for (let cut = 1; context.measureText(text).width > left - 10; cut += 1) text = `…${name.slice(cut)}`;
      marks.push({ kind: "text", x: left - 8, y: y + row / 2 + 4, text, size: 11, anchor: "end", fill: "muted" });
    });
    for (const bar of bars) {
      const { kind } = bar.span;
      const [fill, opacity, isHatched, ink] = looks[kind];
      const box = boxOf(bar);
      marks.push({ kind: "rect", ...box, fill, opacity, hatch: isHatched });
      if ((kind !== "forward" && kind !== "backward") || box.height < 12) continue;
      const text = [kind, kind[0].toUpperCase()].find((each) => context.measureText(each).width < box.width - 4);
      if (!text) continue;
      const place = { x: box.x + box.width / 2, y: box.y + box.height / 2 + 4, size: 11, anchor: "middle" };
      marks.push({ kind: "text", ...place, text, fill: ink });
    }
    return marks;
  }

  function curveMarks(context, theme, panel) {
    const { timeline, floor, peak } = panel;
    const marks = [];
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(maxBytes, 1) / 4)));
    for (let bytes = 0; bytes <= maxBytes; bytes += step) {
      const y = toY(panel, bytes);
      marks.push({ kind: "path", d: `M${left} ${y}H${right}`, stroke: "rule", opacity: 0.6 });
      const text = bytes ? formatBytes(bytes) : "0";
      marks.push({ kind: "text", x: left - 8, y: y + 4, text, size: 11, anchor: "end", fill: "muted" });
    }
    const edges = new Float64Array(timeline.times.length);
    const areas = UNIT_CATEGORIES.map((name) => {
      timeline.live[name].forEach((bytes, index) => (edges[index] += bytes));
      const steps = timeline.times.map((time, i) => `H${toX(time)}V${toY(panel, edges[i])}`).join("");
      const d = `M${toX(timeline.times[0])} ${floor}${steps}H${toX(timeline.step)}V${floor}Z`;
      return { kind: "path", d, fill: colors[name] };
    });
    marks.push(...areas.reverse());
    const level = toY(panel, settings.parameter_bytes);
    marks.push({ kind: "path", d: `M${left} ${level}H${right}`, stroke: "muted", dash: "4 3" });
    const [x, y] = [toX(timeline.times[peak.index]), toY(panel, peak.bytes)];
    const text = `peak ${formatBytes(peak.bytes)}`;
    context.font = `600 12px ${theme.font}`;
    const half = context.measureText(text).width / 2;
    const at = clamp(x, left + half + 4, right - half - 4);
    const ring = { x: x - 4, y: y - 4, width: 8, height: 8, radius: 4, stroke_width: 2 };
    const backdrop = { x: at - half - 2, y: y - 21, width: 2 * half + 4, height: 15 };
    marks.push(
      { kind: "rect", ...ring, fill: "surface", stroke: "text" },
      { kind: "rect", ...backdrop, fill: "surface", opacity: 0.85 },
      { kind: "text", x: at, y: y - 9, text, weight: 600, anchor: "middle" },
    );
    return marks;
  }

  function axisMarks() {
    const marks = [{ kind: "path", d: `M${left} ${axisY}H${right}`, stroke: "rule" }];
    const step = roundStep(longest / 6);
    const [unit, scale] = longest < 1e-3 ? ["µs", 1e6] : longest < 1 ? ["ms", 1e3] : ["s", 1];
    const decimals = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
    for (let i = 0; i * step <= longest * (1 + 1e-9); i += 1) {
      const x = toX(i * step);
      const text = `${(i * step * scale).toFixed(decimals)} ${unit}`;
      marks.push({ kind: "path", d: `M${x} ${axisY}V${axisY + 4}`, stroke: "rule" });
      const at = Math.min(x, right - 10);
      marks.push({ kind: "text", x: at, y: axisY + 16, text, size: 11, anchor: "middle", fill: "muted" });
    }
    return marks;
  }

  /** A line through the rows and the curve at a moment. */
  function momentMarks({ panel, time }) {
    const d = `M${toX(time)} ${panel.top}V${panel.floor}`;
    return [
      { kind: "path", d, stroke: "surface", stroke_width: 4 },
      { kind: "path", d, stroke: "text", stroke_width: 1.5 },
    ];
  }

  return { panels, height, draw, boxOf, barAt, timeAt, momentMarks };
}
