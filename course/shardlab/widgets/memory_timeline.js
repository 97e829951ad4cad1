// The memory timeline: logs and the scale of bytes come from memory_timeline.py; this file chooses a
// run, a rank and a moment.

function build(model, signal) {
  const scene = model.get("scene");
  const { plot: box, categories, predicted } = scene;
  let run = null;
  let log = null;
  let selected = null; // index of an entry of the log

  const { root, head, sub, plot, stage, small, refresh, mark } = frame({
    name: "memory-timeline", title: "Live memory by category", scene, small: "", signal,
    label:
      "Memory timeline. Left and right move through the log, P goes to the peak, Page Up and Page Down move " +
      "from phase to phase, up and down from rank to rank, plus and minus zoom, Shift and arrows pan, 0 shows all.",
    hint: "Hover over a moment, or use the arrow keys, for its bytes. P goes to the peak. Click, then scroll to zoom and drag to pan.",
    headings: () => ["bytes", ...categories.map(([category]) => category), "total"], rows,
    draw: (context, theme) => drawMemory(context, theme, { scene, run, log, view, selected }),
  });
  const pick = (label, options, isShown) => {
    const node = make("select", { "aria-label": label });
    for (const value of options) node.append(make("option", { value }, value));
    if (isShown) sub.before(node);
    return node;
  };
  const runs = pick("Run", scene.runs.map(({ name }) => name), scene.runs.length > 1);
  const ranks = pick("Rank", [], scene.runs.some((each) => each.ranks.length > 1));
  const view = timeView({
    root, head, plot, stage, box, keys, signal,
    whole: () => log.span_s,
    focus: () => (selected === null ? undefined : log.times_s[selected]),
    point: (at) => select(at && entryNear(at.x)),
  });

  // ---- the log that is drawn ----

  function show(name, rank) {
    const other = run === null || name !== run.name || rank !== log.rank;
    run = scene.runs.find((each) => each.name === name) ?? scene.runs[0];
    log = new MemoryLog(run.ranks[clamp(rank, 0, run.ranks.length - 1)], categories);
    if (!other) return;
    runs.value = run.name;
    ranks.replaceChildren(
      ...run.ranks.map(({ rank: each, peak_bytes }) =>
        make("option", { value: each }, `rank ${each} · peak ${formatBytes(peak_bytes)}`)),
    );
    ranks.value = log.rank;
    const { times_s, entries, peak_bytes, peak_phase } = log;
    Object.assign(root.dataset, {
      run: run.name, rank: log.rank, worldSize: run.ranks.length, peakBytes: peak_bytes, peakS: log.peak_s,
      peakPhase: peak_phase, points: times_s.length,
      phases: [...new Set(log.phases.map(([phase]) => phase))].join(" "),
    });
    const peak = run.ranks.length > 1 ? "peak" : `peak ${formatBytes(peak_bytes)}`;
    sub.textContent = peak_bytes ? `${peak}${peak_phase && ` in ${peak_phase}`}` : "no tensors recorded";
    small.textContent =
      times_s.length < entries
        ? `${times_s.length} of the log's ${entries.toLocaleString("en-US")} entries are drawn, including every peak.`
        : `${entries} entries in the log.`;
    refresh(log.summary(run.name));
    select(null);
    view.setSpan(...log.view_s);
  }

  /** Called when the reader chooses. */
  function choose(name, rank) {
    const chosen = scene.runs.find((each) => each.name === name);
    show(name, clamp(rank, 0, chosen.ranks.length - 1));
    setTraits(model, { shown: run.name, rank: log.rank });
  }

  function rows() {
    const at = log.moments.map(([name, counts]) => [name, ...counts, sum(counts)]);
    const extra = categories.some(([name]) => name in predicted)
      ? [["predicted", ...categories.map(([name]) => predicted[name] ?? ""), ""]]
      : [];
    return [...at, ["peak of each", ...log.category_peaks, log.peak_bytes], ...extra];
  }

  // ---- the selected moment ----

  function select(index) {
    selected = index === null || index < 0 ? null : index;
    if (selected === null) mark("");
    else mark(...log.describe(selected));
  }

  /** The highest entry within the pixel under the pointer. */
  function entryNear(x) {
    if (x < box.left || x > box.right) return null;
    const [from, to] = [x - 0.75, x + 0.75].map((edge) => log.entryAt(view.toTime(edge)));
    return to < 0 ? null : log.highest(Math.max(from, 0), 1, (i) => i <= to);
  }

  /** Selects an entry, and moves the view to it if necessary. */
  function visit(index) {
    if (!log.times_s.length) return;
    const at = clamp(index, 0, log.times_s.length - 1);
    const time = log.times_s[at];
    if (time < view.from || time > view.to) {
      const width = view.to - view.from;
      view.setSpan(time - width / 2, time + width / 2);
    }
    select(at);
  }

  function keys() {
    const step = (direction) => {
      const from = selected ?? (direction > 0 ? log.entryAt(view.from) : log.entryAt(view.to) + 1);
      const twoPixels = ((view.to - view.from) / (box.right - box.left)) * 2;
      visit(log.next(from, direction, twoPixels));
    };
    const stepPhase = (direction) => {
      const next = log.nextPhase(selected ?? (direction > 0 ? -1 : Infinity), direction);
      if (next !== undefined) visit(next);
    };
    return {
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      ArrowUp: () => choose(run.name, log.rank - 1),
      ArrowDown: () => choose(run.name, log.rank + 1),
      PageUp: () => stepPhase(-1),
      PageDown: () => stepPhase(1),
      Home: () => visit(0),
      End: () => visit(log.times_s.length - 1),
      p: () => visit(log.peakEntry),
      Escape: () => select(null),
    };
  }

  runs.addEventListener("change", () => choose(runs.value, log.rank), { signal });
  ranks.addEventListener("change", () => choose(run.name, Number(ranks.value)), { signal });
  const shown = () => show(model.get("shown"), model.get("rank"));
  onTraits(model, ["shown", "rank"], shown, signal);

  shown();
  return root;
}

export default widget(build);
