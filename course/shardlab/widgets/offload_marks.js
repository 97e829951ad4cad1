// The picture of the offload times, and its parts in words. `all`: the outcome of each placement.

const fitsIn = (outcome, settings) => outcome.device_bytes <= settings.capacity_bytes;
const fitWords = (outcome, settings) => (fitsIn(outcome, settings) ? "fits" : "does not fit");
const offloadRatio = (name, all) => all[name].step_s / all.device.step_s;

function describePlacement({ names }, settings, all, name) {
  const { step_s, compute_s, device_bytes, host_bytes, nvme_bytes } = all[name];
  const share = Math.round((100 * compute_s) / step_s);
  const away = [[host_bytes, "the host"], [nvme_bytes, "NVMe"]]
    .filter(([bytes]) => bytes > 0)
    .map(([bytes, where]) => `${formatSi(bytes, "B")} on ${where}`);
  const held = [`${formatSi(device_bytes, "B")} on the device`, ...away].join(", ");
  const room = fitsIn(all[name], settings) ? "fits" : `does not fit in ${formatSi(settings.capacity_bytes, "B")}`;
  return (
    `${names[name]}: ${formatSeconds(step_s)}, ${threeDigits(offloadRatio(name, all))} × no offload; ` +
    `the device computes ${share}% of the time; each rank has ${held}: ${room}`
  );
}

function placementRow({ names }, settings, all, name) {
  const { step_s, compute_s, device_bytes, host_bytes, nvme_bytes } = all[name];
  return [
    names[name], formatSeconds(step_s), threeDigits(offloadRatio(name, all)), formatSeconds(compute_s),
    ...[device_bytes, host_bytes, nvme_bytes].map((count) => formatSi(count, "B")),
    fitsIn(all[name], settings) ? "yes" : "no",
  ];
}

// ---- bars of the step ----

/** What a bar computes or moves: a key of scene.colors. */
function contentOf({ part, piece }, { placement }) {
  if (piece === "compute") return part;
  if (piece === "host_update") return "Adam";
  if (placement === "swap" || (piece === "nvme" && part === "update")) return "states";
  return piece === "to_host" ? "gradients" : "parameters";
}

function describeOffloadBar({ rows }, settings, bar) {
  const seconds = bar.end - bar.start;
  const [, place] = rows.find(([name]) => name === bar.piece);
  const { link_bytes_per_s: link, nvme_bytes_per_s: nvme, world_size: n, host_parameters_per_s: host } = settings;
  const how = {
    compute: () => "",
    host_update: () => ` (${formatCount(seconds * host)} parameters at ${formatCount(host)}/s)`,
    nvme: () => ` (${formatSi((seconds * nvme) / n, "B")} at ${formatSi(nvme / n, "B/s")} per rank)`,
  }[bar.piece] ?? (() => ` (${formatSi(seconds * link, "B")} at ${formatSi(link, "B/s")})`);
  return (
    `${place}: ${contentOf(bar, settings)}, ${formatSeconds(seconds)}${how()}, in ${bar.part}, ` +
    `from ${formatSeconds(bar.start)} to ${formatSeconds(bar.end)}`
  );
}

const offloadX = ({ left, right }, { step_s }, time) => left + (time / step_s) * (right - left);

function offloadBox(scene, outcome, { piece, start, end }) {
  const x = offloadX(scene, outcome, start);
  const y = scene.step_top + scene.rows.findIndex(([name]) => name === piece) * scene.row + 4;
  return { x, y, width: Math.max(1, offloadX(scene, outcome, end) - x), height: scene.row - 8 };
}

function offloadStepMarks(context, theme, scene, settings, outcome) {
  const { left, right, step_top: top, row, rows, names } = scene;
  const { parts, bars, step_s } = outcome;
  const bottom = top + rows.length * row;
  const toX = (time) => offloadX(scene, outcome, time);
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
    if (start) marks.push({ kind: "path", d: `M${toX(start)} ${top}V${bottom}`, stroke: "rule", opacity: 0.8 });
  }
  for (const bar of bars) {
    const content = contentOf(bar, settings);
    const [fill, ink] = scene.colors[content];
    const box = offloadBox(scene, outcome, bar);
    const seconds = formatSeconds(bar.end - bar.start);
    marks.push({ kind: "rect", ...box, fill, radius: 2 });
    const text = [`${content} ${seconds}`, seconds].find((label) => wide(label) < box.width - 8);
    if (text) marks.push({ kind: "text", x: box.x + 6, y: box.y + 13, text, size: 11, fill: ink });
  }
  drawTimeAxis(context, theme, { from: 0, to: step_s, left, right, bottom });
  return marks;
}

// ---- all placements ----

function placementMarks(scene, settings, all) {
  const { left, row, all_top: top, bars_right: right, names, roles } = scene;
  const slowest = Math.max(...PLACEMENTS.map((name) => all[name].step_s));
  const near = Math.max(all.device.step_s, all[settings.placement].step_s);
  const axisSeconds = Math.min(slowest, scene.longest_bar * near);
  const marks = [];
  PLACEMENTS.forEach((name, index) => {
    const each = all[name];
    const y = top + index * row;
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
      const width = Math.min((seconds / axisSeconds) * (right - left), right - at);
      bar({ x: at, width, fill });
      at += width;
    }
    if (each.step_s > 1.0001 * axisSeconds) write({ x: right + 2, text: "»", weight: 400 });
    write({ x: right + 70, text: formatSeconds(each.step_s), anchor: "end", weight: 400 });
    write({ x: right + 126, text: `${threeDigits(offloadRatio(name, all))} ×`, anchor: "end" });
    const fits = fitsIn(each, settings);
    marks.push({
      kind: "rect", x: right + 150, y: y + 8, width: 10, height: 10,
      radius: fits ? 5 : 0, fill: fits ? roles.right : roles.wrong,
    });
    write({ x: right + 167, text: `${formatSi(each.device_bytes, "B")}: ${fitWords(each, settings)}`, weight: 400 });
  });
  return marks;
}
