// Bytes, counts and seconds as text, with the same functions as units.py.

function formatBytes(count) {
  if (count < 1024) return `${Math.round(count)} B`;
  let value = count;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    value /= 1024;
    if (value < 999.95) return `${value.toFixed(1)} ${unit}`;
  }
  return `${(value / 1024).toFixed(1)} PiB`;
}

function exactBytes(count) {
  const exact = `${Math.round(count).toLocaleString("en-US")} ${count === 1 ? "byte" : "bytes"}`;
  return count < 1024 ? exact : `${exact} (${formatBytes(count)})`;
}

function formatSeconds(seconds) {
  if (seconds === 0) return "0 s";
  let [unit, value] = ["µs", seconds * 1e6];
  if (value >= 999.5) [unit, value] = ["ms", seconds * 1e3];
  if (value >= 999.5) [unit, value] = ["s", seconds];
  return `${threeDigits(value)} ${unit}`;
}

function threeDigits(value) {
  return value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

/** In powers of 1000: formatSi(20e9, "B") is 20 GB, not GiB. */
function formatSi(amount, unit) {
  let [value, prefix] = [amount, ""];
  for (const larger of "kMGTPE") {
    if (value < 999.5) break;
    [value, prefix] = [value / 1000, larger];
  }
  return `${Number(value.toPrecision(3))} ${prefix}${unit}`;
}

/** A number of things: 8,192, 1.25M, 10B, 1T. */
function formatCount(count) {
  if (count < 1e6) return Math.round(count).toLocaleString("en-US");
  return formatSi(count, "").replace("G", "B").replace(" ", "");
}

/** 1 rank, 8,192 tokens; `nouns` if the plural is irregular. */
function plural(count, noun, nouns = `${noun}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? noun : nouns}`;
}

/** "rank 5", or "rank 5 on node 1" if the scene has several nodes. */
function rankName({ nodes }, rank) {
  return nodes.length ? `rank ${rank} on node ${nodes[rank]}` : `rank ${rank}`;
}
