// The same as shardlab.simulate.pipeline, so that sliders need no kernel; a test compares them.
// An action is [kind, stage, micro-batch], a schedule a list of them for each device.

/** `warmUp` forwards, then one forward and one backward in turn, then the remaining backwards. */
function inTurn(forwards, backwards, warmUp) {
  const first = Math.min(warmUp, forwards.length);
  const order = forwards.slice(0, first);
  backwards.forEach((backward, number) => {
    order.push(...forwards.slice(first + number, first + number + 1), backward);
  });
  return order;
}

const range = (n) => Array.from({ length: n }, (_, i) => i);
const allOf = (kind, stage, m) => range(m).map((microBatch) => [kind, stage, microBatch]);

const GENERATORS = {
  naive: ({ p, m }) =>
    range(p).map((stage) => range(m).flatMap((i) => [["F", stage, i], ["B", stage, i]])),

  gpipe: ({ p, m }) => range(p).map((stage) => [...allOf("F", stage, m), ...allOf("B", stage, m)]),

  "1f1b": ({ p, m }) =>
    range(p).map((stage) => inTurn(allOf("F", stage, m), allOf("B", stage, m), p - 1 - stage)),

  interleaved({ p, m, v }) {
    if (v === 1) return GENERATORS["1f1b"]({ p, m });
    const rounds = Math.max(1, Math.floor(m / p));
    if (m % rounds) return null; // no equal rounds
    const size = m / rounds;
    const dealt = (kind, chunks, device) =>
      range(rounds).flatMap((round) =>
        chunks.flatMap((chunk) => range(size).map((i) => [kind, chunk * p + device, round * size + i])),
      );
    const chunks = range(v);
    return range(p).map((device) =>
      inTurn(
        dealt("F", chunks, device),
        dealt("B", chunks.toReversed(), device),
        (v - 1) * size + 2 * (p - 1 - device),
      ),
    );
  },

  "zb-h1": ({ p, m }) =>
    range(p).map((device) => {
      const order = [];
      for (const action of inTurn(allOf("F", device, m), allOf("I", device, m), p - 1 - device)) {
        order.push(action);
        if (action[0] === "I" && action[2] >= device) order.push(["W", device, action[2] - device]);
      }
      for (let i = Math.max(m - device, 0); i < m; i += 1) order.push(["W", device, i]);
      return order;
    }),

  "zb-v": ({ p, m }) =>
    range(p).map((device) =>
      downAndUp(p, Math.max(m, 2 * p - 1), device).filter(([, , microBatch]) => microBatch < m),
    ),
};

function downAndUp(p, m, device) {
  const stageOf = { down: device, up: 2 * p - 1 - device };
  const done = { F: { down: 0, up: 0 }, I: { down: 0, up: 0 }, W: { down: 0, up: 0 } };
  const order = [];
  const take = (way, kinds) => {
    for (const kind of kinds) order.push([kind, stageOf[way], done[kind][way]++]);
  };
  for (let i = 0; i < 2 * (p - device) - 1; i += 1) take("down", "F");
  for (let i = 0; i < device; i += 1) {
    take("up", "F");
    take("down", "F");
  }
  for (let i = 0; i < p - device; i += 1) take("up", "FIW");
  while (done.F.up < m) {
    take("down", done.F.down < m ? "FIW" : "IW");
    take("up", "FIW");
  }
  for (let i = 0; i < device; i += 1) {
    take("down", "I");
    take("up", "I");
  }
  for (let i = 0; i < p - device; i += 1) take("down", "IW");
  for (const way of ["up", "down"]) while (done.W[way] < m) take(way, "W");
  return order;
}

/** Chunks per device, which divide a device's share of the costs. */
function chunksOf(schedule) {
  const stages = Math.max(...schedule.flat().map(([, stage]) => stage)) + 1;
  return Math.max(1, Math.round(stages / schedule.length));
}

/**
 * simulator.py's simulate with one cost for all stages: each action starts as soon as its inputs and
 * its device are ready. `costs`: of a device's whole share, { forward, backward_input,
 * backward_weight, send }. Expects a legal schedule; the kernel checks those it sends.
 */
function simulatePipeline(schedule, costs) {
  const v = chunksOf(schedule);
  const { forward, backward_input: input, backward_weight: weight, send } = costs;
  const cost = { F: forward / v, I: input / v, W: weight / v, B: (input + weight) / v };
  const key = (kind, stage, microBatch) => `${stage} ${kind} ${microBatch}`;
  const deviceOf = new Map();
  const split = new Set();
  schedule.forEach((actions, device) => {
    for (const [kind, stage, microBatch] of actions) {
      deviceOf.set(stage, device);
      if (kind === "I") split.add(`${stage} ${microBatch}`);
    }
  });
  const end = new Map();
  function needs([kind, stage, microBatch]) {
    if (kind === "W") return [["I", stage, microBatch]];
    if (kind === "F") return stage > 0 ? [["F", stage - 1, microBatch]] : [];
    const after = split.has(`${stage + 1} ${microBatch}`) ? "I" : "B";
    const own = [["F", stage, microBatch]];
    return deviceOf.has(stage + 1) ? [...own, [after, stage + 1, microBatch]] : own;
  }
  const slots = schedule.map(() => []);
  for (let progress = true; progress; ) {
    progress = false;
    schedule.forEach((actions, device) => {
      while (slots[device].length < actions.length) {
        const action = actions[slots[device].length];
        const needed = needs(action);
        if (needed.some((need) => !end.has(key(...need)))) break;
        let start = slots[device].at(-1)?.end ?? 0;
        for (const need of needed) {
          const crossesDevices = deviceOf.get(need[1]) !== device;
          start = Math.max(start, end.get(key(...need)) + (crossesDevices ? send : 0));
        }
        const [kind, stage, microBatch] = action;
        const stop = start + cost[kind];
        end.set(key(...action), stop);
        slots[device].push({ kind, stage, microBatch, start, end: stop });
        progress = true;
      }
    });
  }
  return { v, slots, ...bubbleOf(slots), peaks: slots.map(peakOf) };
}

/** The bubble in the three conventions of simulator.py, and the makespan. */
function bubbleOf(slots) {
  const some = slots.filter((list) => list.length);
  const first = Math.min(...some.map((list) => list[0].start));
  const makespan = Math.max(...some.map((list) => list.at(-1).end)) - first;
  const busy = slots.map((list) => list.reduce((sum, { start, end }) => sum + end - start, 0));
  const busiest = Math.max(...busy);
  const idle = busy.reduce((sum, time) => sum + makespan - time, 0);
  const span = Math.max(...some.map((list) => list.at(-1).end - list[0].start));
  return {
    makespan,
    overIdeal: makespan / busiest - 1,
    fraction: idle / (slots.length * makespan),
    spanBubble: span / busiest - 1,
  };
}

/** The most micro-batches that a device holds at the same time, over all its chunks. */
function peakOf(slots) {
  let [held, peak] = [0, 0];
  for (const { kind } of slots) {
    if (kind === "F") peak = Math.max(peak, (held += 1));
    else if (kind !== "I") held -= 1;
  }
  return peak;
}

/** The micro-batches that a device holds at this time. */
function heldAt(slots, time) {
  let held = 0;
  for (const { kind, start, end } of slots) {
    if (kind === "F" && start < time) held += 1;
    else if ((kind === "B" || kind === "W") && end <= time) held -= 1;
  }
  return held;
}
