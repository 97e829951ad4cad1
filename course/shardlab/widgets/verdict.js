// How a guess compares with the measurement, in words: the same functions as in verdict.py.

const EQUAL = 0.02;
const CLOSE = 0.1;
const ALIKE = 0.2;
const NEGLIGIBLE = 0.01;

function plain(number, digits = 4) {
  const rounded = Math.abs(number) < 1000 ? Number(number.toPrecision(digits)) : Math.round(number);
  return rounded.toLocaleString("en-US", { maximumFractionDigits: 12 });
}

function formatAmount(amount, unit) {
  if (unit === "B") return formatBytes(amount);
  if (unit === "s") return formatSeconds(amount);
  return `${plain(amount)} ${unit}`.trim();
}

function judgeNumbers(guess, answer, named, labels, source) {
  const off = deviations(guess, answer);
  const largest = Math.max(...off);
  if (largest <= EQUAL) return { outcome: "right", text: largest === 0 ? "Right." : "Right, within 2 %." };
  const ratio = commonRatio(guess, answer, source);
  const each = guess.length > 1 ? "each " : "";
  const right = off.filter((share) => share <= EQUAL).length;
  const prefix = ratio ? `${each}${ratio}: ` : `${right} of ${off.length} right: `;
  for (const [name, values] of Object.entries(named)) {
    if (Math.max(...deviations(guess, values)) <= EQUAL) {
      return { outcome: "named", text: sentence(`${prefix}that is ${name}`) };
    }
  }
  if (largest <= CLOSE) {
    return { outcome: "close", text: sentence(`${each}within 10 %${ratio && !each ? `: ${ratio}` : ""}`) };
  }
  const distances = Object.entries(named).map(([name, values]) => [Math.max(...deviations(guess, values)), name]);
  const [distance, nearest] = distances.sort(([a], [b]) => a - b)[0] ?? [Infinity];
  if (each && distance <= ALIKE && distance < largest) {
    return { outcome: "named", text: sentence(`${prefix}that is, within 20 %, ${nearest}`) };
  }
  if (ratio) return { outcome: "off", text: sentence(`${each}${ratio}`) };
  const worst = off.indexOf(largest);
  const close = off.filter((share) => share <= CLOSE).length;
  const error = difference(guess[worst], answer[worst], source);
  const text = `${close} of ${off.length} within 10 %; furthest off: ${labels[worst]}, ${error}`;
  return { outcome: "off", text: sentence(text + namedParts(guess, off, named, labels)) };
}

function namedParts(guess, off, named, labels) {
  const matches = new Map();
  const equal = Object.entries(named).map(([name, values]) => [name, deviations(guess, values)]);
  labels.forEach((label, part) => {
    const found = equal.find(([, shares]) => off[part] > EQUAL && shares[part] <= EQUAL);
    if (found) matches.set(found[0], [...(matches.get(found[0]) ?? []), label]);
  });
  return [...matches].map(([name, parts]) => `; ${parts.join(", ")}: that is ${name}`).join("");
}

function judgeOptions(guess, answer, named) {
  const missing = answer.filter((option) => !guess.includes(option));
  const wrong = guess.filter((option) => !answer.includes(option));
  if (!missing.length && !wrong.length) return { outcome: "right", text: "Right." };
  for (const [name, values] of Object.entries(named)) {
    if (values.length === guess.length && values.every((option) => guess.includes(option))) {
      return { outcome: "named", text: sentence(`${listed(guess)}: that is ${name}`) };
    }
  }
  if (guess.length === 1 && answer.length === 1) {
    return { outcome: "off", text: `Not “${guess[0]}” but “${answer[0]}”.` };
  }
  const parts = [`${answer.length - missing.length} of ${answer.length} found`];
  if (missing.length) parts.push(`missing: ${listed(missing)}`);
  if (wrong.length) parts.push(`wrong: ${listed(wrong)}`);
  return { outcome: "off", text: sentence(parts.join("; ")) };
}

function deviations(guess, answer) {
  const least = NEGLIGIBLE * Math.max(...answer.map(Math.abs));
  return guess.map((value, i) => {
    const part = Math.abs(value - answer[i]);
    const whole = Math.max(Math.abs(answer[i]), least);
    return whole ? part / whole : part === 0 ? 0 : Infinity;
  });
}

function commonRatio(guess, answer, source) {
  const divides = answer.every((value) => value !== 0);
  if (guess.length > 1 && !divides) return "";
  const ratios = divides ? guess.map((value, i) => value / answer[i]) : [0];
  if (Math.max(...ratios) - Math.min(...ratios) > EQUAL * Math.max(...ratios)) return "";
  return difference(guess[0], answer[0], source);
}

function difference(guess, answer, source) {
  if (answer === 0) return `the ${source} value is 0`;
  const ratio = guess / answer;
  if (ratio === 0) return `0 instead of the ${source} value`;
  if (ratio >= 2 * (1 - EQUAL) || ratio <= 0.5 * (1 + EQUAL)) {
    return `${plain(ratio, 2)} times the ${source} value`;
  }
  return `${(100 * Math.abs(ratio - 1)).toFixed(0)} % too ${ratio > 1 ? "high" : "low"}`;
}

const listed = (options) => (options.length ? options.join(", ") : "none");
const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
