// The ring player: ring_player.py computes what each rank holds after each message; this file moves
// through the steps.

function build(model, signal) {
  const scene = model.get("scene");
  const { world_size: n, steps, layout, messages } = scene;
  const stepMs = clamp(24000 / Math.max(steps, 1), 120, 1100);
  const total = formatBytes(messages.reduce((sum, message) => sum + message.bytes, 0));
  const named = { name: "ring-player", title: "Messages between ranks" };
  const notes = scene.notes.map((note) => make("p", { class: "shardlab-note" }, note));
  const data = { worldSize: n, steps, messages: messages.length, mode: layout.kind };
  const sizes = `${messages.length} messages, ${total}`;

  let position = 0; // steps done, with the fraction of the current one
  let goal = null; // where the animation stops

  if (steps === 0) {
    const { root, sub } = card(named.name, named.title);
    sub.textContent = sizes;
    root.append(...notes);
    root.style.maxWidth = `${scene.width}px`;
    Object.assign(root.dataset, data, { playing: "false", step: 0 });
    return root;
  }

  const { byStep, heldAt } = stepsOf(scene);
  const clock = frameClock({
    advance: (ms, isReduced) => {
      position = Math.min(isReduced ? Math.floor(position) + 1 : position + ms / stepMs, goal);
      if (position < goal) return true;
      goal = null;
      return false;
    },
    show: () => go(position), stillMs: stepMs, signal,
  });
  const player = stepButtons(
    {
      first: () => (pause(), go(0)),
      back: () => (pause(), go(Math.ceil(position - 1e-6) - 1)),
      play: () => {
        if (clock.isRunning) return pause(), go(position);
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
  const stepsDone = make("span", { class: "shardlab-clock" });
  player.node.append(steering, stepsDone);
  const { root, head, sub, plot, refresh, mark } = frame({
    ...named, scene, controls: [player.node], small: scene.key, signal,
    label: "Ring player. Space plays, arrow keys step, Home and End jump.",
    headings: () => ["step", "from rank", "to rank", "chunk", "bytes", "start", "arrived"],
    rows: () => messages.map((m) => [
      m.step + 1, m.from, m.to, m.chunk ?? "–", m.bytes, formatSeconds(m.start_s),
      m.end_s === null ? "never" : formatSeconds(m.end_s),
    ]),
    draw: (context, theme) => {
      const step = Math.min(Math.floor(position + 1e-6), steps);
      const progress = ease(position - step);
      const moving = progress > 0.001 ? byStep[step] : [];
      const moment = { scene, step, held: heldAt(step), moving, progress, byStep };
      const drawn = drawRanks(context, theme, moment);
      drawCaption(context, theme, moment);
      return drawn;
    },
  });
  head.after(...notes);
  sub.textContent = sizes;
  Object.assign(root.dataset, data);
  refresh(`Animation of ${sizes}, between ${n} ranks in ${steps} steps.`);

  function go(to) {
    position = clamp(to, 0, steps);
    const isPlaying = clock.isRunning;
    const done = Math.floor(position + 1e-6);
    Object.assign(root.dataset, { step: done, playing: isPlaying, position: position.toFixed(2) });
    steering.value = position;
    steering.setAttribute("aria-valuetext", `${done} of ${steps} steps done`);
    const current = Math.ceil(position - 1e-6); // the step in progress, else the last one
    stepsDone.textContent = `${current} / ${steps}`;
    player.show({ isPlaying, isFirst: position === 0, isLast: position === steps });
    mark(isPlaying ? "" : describeStep(current, byStep));
  }

  function pause() {
    clock.stop();
    goal = null;
  }

  function animate(until) {
    pause();
    if (clock.isReduced() && until - position <= 1) return go(until);
    goal = until;
    clock.start();
  }

  steering.addEventListener("input", () => (pause(), go(Number(steering.value))), { signal });
  keepKeys(steering, signal);
  for (const node of [plot, player.node, steering]) handleKeys(node, () => player.keys, signal);
  go(0);
  return root;
}

/** { byStep: the messages of each step, heldAt(step): what each rank holds of each chunk once `step` steps are done }. */
function stepsOf({ world_size: n, steps, chunks, messages }) {
  const byStep = Array.from({ length: steps }, () => []);
  for (const message of messages) {
    byStep[message.step].push(message);
    message.carried = BigInt(`0x${message.carried}`);
    message.held = BigInt(`0x${message.held}`);
    message.heldCount = countBits(message.held);
  }
  let [at, held] = [0, []]; // kept from one redraw to the next
  const heldAt = (step) => {
    if (step < at || !held.length) {
      at = 0;
      held = Array.from({ length: n }, (_, rank) =>
        Array.from({ length: chunks }, () => ({ mask: 1n << BigInt(rank), count: 1 })),
      );
    }
    for (; at < step; at += 1) {
      for (const { to, target_chunk, end_s, held: mask, heldCount: count } of byStep[at]) {
        if (target_chunk !== null && end_s !== null) held[to][target_chunk] = { mask, count };
      }
    }
    return held;
  };
  return { byStep, heldAt };
}

/** The messages of a step, in words. */
function describeStep(current, byStep) {
  if (current === 0) return "Each rank holds its own data. Press Play, or step with the arrow keys.";
  const [first, ...others] = byStep[current - 1];
  const chunk = first.chunk === null ? "" : `chunk ${first.chunk}, `;
  const arrival = first.end_s === null ? " (never arrived)" : "";
  const more = others.length ? `, and ${others.length} more` : "";
  const one = `rank ${first.from} → rank ${first.to}: ${chunk}${exactBytes(first.bytes)}${arrival}`;
  return `Step ${current}: ${one}${more}.`;
}

const ease = (t) => t * t * (3 - 2 * t);

function countBits(mask) {
  let count = 0;
  for (let rest = mask; rest; rest &= rest - 1n) count += 1;
  return count;
}

export default widget(build);
