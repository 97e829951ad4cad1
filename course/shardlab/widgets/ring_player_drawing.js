// Draws the ring player. `moment`: { scene, step (steps done), held (of each rank), moving (the messages of
// the step in progress), progress (of that step) }. Each function returns the number of marks.

function drawRanks(context, theme, moment) {
  const { scene } = moment;
  const draw = { cards: drawCards, wheel: drawWheel, nodes: drawNodes }[scene.layout.kind];
  return paint(context, scene.marks, theme) + draw(context, theme, moment);
}

function drawCaption(context, theme, { scene, step, moving, byStep }) {
  const shown = byStep[moving.length ? step : Math.max(step - 1, 0)];
  const began = Math.min(...shown.map((message) => message.start_s));
  const ended = Math.max(...shown.map((message) => message.end_s ?? message.start_s));
  const sizes = new Set(shown.map((message) => message.bytes));
  const atStart = step === 0 && !moving.length;
  const lines = atStart
    ? ["start", `${scene.world_size} ranks`]
    : [
        `step ${moving.length ? step + 1 : step} of ${scene.steps}`,
        plural(shown.length, "message"),
        ...(sizes.size === 1 ? [`${formatBytes(shown[0].bytes)} each`] : []),
        `${formatSeconds(began)} – ${formatSeconds(ended)}`,
      ];
  const [x, y] = scene.layout.caption;
  const anchor = x < 100 ? "start" : "middle";
  const top = anchor === "start" ? y : y - (lines.length - 2) * 9;
  lines.forEach((text, index) => {
    const look = index ? { size: 12, fill: "muted" } : { size: 15, weight: 600 };
    paintText(context, { x, y: top + index * 18, text, anchor, ...look }, theme);
  });
}

/** A card for each rank, with a strip for each chunk: the ranks whose data it contains. */
function drawCards(context, theme, { scene, held, moving, progress }) {
  const { world_size: n, layout, chunks, colors } = scene;
  const { row, column, corners } = layout;
  const allRanks = (1n << BigInt(n)) - 1n;
  let drawn = 0;
  const strip = (x, y, mask) => {
    for (let contributor = 0; contributor < n; contributor += 1) {
      const has = (mask >> BigInt(contributor)) & 1n;
      context.fillStyle = has ? colors[contributor] : theme.text;
      context.globalAlpha = has ? 1 : 0.07;
      roundedBar(context, x + contributor * column + 1, y + 1, column - 2, row - 2, 2);
      context.fill();
      drawn += 1;
    }
    context.globalAlpha = 1;
  };
  for (let rank = 0; rank < n; rank += 1) {
    const [x, y] = corners[rank];
    held[rank].forEach(({ mask }, chunk) => {
      strip(x, y + chunk * row, mask);
      if (mask === allRanks) {
        context.lineWidth = 2;
        context.strokeStyle = scene.all;
        roundedBar(context, x, y + chunk * row, n * column, row, 3);
        context.stroke();
      }
    });
  }
  for (const message of moving) {
    const at = along(layout, message, progress);
    const width = n * column;
    const fraction = message.end_s === null ? 0 : progress;
    const rowAt = (chunk) => (chunk === null ? chunks / 2 : chunk + 0.5) * row;
    const shift = rowAt(message.chunk) * (1 - fraction) + rowAt(message.target_chunk) * fraction;
    const x = at.x - width / 2;
    const y = at.y + shift - (row * chunks) / 2 - row / 2;
    context.fillStyle = theme.surface;
    context.strokeStyle = message.end_s === null ? scene.lost : theme.text;
    context.lineWidth = 1.5;
    roundedBar(context, x - 3, y - 2, width + 6, row + 4, 4);
    context.fill();
    context.stroke();
    strip(x, y, message.carried);
  }
  return drawn;
}

/** A wheel, with a spoke for each rank and a cell for each chunk: how many ranks' data it contains. */
function drawWheel(context, theme, { scene, held, moving, progress }) {
  const { world_size: n, chunks } = scene;
  context.save();
  context.translate(scene.width / 2, scene.height / 2);
  held.forEach((row, rank) =>
    row.forEach(({ count }, chunk) => {
      context.fillStyle = count === n ? scene.all : theme.text;
      context.globalAlpha = count === n ? 1 : 0.08 + (0.62 * count) / n;
      fillCell(context, scene, rank, chunk);
    }),
  );
  context.globalAlpha = 0.9;
  context.fillStyle = theme.text;
  for (const message of moving) {
    const hop = ((((message.to - message.from + n / 2) % n) + n) % n) - n / 2; // the short way
    const fraction = message.end_s === null ? progress / 2 : progress;
    if (message.chunk !== null) fillCell(context, scene, message.from + hop * fraction, message.chunk);
  }
  context.restore();
  return n * chunks + moving.length;
}

/** One fill per cell: with many cells in one path, Chromium takes ten times as long. */
function fillCell(context, { world_size: n, layout, chunks }, rank, chunk) {
  const depth = (layout.outer - layout.inner) / chunks;
  const far = layout.outer - chunk * depth;
  const near = far - depth + Math.min(0.5, depth * 0.1);
  const turn = (side) => (2 * Math.PI * (rank + side * 0.47)) / n - Math.PI / 2;
  const [a, b] = [turn(-1), turn(1)];
  context.beginPath();
  context.moveTo(far * Math.cos(a), far * Math.sin(a));
  context.lineTo(far * Math.cos(b), far * Math.sin(b));
  context.lineTo(near * Math.cos(b), near * Math.sin(b));
  context.lineTo(near * Math.cos(a), near * Math.sin(a));
  context.fill();
}

/** Only the ranks and the bytes: for runs whose chunks are unknown. */
function drawNodes(context, theme, { scene, step, moving, progress }) {
  const { world_size: n, layout, messages } = scene;
  const received = new Array(n).fill(0);
  for (const { step: at, to, bytes, end_s } of messages) {
    if (at < step && end_s !== null) received[to] += bytes;
  }
  if (layout.shows_bytes) {
    received.forEach((bytes, rank) => {
      const [x, y] = layout.centers[rank];
      const text = formatBytes(bytes);
      paintText(context, { x, y: y + 14, text, size: 11, anchor: "middle", fill: "muted" }, theme);
    });
  }
  const [fill, ink, inkOnLost] = scene.message;
  for (const message of moving) {
    const { x, y } = along(layout, message, progress);
    const isLost = message.end_s === null;
    const text = n <= 10 ? formatBytes(message.bytes) : "";
    context.font = `600 11px ${theme.font}`;
    const width = text ? context.measureText(text).width + 14 : 12;
    const height = text ? 20 : 12;
    context.fillStyle = isLost ? scene.lost : fill;
    roundedBar(context, x - width / 2, y - height / 2, width, height, height / 2);
    context.fill();
    const look = { size: 11, weight: 600, anchor: "middle", fill: isLost ? inkOnLost : ink };
    paintText(context, { x, y: y + 4, text, ...look }, theme);
  }
  return n + moving.length;
}

/** A message's position on its path; one that never arrived stops halfway. */
function along({ centers, links }, { from, to, end_s }, progress) {
  const t = end_s === null ? progress / 2 : progress;
  const [[x1, y1], [x2, y2]] = [centers[from], centers[to]];
  const [cx, cy] = links[`${from}>${to}`];
  const mix = (a, b, c) => (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t ** 2 * c;
  return { x: mix(x1, cx, x2), y: mix(y1, cy, y2) };
}
