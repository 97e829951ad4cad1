// The critical path on the timeline: what is not on it fades, and arrows lead from rank to rank.

const FADED = 0.72; // opacity of the page's color over what is not on the path

function drawPath(context, theme, { plot: box, row, states }, view) {
  const { path } = states;
  const top = (rank) => box.top + rank * row;
  const boxes = path
    .filter(([, start, end]) => end >= view.from && start <= view.to)
    .map(([rank, start, end]) => {
      const [left, right] = [Math.max(view.toX(start), box.left - 4), Math.min(view.toX(end), box.right + 4)];
      return { x: left, y: top(rank), width: Math.max(right - left, 1), height: row };
    });
  context.beginPath();
  context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  for (const { x, y, width, height } of boxes) context.rect(x, y, width, height);
  context.fillStyle = theme.surface;
  context.globalAlpha = FADED;
  context.fill("evenodd");
  context.globalAlpha = 1;
  context.beginPath();
  for (const { x, y, width, height } of boxes) context.rect(x, y + 0.75, width, height - 1.5);
  strokeVisibly(context, theme, 1.5);
  path.slice(1).forEach(([rank, start], index) => {
    const [before] = path[index];
    if (start < view.from || start > view.to || rank === before) return;
    const down = rank > before;
    const [y1, y2] = [top(before) + (down ? row : 0), top(rank) + (down ? 0 : row)];
    // Neighboring rows touch: the arrow begins and ends a little inside.
    const inside = Math.min(row / 3, 8) * (down ? 1 : -1);
    paintArrow(context, theme, view.toX(start), y1 - inside, view.toX(start), y2 + inside);
  });
  return boxes.length;
}

/** The path's words, after where to look for it if the view shows none of it. */
function pathWords({ path, path_words: words }, view) {
  const before = path.some(([, , end]) => end < view.from);
  const after = path.some(([, start]) => start > view.to);
  if (path.some(([, start, end]) => end >= view.from && start <= view.to) || !(before || after)) return words;
  const side = [before && "left", after && "right"].filter(Boolean).join(" and ");
  return `The critical path is to the ${side} of what is shown: press 0 to see all. ${words}`;
}

/** A button that shows and hides the path; `toggle(isShown)`. Returns { node, press }. */
function pathButton(toggle, signal) {
  const node = make("button", { type: "button", "aria-pressed": "false", title: "Critical path (C)" }, "Critical path");
  const press = () => {
    const isShown = node.getAttribute("aria-pressed") !== "true";
    node.setAttribute("aria-pressed", isShown);
    toggle(isShown);
  };
  node.addEventListener("click", press, { signal });
  return { node, press };
}
