// The same model as in offload_model.py, so that sliders need no kernel.

const PLACEMENTS = ["device", "swap", "zero-offload", "parameters", "nvme"];
const ORDER = {
  forward: ["nvme", "to_device", "compute"],
  backward: ["nvme", "to_device", "compute", "to_host"],
  update: ["nvme", "host_update", "to_device", "to_host"],
};

/** Bytes that one rank moves in a step: estimate/offload.py's moved_bytes. */
function movedBytes({ parameters, world_size }, placement) {
  const own = (2 * parameters) / world_size;
  const states = (12 * parameters) / world_size;
  const none = { to_host: 0, to_device: 0, read: 0, written: 0 };
  if (placement === "device") return none;
  if (placement === "swap") return { ...none, to_host: states, to_device: states };
  if (placement === "zero-offload") return { ...none, to_host: own, to_device: own };
  if (placement === "parameters") return { ...none, to_host: own, to_device: 2 * own };
  return { to_host: own, to_device: 2 * own, read: 2 * own + states, written: states + own };
}

/** Seconds of each piece of each part of a step: estimate/offload.py's step_seconds. */
function pieceSeconds(settings, placement) {
  const moved = movedBytes(settings, placement);
  const { parameters, world_size, link_bytes_per_s } = settings;
  const flop = (parameters * settings.tokens_per_step) / world_size / settings.device_flops_per_s;
  const forward = { compute: 2 * flop };
  const backward = { compute: 4 * flop };
  const update = {};
  const down = moved.to_host / link_bytes_per_s;
  const up = moved.to_device / link_bytes_per_s;
  if (placement === "swap") Object.assign(update, { to_device: up, to_host: down });
  else if (placement !== "device") {
    backward.to_host = down;
    update.host_update = parameters / settings.host_parameters_per_s;
    if (placement === "zero-offload") update.to_device = up;
    else forward.to_device = backward.to_device = up / 2;
  }
  if (placement === "nvme") {
    const shared = settings.nvme_bytes_per_s / world_size;
    forward.nvme = backward.nvme = moved.to_device / 2 / shared;
    update.nvme = (moved.read - moved.to_device + moved.written) / shared;
  }
  return { forward, backward, update };
}

/** Model states of a rank on device, host and NVMe: offload_model.py's held_bytes. */
function heldBytes({ parameters, world_size, layers }, placement) {
  const shard = parameters / world_size;
  if (placement === "device") return [2 * parameters + 14 * shard, 0, 0];
  if (placement === "swap") return [2 * parameters + 2 * shard, 12 * shard, 0];
  if (placement === "zero-offload") return [2 * parameters, 14 * shard, 0];
  const gathered = (4 * parameters) / layers;
  return placement === "parameters" ? [gathered, 16 * shard, 0] : [gathered, 2 * shard, 14 * shard];
}

function offloadOutcome(settings, placement) {
  const pieces = pieceSeconds(settings, placement);
  const delayed = settings.delayed_update && placement === "zero-offload";
  const add = (values) => values.reduce((a, b) => a + b, 0);
  const duration = (part) => {
    const seconds = Object.values(pieces[part]);
    return settings.overlap ? Math.max(0, ...seconds) : add(seconds);
  };
  const [forward, backward, update] = ["forward", "backward", "update"].map(duration);
  const computed = forward + backward;
  const parts = {
    forward: [0, forward],
    backward: [forward, computed],
    update: delayed ? [0, update] : [computed, computed + update],
  };
  const bars = [];
  for (const [part, [start, end]] of Object.entries(parts)) {
    let at = start;
    for (const piece of ORDER[part]) {
      const seconds = pieces[part][piece];
      if (!seconds) continue;
      // A piece that waits for the rest of its part is drawn at the part's end.
      const last =
        piece === "to_host" || (part === "update" && piece === "to_device" && placement !== "swap");
      const begin = !settings.overlap ? at : last ? end - seconds : start;
      bars.push({ part, piece, start: begin, end: begin + seconds });
      at += seconds;
    }
  }
  const [device_bytes, host_bytes, nvme_bytes] = heldBytes(settings, placement);
  return {
    step_s: delayed ? Math.max(computed, update) : computed + update,
    compute_s: pieces.forward.compute + pieces.backward.compute,
    device_bytes, host_bytes, nvme_bytes, parts, bars,
  };
}
