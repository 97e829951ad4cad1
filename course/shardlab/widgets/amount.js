// Reads what a reader types as a guess: a number with a unit, or arithmetic such as 2 * 3/4 * 1.5 MiB.

const BYTES = ["b", "byte", "bytes"];
const OF_BYTES = {
  ...Object.fromEntries(BYTES.map((word) => [word, 1])),
  ...Object.fromEntries(
    [..."kmgt"].flatMap((prefix, i) => [
      [prefix, 1000 ** (i + 1)], [`${prefix}b`, 1000 ** (i + 1)], [`${prefix}ib`, 1024 ** (i + 1)],
    ]),
  ),
};
const FACTORS = {
  B: OF_BYTES,
  bytes: OF_BYTES, // shown without a prefix
  s: { s: 1, ms: 1e-3, us: 1e-6, µs: 1e-6, min: 60, h: 3600 },
  "": { "%": 0.01, x: 1, times: 1, k: 1e3, m: 1e6 },
};

const HINTS = {
  B: "Units and arithmetic work: 1.5 MiB, 3 MB, 2 * 262144.",
  s: "Units and arithmetic work: 20 ms, 3 * 0.5.",
  "": "Arithmetic works: 3/4, 2 * 7.",
};

class Unreadable extends Error {}

/** The number that `text` means, in `unit`. Throws Unreadable with a message for the reader. */
function readAmount(text, unit, maximum = null) {
  const words = tokens(text);
  if (!words.length) throw new Unreadable("Type a number first.");
  const value = sum(words, unit);
  if (words.length) throw new Unreadable(`Unexpected “${words.join(" ")}”: write one number.`);
  if (!Number.isFinite(value)) throw new Unreadable("The result is not a finite number.");
  if (value < 0) throw new Unreadable("A negative number cannot be right here.");
  if (maximum !== null && value > maximum) throw new Unreadable(`At most ${plain(maximum)}.`);
  return value;
}

function tokens(text) {
  const tidy = text
    .replace(/[×·]/g, "*").replace(/÷/g, "/").replace(/−/g, "-")
    .replace(/(\d)[ _\u00a0\u202f](?=\d{3}(?!\d))/g, "$1");
  const pattern = /\d[\d.,]*(?:e[+-]?\d+)?|[.,]\d+|[-+*/()]|[^\s\d.,+*/()-]+|\S/gi;
  return tidy.match(pattern) ?? [];
}

function sum(words, unit) {
  let value = product(words, unit);
  while (["+", "-"].includes(words[0])) {
    value = words.shift() === "+" ? value + product(words, unit) : value - product(words, unit);
  }
  return value;
}

function product(words, unit) {
  let value = factor(words, unit);
  while (["*", "/"].includes(words[0])) {
    value = words.shift() === "*" ? value * factor(words, unit) : value / factor(words, unit);
  }
  return value;
}

function factor(words, unit) {
  const word = words.shift();
  let value;
  if (word === "-") return -factor(words, unit);
  if (word === "(") {
    value = sum(words, unit);
    if (words.shift() !== ")") throw new Unreadable("A closing parenthesis is missing.");
  } else if (/^[\d.,]*\d/.test(word ?? "")) {
    value = readNumber(word, unit);
  } else {
    throw new Unreadable(word === undefined ? "A number is missing at the end." : `“${word}” is not a number.`);
  }
  return /^[^-+*/()\d.,]/.test(words[0] ?? "+") ? value * unitFactor(words.shift(), unit) : value;
}

function unitFactor(word, unit) {
  const known = FACTORS[unit] ?? {};
  const name = word.toLowerCase();
  if (name in known) return known[name];
  if (unit && unit.toLowerCase().startsWith(name)) return 1;
  const units = known === OF_BYTES ? "B, kB, MB, GB, KiB, MiB or GiB" : unit === "s" ? "s, ms or min" : unit || "none";
  throw new Unreadable(`“${word}” is not a unit here; units: ${units}.`);
}

/** Commas separate thousands in 262,144 and 1,048,576, and are decimal in 1,5 and 0,375. */
function readNumber(word, unit) {
  const [digits, exponent = "0"] = word.toLowerCase().split("e");
  let text = digits;
  if (/^[1-9]\d{0,2}(,\d{3})+(\.\d+)?$/.test(text)) {
    if (unit !== "B" && /^\d+,\d{3}$/.test(text)) {
      const [whole, rest] = text.split(",");
      throw new Unreadable(`“${word}” can mean ${whole}${rest} or ${whole}.${rest}: write one of these.`);
    }
    text = text.replaceAll(",", "");
  } else {
    text = text.replace(",", ".");
  }
  if (!/^(\d+\.?\d*|\.\d+)$/.test(text)) throw new Unreadable(`“${word}” is not a number.`);
  return Number(`${text}e${exponent}`);
}
