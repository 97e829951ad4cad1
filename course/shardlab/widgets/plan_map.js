// The planner's map: Python computes all places and words; this file has the filters and the selection.

function build(model, signal) {
  const { items, filters, ...scene } = model.get("scene");
  const names = Object.keys(filters);
  let settings = model.get("settings");
  let shown = []; // the items that the filters let through, from the least memory on
  let selected = null; // an item
  let hovered = null;
  let scatter = null; // kept while the filters stay

  const controls = names.map((name) => choice({
    label: name, options: filters[name].map((value) => [value, value]), value: settings[name], signal,
    onInput: (value) => send({ [name]: value }),
  }));
  const { root, refresh, mark, plot, stage } = frame({
    name: "plan-map", title: "Memory and time of layouts", scene, small: scene.small, draw, keys, signal,
    controls: [controls.map(({ node }) => node)],
    label:
      "Layouts by memory and time. Left and right arrow keys go along the frontier to less and more memory, up and " +
      "down to the next slower and faster layout, P to the next published run, Home and Escape to the fastest that " +
      "fits, End to the least memory.",
    hint: scene.none,
    headings: () => scene.headings,
    rows: () => shown.map(({ name, row }) => [name, ...row]),
    point: (pointer) => {
      hovered = pointer && planMapUnder(shown, pointer);
      describe();
    },
  });

  function send(changes) {
    settings = { ...settings, ...changes };
    setTraits(model, { settings });
    show();
  }

  function show() {
    settings = model.get("settings");
    names.forEach((name, at) => {
      controls[at].set(settings[name]);
      root.dataset[name.toLowerCase()] = settings[name];
    });
    const passes = (item) => names.every((name, at) => ["any", item.filters[at]].includes(settings[name]));
    shown = items.filter(passes);
    hovered = null;
    selected = shown.find(({ name }) => name === settings.layout) ?? fastest() ?? null;
    root.dataset.shown = shown.length;
    scatter = keptPicture(scene.width, (context, theme) =>
      paint(context, scene.background, theme) + paint(context, planMapPoints(scene, shown), theme));
    refresh(`${scene.summary} ${selected?.text ?? scene.none}`);
    describe();
  }

  function fastest() {
    const fitting = shown.filter(({ fits }) => fits);
    return planMapBySeconds(fitting.length ? fitting : shown)[0];
  }

  function describe() {
    mark((hovered ?? selected)?.text ?? "", selected ? { selected: selected.name } : {});
  }

  const select = (item) => item && send({ layout: item.name });

  function keys() {
    const along = (list, step) => () => {
      const at = list.indexOf(selected);
      select(list[clamp(at + step, 0, list.length - 1)]);
    };
    const frontier = planMapFrontier(shown);
    // From a layout that is not on the frontier, to the neighbor on it.
    const isBefore = (item) => shown.indexOf(item) <= shown.indexOf(selected);
    const place = frontier.filter(isBefore).length - 1;
    const aside = (to) => () => select(frontier[clamp(to, 0, frontier.length - 1)]);
    const bySeconds = planMapBySeconds(shown);
    const published = shown.filter(({ measured }) => measured !== undefined);
    return {
      ArrowLeft: aside(frontier[place] === selected ? place - 1 : place), ArrowRight: aside(place + 1),
      ArrowUp: along(bySeconds, 1), ArrowDown: along(bySeconds, -1),
      p: () => select(published[(published.indexOf(selected) + 1) % published.length]),
      Home: () => select(fastest()), Escape: () => select(fastest()), End: () => select(frontier[0]),
    };
  }

  function draw(context, theme) {
    let drawn = scatter?.(context, theme) ?? 0;
    if (hovered && hovered !== selected) drawn += paint(context, planMapRing(hovered), theme);
    if (!selected) return drawn;
    drawn += paint(context, planMapRing(selected), theme) + paint(context, scene.meshes[selected.mesh], theme);
    scene.bars.forEach((bar, at) => (drawn += paint(context, planMapBar(bar, scene.width, selected.bars[at]), theme)));
    return drawn;
  }

  plot.addEventListener("click", (event) => select(planMapUnder(shown, stage.at(event))), { signal });
  onTraits(model, ["settings"], show, signal);
  show();
  return root;
}

const planMapBySeconds = (items) => items.toSorted((one, other) => one.seconds - other.seconds);

/** Of items by memory, those that are faster than all with less. */
function planMapFrontier(items) {
  const found = [];
  for (const item of items) if (!found.length || item.seconds < found.at(-1).seconds) found.push(item);
  return found;
}

/** The layout that is nearest to the pointer, if it is near; published runs count where they were measured too. */
function planMapUnder(items, { x, y }) {
  let [found, nearest] = [null, 9];
  for (const item of items) {
    for (const height of [item.y, item.measured ?? item.y]) {
      const distance = Math.hypot(item.x - x, height - y);
      if (distance < nearest) [found, nearest] = [item, distance];
    }
  }
  return found;
}

/** As `points` in plan_map_marks.py. */
function planMapPoints({ point, faint, diamond }, items) {
  const radius = point.width / 2;
  const marks = items.map(({ x, y, fits }) => ({ ...point, x: x - radius, y: y - radius, opacity: fits ? 1 : faint }));
  const [first, ...rest] = planMapFrontier(items);
  if (first) {
    const steps = rest.map(({ x, y }) => `H${x}V${y}`).join("");
    marks.push({ kind: "path", d: `M${first.x} ${first.y}${steps}`, stroke: "text", stroke_width: 1.5 });
  }
  for (const { x, y, measured } of items) {
    if (measured === undefined) continue;
    marks.push({ kind: "path", d: `M${x} ${y}V${measured}`, stroke: diamond.fill, stroke_width: 1.5 });
    marks.push({ ...diamond, d: `M${x} ${measured - 6}l6 6l-6 6l-6 -6z` });
  }
  return marks;
}

/** As `ring` in plan_map_marks.py. */
function planMapRing({ x, y }) {
  const ring = { kind: "rect", x: x - 7, y: y - 7, width: 14, height: 14, radius: 7 };
  return [{ ...ring, stroke: "surface", stroke_width: 4 }, { ...ring, stroke: "text", stroke_width: 2 }];
}

/** As `Bar.marks` in plan_map_bars.py. */
function planMapBar({ title, top, compare, names, colors, hatched, columns, slot, bar, row }, width, item) {
  const y = top + 20;
  const marks = [
    { kind: "text", x: 0, y: top + 13, text: `${title}: ${item.whole}`, weight: 600 },
    { kind: "text", x: width, y: top + 13, text: compare, size: 11, anchor: "end", fill: "muted" },
  ];
  names.forEach((name, at) => {
    const [start, length, text] = item.parts[at];
    const look = { kind: "rect", fill: colors[at], hatch: hatched[at] };
    const x = slot * (at % columns);
    const base = y + bar + row * (Math.floor(at / columns) + 1);
    marks.push(
      { ...look, x: start, y, width: Math.max(length - 1, 0), height: bar },
      { ...look, x, y: base - 9, width: 10, height: 10, radius: 2, opacity: text ? 1 : 0.45 },
      { kind: "text", x: x + 15, y: base, text: `${name} ${text}`.trim(), size: 11, fill: text ? "text" : "muted" },
    );
  });
  const d = `M${item.line} ${y - 4}V${y + bar + 4}`;
  return [...marks, { kind: "path", d, stroke: "text", stroke_width: 2, dash: "4 3" }];
}

export default widget(build);
