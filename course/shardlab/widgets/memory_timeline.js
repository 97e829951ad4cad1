// The memory timeline: logs and the scale of bytes come from memory_timeline.py; this file draws the
// visible part and selects a moment.

function build(model, signal) {
  const scene = model.get("scene");
  const { plot: box, categories, predicted } = scene;
  const byCategory = categories.some(([name]) => name in predicted);
  const sum = (counts) => counts.reduce((a, b) => a + b, 0);
  let run = null;
  let log = null;
  let selected = null; // index of an entry of the log

  const { root, head, plot, detail } = card({
    name: "memory-timeline", title: "Live memory by category",
    label:
      "Memory timeline. Left and right move through the log, P goes to the peak, Page Up and Page Down move " +
      "from phase to phase, up and down from rank to rank, plus and minus zoom, Shift and arrows pan, 0 shows all.",
    hint: "Hover over a moment, or use the arrow keys, for its bytes. P goes to the peak. Click, then scroll to zoom and drag to pan.",
  });
  const pick = (label, options) => {
    const node = make("select", { "aria-label": label });
    for (const [value, text] of options) node.append(make("option", { value }, text));
    return node;
  };
  const runs = pick("Run", scene.runs.map(({ name }) => [name, name]));
  const ranks = pick("Rank", []);
  const sub = make("span", { class: "shardlab-sub" });
  if (scene.runs.length > 1) head.append(runs);
  if (scene.runs.some((each) => each.ranks.length > 1)) head.append(ranks);
  head.append(sub);

  const stage = createStage({ root, plot, width: scene.width, height: scene.height, draw, signal });
  const small = make("p", { class: "shardlab-small" });
  const headings = () => ["bytes", ...categories.map(([category]) => category), "total"];
  const table = tableDetails(headings, rows, signal);
  root.append(head, plot, detail, small, table.node);

  const view = timeView({
    root, head, plot, stage, box, keys, signal,
    whole: () => log.span_s,
    focus: () => (selected === null ? undefined : log.times_s[selected]),
    point: (at) => select(at && entryNear(at.x)),
  });
  const { setSpan, toX, toTime } = view;
  const toY = (count) => box.bottom - (count / scene.max_bytes) * (box.bottom - box.top);

  // ---- the log that is drawn ----

  function show(name, rank) {
    const other = run === null || name !== run.name || rank !== log.rank;
    run = scene.runs.find((each) => each.name === name) ?? scene.runs[0];
    log = run.ranks[clamp(rank, 0, run.ranks.length - 1)];
    if (!other) return;
    runs.value = run.name;
    ranks.replaceChildren(
      ...run.ranks.map(({ rank: each, peak_bytes }) =>
        make("option", { value: each }, `rank ${each} · peak ${formatBytes(peak_bytes)}`)),
    );
    ranks.value = log.rank;
    const { times_s, entries, peak_phase } = log;
    root.dataset.run = run.name;
    root.dataset.rank = log.rank;
    root.dataset.worldSize = run.ranks.length;
    root.dataset.peakBytes = log.peak_bytes;
    root.dataset.peakS = log.peak_s;
    root.dataset.peakPhase = peak_phase;
    root.dataset.points = times_s.length;
    root.dataset.phases = [...new Set(log.phases.map(([phase]) => phase))].join(" ");
    const peak = run.ranks.length > 1 ? "peak" : `peak ${formatBytes(log.peak_bytes)}`;
    sub.textContent = log.peak_bytes
      ? `${peak}${peak_phase && ` in ${peak_phase}`}`
      : "no tensors recorded";
    small.textContent =
      times_s.length < entries
        ? `${times_s.length} of the log's ${entries.toLocaleString("en-US")} entries are drawn, including every peak.`
        : `${entries} entries in the log.`;
    stage.canvas.setAttribute("aria-label", summary());
    table.refresh();
    select(null);
    setSpan(...log.view_s);
  }

  /** Called when the reader chooses. */
  function choose(name, rank) {
    const place = (at) => clamp(at, 0, scene.runs.find((each) => each.name === name).ranks.length - 1);
    show(name, place(rank));
    setTraits(model, { shown: run.name, rank: log.rank });
  }

  function summary() {
    const name = run.name && `, ${run.name}`;
    if (!log.peak_bytes) return `Memory timeline of rank ${log.rank}${name}: no tensors recorded.`;
    const phase = log.peak_phase && ` in ${log.peak_phase}`;
    const parts = listed(bytesAt(log.peak_s));
    return (
      `Memory timeline of rank ${log.rank}${name}: peak ${exactBytes(log.peak_bytes)} ` +
      `at ${sinceZero(log.peak_s)}${phase}: ${parts}.`
    );
  }

  function rows() {
    const at = log.moments.map(([name, counts]) => [name, ...counts, sum(counts)]);
    const extra = categories.some(([name]) => name in predicted)
      ? [["predicted", ...categories.map(([name]) => predicted[name] ?? ""), ""]]
      : [];
    return [...at, ["peak of each", ...log.category_peaks, log.peak_bytes], ...extra];
  }

  // ---- moments ----

  const listed = (counts) =>
    categories
      .map(([name], row) => [name, counts[row]])
      .filter(([, count]) => count > 0)
      .map(([name, count]) => `${name} ${formatBytes(count)}`)
      .join(", ") || "nothing";

  /** A time as text, relative to the 0 of the axis. */
  function sinceZero(time) {
    const seconds = time - log.zero_s;
    return seconds < 0 ? `−${formatSeconds(-seconds)}` : formatSeconds(seconds);
  }

  const countsOf = (index) => (index < 0 ? categories.map(() => 0) : log.bytes.map((row) => row[index]));
  const bytesAt = (time) => countsOf(entryAt(time));
  const peakEntry = () => entryAt(log.peak_s);

  /** The last entry at or before this time; -1 before the first. */
  function entryAt(time) {
    let [low, high] = [0, log.times_s.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (log.times_s[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** The phases at this time, outer ones first. A phase that ends when another begins is not included. */
  function phasesAt(time) {
    const here = log.phases.filter(([, start, end]) => start <= time && time < end);
    const names = here.length ? here : log.phases.filter(([, , end]) => end === time);
    return [...new Set(names.map(([name]) => name))];
  }

  function select(index) {
    selected = index;
    if (index === null || index < 0) {
      selected = null;
      detail.textContent = "";
      for (const name of ["selectedS", "selectedBytes", "selectedPhase"]) delete root.dataset[name];
    } else {
      const time = log.times_s[index];
      const counts = countsOf(index);
      const phases = phasesAt(time);
      const where = phases.length ? ` in ${phases.join(", ")}` : "";
      detail.textContent = `${sinceZero(time)}${where}: ${exactBytes(sum(counts))} live: ${listed(counts)}`;
      root.dataset.selectedS = time;
      root.dataset.selectedBytes = sum(counts);
      root.dataset.selectedPhase = phases.join(" ");
    }
    stage.redraw();
  }

  /** Selects an entry, and moves the view to it if necessary. */
  function visit(index) {
    if (!log.times_s.length) return;
    const at = clamp(index, 0, log.times_s.length - 1);
    const time = log.times_s[at];
    if (time < view.from || time > view.to) {
      const width = view.to - view.from;
      setSpan(time - width / 2, time + width / 2);
    }
    select(at);
  }

  /** Moves to the next entry at least two pixels away; among close entries, to the highest. */
  function step(direction) {
    const { times_s } = log;
    const from = selected ?? (direction > 0 ? entryAt(view.from) : entryAt(view.to) + 1);
    const apart = ((view.to - view.from) / (box.right - box.left)) * 2;
    const near = times_s[clamp(from, 0, times_s.length - 1)];
    let at = from + direction;
    while (at > 0 && at < times_s.length - 1 && Math.abs(times_s[at] - near) < apart) at += direction;
    const first = clamp(at, 0, times_s.length - 1);
    let best = first;
    for (let i = first; i >= 0 && i < times_s.length && Math.abs(times_s[i] - times_s[first]) < apart; i += direction) {
      if (sum(countsOf(i)) > sum(countsOf(best))) best = i;
    }
    visit(best);
  }

  /** Moves to the last entry of the next or previous phase. */
  function stepPhase(direction) {
    const ends = [...new Set(log.phases.map(([, , end]) => entryAt(end)))].sort((a, b) => a - b);
    const from = selected ?? (direction > 0 ? -1 : Infinity);
    const next = direction > 0 ? ends.find((at) => at > from) : ends.findLast((at) => at < from);
    if (next !== undefined) visit(next);
  }

  // ---- drawing ----

  function draw(context, theme) {
    drawBands(context, theme);
    let drawn = paint(context, scene.background, theme);
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    context.clip();
    drawn += drawAreas(context);
    context.restore();
    drawn += drawPhases(context, theme);
    drawn += drawTimeAxis(context, theme, { ...box, from: view.from - log.zero_s, to: view.to - log.zero_s });
    drawn += paint(context, [...scene.lines, ...otherPeaks(context, theme)], theme);
    if (log.peak_bytes) drawPeak(context, theme);
    if (selected !== null) drawMoment(context, theme);
    drawPanel(context, theme);
    return drawn;
  }

  /** Each category from the bottom up to its upper edge, the lower ones drawn on top. */
  function drawAreas(context) {
    const { times_s, bytes } = log;
    const first = Math.max(entryAt(view.from), 0);
    const last = entryAt(view.to);
    if (last < first) return 0;
    const edges = []; // of each category, entry by entry
    const below = new Float64Array(last - first + 1);
    for (const row of bytes) {
      for (let i = first; i <= last; i += 1) below[i - first] += row[i];
      edges.push(below.slice());
    }
    const end = toX(log.span_s[1]);
    for (let row = edges.length - 1; row >= 0; row -= 1) {
      if (!log.category_peaks[row]) continue;
      context.fillStyle = categories[row][1];
      context.beginPath();
      context.moveTo(toX(times_s[first]), box.bottom);
      for (let i = first; i <= last; i += 1) {
        const y = toY(edges[row][i - first]);
        context.lineTo(toX(times_s[i]), y);
        context.lineTo(i < last ? toX(times_s[i + 1]) : Math.min(end, box.right + 1), y);
      }
      context.lineTo(Math.min(end, box.right + 1), box.bottom);
      context.fill();
    }
    return (last - first + 1) * edges.length;
  }

  function drawBands(context, theme) {
    context.fillStyle = theme.text;
    context.globalAlpha = 0.05;
    for (const [, start, end] of log.phases) {
      const [from, to] = [start, end].map((time) => clamp(toX(time), box.left, box.right));
      context.fillRect(from, box.top, to - from, box.bottom - box.top);
    }
    context.globalAlpha = 1;
  }

  function drawPhases(context, theme) {
    const free = new Array(scene.lanes).fill(box.left);
    let drawn = 0;
    for (const [name, start, end, lane] of log.phases) {
      const [left, right] = [toX(start), toX(end)];
      if (lane >= scene.lanes || right < box.left || left > box.right) continue;
      drawn += 1;
      const [from, to] = [Math.max(left, box.left), Math.min(right, box.right)];
      const y = 4 + scene.lane * lane;
      context.globalAlpha = 0.6;
      context.fillStyle = theme.muted;
      context.fillRect(from, y + 13, Math.max(to - from - 1, 1), 3);
      context.globalAlpha = 0.35;
      context.strokeStyle = theme.text;
      context.lineWidth = 1;
      context.setLineDash([2, 3]);
      context.beginPath();
      for (const x of [left, right]) {
        if (x < box.left || x > box.right) continue;
        context.moveTo(x, box.top);
        context.lineTo(x, box.bottom);
      }
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      // A name may extend past its bar; the next one then starts further right, if it fits.
      context.font = `11px ${theme.font}`;
      const wide = context.measureText(name).width + 6;
      const at = Math.max(from, free[lane]);
      if (at > from && at + wide > to) continue;
      paintText(context, { x: at, y: y + 10, text: name, size: 11, fill: "muted" }, theme);
      free[lane] = at + wide;
    }
    return drawn;
  }

  /** The same rank's peaks in other runs: dotted. Lines close together share a label. */
  function otherPeaks(context, theme) {
    const others = scene.runs
      .filter((each) => each !== run)
      .map((each) => ({ name: each.name, bytes: each.ranks[log.rank]?.peak_bytes }))
      .filter(({ bytes }) => bytes !== undefined)
      .sort((a, b) => b.bytes - a.bytes);
    const marks = [];
    const close = [];
    for (const other of others) {
      const y = toY(other.bytes);
      const d = `M${box.left} ${y}H${box.right}`;
      marks.push({ kind: "path", d, stroke: "muted", stroke_width: 1.5, dash: "1 4" });
      if (close.length && y - toY(close.at(-1)[0].bytes) < 14) close.at(-1).push(other);
      else close.push([other]);
    }
    context.font = `11px ${theme.font}`;
    for (const group of close) {
      const y = toY(group[0].bytes);
      const each = group.map(({ name, bytes }) => `${name} ${formatBytes(bytes)}`).join(", ");
      const text = `peak${group.length > 1 ? "s" : ""}: ${each}`;
      const width = context.measureText(text).width + 8;
      const backdrop = { x: box.right - 2 - width, y: y - 16, width, height: 14 };
      marks.push(
        { kind: "rect", ...backdrop, fill: "surface", opacity: 0.8 },
        { kind: "text", x: box.right - 6, y: y - 5, text, size: 11, anchor: "end" },
      );
    }
    return marks;
  }

  function drawPeak(context, theme) {
    const [x, y] = [toX(log.peak_s), toY(log.peak_bytes)];
    if (x < box.left || x > box.right) return;
    context.beginPath();
    context.arc(x, y, 4, 0, 7);
    context.fillStyle = theme.surface;
    context.fill();
    context.strokeStyle = theme.text;
    context.lineWidth = 2;
    context.stroke();
    const text = `peak ${formatBytes(log.peak_bytes)}`;
    context.font = `600 12px ${theme.font}`;
    const half = context.measureText(text).width / 2 + 4;
    paintText(
      context,
      { x: clamp(x, box.left + half, box.right - half), y: y - 10, text, weight: 600, anchor: "middle" },
      theme,
    );
  }

  function drawMoment(context, theme) {
    const x = toX(log.times_s[selected]);
    if (x < box.left || x > box.right) return;
    context.strokeStyle = theme.surface;
    context.lineWidth = 4;
    context.beginPath();
    context.moveTo(x, box.top);
    context.lineTo(x, box.bottom);
    context.stroke();
    context.strokeStyle = theme.text;
    context.lineWidth = 1.5;
    context.stroke();
  }

  /** The legend, with the bytes of each category at the selected moment, else at the peak. */
  function drawPanel(context, theme) {
    const x = box.right + 16;
    const y = box.top + 12;
    const measuredX = scene.width - (byCategory ? 76 : 4);
    const predictedX = scene.width - 4;
    const counts = countsOf(selected ?? peakEntry());
    const when = selected === null || selected === peakEntry()
      ? "at the peak"
      : `at ${sinceZero(log.times_s[selected])}`;
    const write = (mark) => paintText(context, mark, theme);
    write({ x, y, text: when, weight: 600 });
    if (byCategory) write({ x: predictedX, y, text: "predicted", size: 11, anchor: "end", fill: "muted" });
    categories.forEach(([name, color], row) => {
      const below = y + 22 * (categories.length - row);
      context.fillStyle = color;
      roundedBar(context, x, below - 10, 11, 11, 2);
      context.fill();
      write({ x: x + 17, y: below, text: name });
      write({ x: measuredX, y: below, text: formatBytes(counts[row]), anchor: "end" });
      if (!(name in predicted)) return;
      const text = formatBytes(predicted[name]);
      write({ x: predictedX, y: below, text, anchor: "end" });
      context.fillStyle = scene.predicted_color;
      const width = context.measureText(text).width;
      context.fillRect(predictedX - width, below + 3, width, 2);
    });
    const below = y + 22 * categories.length + 8;
    context.fillStyle = theme.rule;
    context.fillRect(x, below, scene.width - 4 - x, 1);
    write({ x: x + 17, y: below + 18, text: "total", weight: 600 });
    write({ x: measuredX, y: below + 18, text: formatBytes(sum(counts)), anchor: "end", weight: 600 });
  }

  // ---- mouse and keyboard ----

  /** The highest entry within the pixel under the pointer. */
  function entryNear(x) {
    if (x < box.left || x > box.right) return null;
    const from = entryAt(toTime(x - 0.75));
    const to = entryAt(toTime(x + 0.75));
    let best = Math.max(from, 0);
    for (let i = best; i <= to; i += 1) if (sum(countsOf(i)) > sum(countsOf(best))) best = i;
    return to < 0 ? null : best;
  }

  runs.addEventListener("change", () => choose(runs.value, log.rank), { signal });
  ranks.addEventListener("change", () => choose(run.name, Number(ranks.value)), { signal });

  function keys() {
    return {
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      ArrowUp: () => choose(run.name, log.rank - 1),
      ArrowDown: () => choose(run.name, log.rank + 1),
      PageUp: () => stepPhase(-1),
      PageDown: () => stepPhase(1),
      Home: () => visit(0),
      End: () => visit(log.times_s.length - 1),
      p: () => visit(peakEntry()),
      Escape: () => select(null),
    };
  }

  const shown = () => show(model.get("shown"), model.get("rank"));
  onTraits(model, ["shown", "rank"], shown, signal);

  shown();
  return root;
}

export default widget(build);
