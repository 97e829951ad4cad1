// The ring player: ring_player.py computes what each rank holds after each message; this animates it.

function build(model, signal) {
  const scene = model.get("scene");
  const { world_size: n, steps, layout, messages, colors } = scene;
  const byStep = Array.from({ length: steps }, () => []);
  for (const message of messages) byStep[message.step].push(message);
  for (const message of messages) {
    message.carried = BigInt(`0x${message.carried}`);
    message.held = BigInt(`0x${message.held}`);
    message.carriedCount = countBits(message.carried);
    message.heldCount = countBits(message.held);
  }
  const slow = window.matchMedia("(prefers-reduced-motion: reduce)");
  const stepMs = clamp(24000 / Math.max(steps, 1), 120, 1100);

  let position = 0; // steps done, with the fraction of the current one
  let frame = 0; // the pending animation frame, 0 while paused
  let goal = null; // where the animation stops

  const { root, head, plot, detail } = card({
    name: "ring-player", title: "Messages between ranks",
    label: "Ring player. Space plays, arrow keys step, Home and End jump.",
  });
  root.dataset.worldSize = n;
  root.dataset.steps = steps;
  root.dataset.messages = messages.length;
  root.dataset.mode = layout.kind;

  const total = messages.reduce((sum, message) => sum + message.bytes, 0);
  head.append(make("span", { class: "shardlab-sub" }, `${messages.length} messages, ${formatBytes(total)}`));
  root.append(head);
  for (const note of scene.notes) root.append(make("p", { class: "shardlab-note" }, note));
  if (steps === 0) {
    root.style.maxWidth = `${scene.width}px`;
    root.dataset.playing = "false";
    root.dataset.step = 0;
    return root;
  }

  const stage = createStage({
    root,
    plot,
    width: scene.width,
    height: scene.height,
    label: `Animation of ${messages.length} messages, ${formatBytes(total)}, between ${n} ranks in ${steps} steps.`,
    draw,
    signal,
  });
  const player = stepButtons(
    {
      first: () => (pause(), go(0)),
      back: () => (pause(), go(Math.ceil(position - 1e-6) - 1)),
      play: () => {
        if (frame !== 0) return pause(), go(position);
        animate(position >= steps ? ((position = 0), steps) : steps);
      },
      // A second press during a step finishes it and starts the next.
      forward: () => {
        const from = goal !== null && goal < steps ? goal : Math.floor(position + 1e-6);
        position = Math.max(position, from);
        if (position < steps) animate(Math.min(from + 1, steps));
      },
      last: () => (pause(), go(steps)),
    },
    signal,
  );
  const steering = make("input", {
    type: "range", min: "0", max: String(steps), step: "0.01", value: "0", "aria-label": "Step",
  });
  const clock = make("span", { class: "shardlab-clock" });
  player.node.append(steering, clock);
  const small = make("p", { class: "shardlab-small" }, scene.key);
  const table = tableDetails(
    () => ["step", "from rank", "to rank", "chunk", "bytes", "start", "arrived"],
    () => messages.map((m) => [
      m.step + 1, m.from, m.to, m.chunk ?? "–", m.bytes, formatSeconds(m.start_s),
      m.end_s === null ? "never" : formatSeconds(m.end_s),
    ]),
    signal,
  );
  root.append(stickyControls(player.node), plot, detail, small, table.node);

  // ---- moving through time ----

  function go(to) {
    position = clamp(to, 0, steps);
    const done = Math.floor(position + 1e-6);
    root.dataset.step = done;
    root.dataset.playing = frame !== 0;
    root.dataset.position = position.toFixed(2);
    steering.value = position;
    steering.setAttribute("aria-valuetext", `${done} of ${steps} steps done`);
    const current = Math.ceil(position - 1e-6); // the step in progress, else the last one
    clock.textContent = `${current} / ${steps}`;
    detail.textContent = frame === 0 ? describe(current) : "";
    player.show({ isPlaying: frame !== 0, isFirst: position === 0, isLast: position === steps });
    stage.redraw();
  }

  /** The messages of a step, in words. */
  function describe(current) {
    if (current === 0) return "Each rank holds its own data. Press Play, or step with the arrow keys.";
    const [first, ...others] = byStep[current - 1];
    const chunk = first.chunk === null ? "" : `chunk ${first.chunk}, `;
    const arrival = first.end_s === null ? " (never arrived)" : "";
    const more = others.length ? `, and ${others.length} more` : "";
    const one = `rank ${first.from} → rank ${first.to}: ${chunk}${exactBytes(first.bytes)}${arrival}`;
    return `Step ${current}: ${one}${more}.`;
  }

  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
    goal = null;
  }

  function animate(until) {
    pause();
    if (slow.matches && until - position <= 1) return go(until);
    goal = until;
    let before = performance.now();
    const tick = (now) => {
      const passed = Math.max(0, now - before) / stepMs;
      if (slow.matches) {
        // Reduced motion: pause at each step, then jump to the next.
        if (passed >= 1) {
          before = now;
          position = Math.min(Math.floor(position) + 1, goal);
        }
      } else {
        before = now;
        position = Math.min(position + passed, goal);
      }
      if (position >= goal) pause();
      else frame = requestAnimationFrame(tick);
      go(position);
    };
    frame = requestAnimationFrame(tick);
    go(position);
  }

  steering.addEventListener("input", () => (pause(), go(Number(steering.value))), { signal });
  keepKeys(steering, signal);
  for (const node of [plot, player.node, steering]) handleKeys(node, () => player.keys, signal);

  // ---- drawing ----

  const cache = { step: 0, held: [] }; // kept from one redraw to the next
  function heldAt(step) {
    if (step < cache.step || !cache.held.length) {
      cache.step = 0;
      cache.held = Array.from({ length: n }, (_, rank) =>
        Array.from({ length: scene.chunks }, () => ({ mask: 1n << BigInt(rank), count: 1 })),
      );
    }
    for (; cache.step < step; cache.step += 1) {
      for (const message of byStep[cache.step]) {
        if (message.target_chunk === null || message.end_s === null) continue;
        const { held: mask, heldCount: count } = message;
        cache.held[message.to][message.target_chunk] = { mask, count };
      }
    }
    return cache.held;
  }

  function draw(context, theme) {
    const step = Math.min(Math.floor(position + 1e-6), steps);
    const progress = ease(position - step);
    const moving = progress > 0.001 ? byStep[step] : [];
    let drawn = paint(context, scene.marks, theme);
    drawn += { cards: drawCards, wheel: drawWheel, nodes: drawNodes }[layout.kind](
      context, theme, step, moving, progress,
    );
    drawCaption(context, theme, step, moving);
    return drawn;
  }

  function drawCaption(context, theme, step, moving) {
    const shown = byStep[moving.length ? step : Math.max(step - 1, 0)];
    const began = Math.min(...shown.map((message) => message.start_s));
    const ended = Math.max(...shown.map((message) => message.end_s ?? message.start_s));
    const sizes = new Set(shown.map((message) => message.bytes));
    const atStart = step === 0 && !moving.length;
    const lines = atStart
      ? ["start", `${n} ranks`]
      : [
          `step ${moving.length ? step + 1 : step} of ${steps}`,
          `${shown.length} message${shown.length === 1 ? "" : "s"}`,
          ...(sizes.size === 1 ? [`${formatBytes(shown[0].bytes)} each`] : []),
          `${formatSeconds(began)} – ${formatSeconds(ended)}`,
        ];
    const [x, y] = layout.caption;
    const anchor = x < 100 ? "start" : "middle";
    const top = anchor === "start" ? y : y - (lines.length - 2) * 9;
    lines.forEach((text, index) => {
      const look = index ? { size: 12, fill: "muted" } : { size: 15, weight: 600 };
      paintText(context, { x, y: top + index * 18, text, anchor, ...look }, theme);
    });
  }

  function drawCards(context, theme, step, moving, progress) {
    const held = heldAt(step);
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
      const at = along(message, progress);
      const width = n * column;
      const fraction = message.end_s === null ? 0 : progress;
      const rowAt = (chunk) => (chunk === null ? scene.chunks / 2 : chunk + 0.5) * row;
      const shift = rowAt(message.chunk) * (1 - fraction) + rowAt(message.target_chunk) * fraction;
      const x = at.x - width / 2;
      const y = at.y + shift - (row * scene.chunks) / 2 - row / 2;
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

  function drawWheel(context, theme, step, moving, progress) {
    const held = heldAt(step);
    context.save();
    context.translate(scene.width / 2, scene.height / 2);
    held.forEach((row, rank) =>
      row.forEach(({ count }, chunk) => {
        context.fillStyle = count === n ? scene.all : theme.text;
        context.globalAlpha = count === n ? 1 : 0.08 + (0.62 * count) / n;
        fillCell(context, rank, chunk);
      }),
    );
    context.globalAlpha = 0.9;
    context.fillStyle = theme.text;
    for (const message of moving) {
      const hop = ((((message.to - message.from + n / 2) % n) + n) % n) - n / 2; // the short way
      const fraction = message.end_s === null ? progress / 2 : progress;
      if (message.chunk !== null) fillCell(context, message.from + hop * fraction, message.chunk);
    }
    context.restore();
    return n * scene.chunks + moving.length;
  }

  /** One fill per cell: with many cells in one path, Chromium takes ten times as long. */
  function fillCell(context, rank, chunk) {
    const depth = (layout.outer - layout.inner) / scene.chunks;
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

  function drawNodes(context, theme, step, moving, progress) {
    const received = new Array(n).fill(0);
    for (const { step: at, to, bytes, end_s } of messages) {
      if (at < step && end_s !== null) received[to] += bytes;
    }
    if (layout.shows_bytes) {
      received.forEach((bytes, rank) => {
        const [x, y] = layout.centers[rank];
        const text = formatBytes(bytes);
        const mark = { x, y: y + 14, text, size: 11, anchor: "middle", fill: "muted" };
        paintText(context, mark, theme);
      });
    }
    for (const message of moving) {
      const { x, y } = along(message, progress);
      const text = n <= 10 ? formatBytes(message.bytes) : "";
      context.font = `600 11px ${theme.font}`;
      const width = text ? context.measureText(text).width + 14 : 12;
      const height = text ? 20 : 12;
      const [fill, ink, inkOnLost] = scene.message;
      context.fillStyle = message.end_s === null ? scene.lost : fill;
      roundedBar(context, x - width / 2, y - height / 2, width, height, height / 2);
      context.fill();
      const label = {
        x, y: y + 4, text, size: 11, weight: 600, anchor: "middle",
        fill: message.end_s === null ? inkOnLost : ink,
      };
      paintText(context, label, theme);
    }
    return n + moving.length;
  }

  /** A message's position on its path; one that never arrived stops halfway. */
  function along({ from, to, end_s }, progress) {
    const t = end_s === null ? progress / 2 : progress;
    const [[x1, y1], [x2, y2]] = [layout.centers[from], layout.centers[to]];
    const [cx, cy] = layout.links[`${from}>${to}`];
    const mix = (a, b, c) => (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t ** 2 * c;
    return { x: mix(x1, cx, x2), y: mix(y1, cy, y2) };
  }

  signal.addEventListener("abort", pause);
  go(0);
  return root;
}

const ease = (t) => t * t * (3 - 2 * t);

function countBits(mask) {
  let count = 0;
  for (let rest = mask; rest; rest &= rest - 1n) count += 1;
  return count;
}

export default widget(build);
