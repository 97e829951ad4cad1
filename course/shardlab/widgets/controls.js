// Sliders, choices and checkboxes, shared by all widgets.

const CONTROL_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown", " "];

/** Stops these keys at the control; otherwise the notebook would handle them as well. */
function keepKeys(input, signal) {
  input.addEventListener(
    "keydown",
    (event) => {
      if (CONTROL_KEYS.includes(event.key)) event.stopPropagation();
    },
    { signal },
  );
}

/**
 * A labeled slider that shows its value: `format(value)` is the text next to it. A slider over
 * orders of magnitude has exponents as values: `format: (x) => String(10 ** x)`.
 * Returns { node, input, value (to read), set(value) }; `set` does not call `onInput`.
 */
function slider({ label, min, max, step = 1, value, format = String, onInput = () => {}, signal }) {
  const input = make("input", { type: "range", min, max, step, value, "aria-label": label });
  const output = make("output", { class: "shardlab-value" });
  const node = make("label", { class: "shardlab-slider" }, make("span", {}, label), input, output);
  const show = () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    node.dataset.value = input.value;
  };
  input.addEventListener("input", () => (show(), onInput(Number(input.value))), { signal });
  keepKeys(input, signal);
  show();
  return {
    node,
    input,
    get value() {
      return Number(input.value);
    },
    set(next) {
      input.value = next;
      show();
    },
  };
}

/**
 * A slider over a list of numbers. `set` adds a number that is not in the list. Returns { node,
 * set(number) }; `onInput` gets a number too.
 */
function listSlider({ values, value, format = String, onInput, ...rest }) {
  const listed = [...values];
  const control = slider({
    ...rest, min: 0, max: listed.length - 1, value: 0,
    format: (index) => format(listed[index]), onInput: (index) => onInput(listed[index]),
  });
  const set = (next) => {
    if (!listed.includes(next)) {
      listed.push(next);
      listed.sort((a, b) => a - b);
      control.input.max = listed.length - 1;
    }
    control.set(listed.indexOf(next));
  };
  set(value);
  return { node: control.node, set };
}

/** A choice whose options are "yes" and "no", and whose value is true or false. */
function yesNo({ value, onInput, ...rest }) {
  const words = (isYes) => (isYes ? "yes" : "no");
  const { node, set } = choice({ ...rest, value: words(value), onInput: (next) => onInput(next === "yes") });
  return { node, set: (next) => set(words(next)) };
}

let groups = 0; // radio buttons with the same name are one group on the whole page

/**
 * A row of labeled radio buttons, one of them chosen. `options`: [[value, text], ...]; a value is
 * a string. Returns { node, value (to read), set(value) }; `set` does not call `onInput`.
 */
function choice({ label, options, value, onInput = () => {}, signal }) {
  groups += 1;
  const name = `shardlab-choice-${groups}-${Math.random().toString(36).slice(2)}`;
  const inputs = new Map();
  const row = make("span", { class: "shardlab-options" });
  for (const [key, text] of options) {
    const input = make("input", { type: "radio", name, value: key });
    input.addEventListener("change", () => (mark(), onInput(key)), { signal });
    keepKeys(input, signal);
    inputs.set(String(key), input);
    row.append(make("label", {}, input, make("span", {}, text)));
  }
  const node = make(
    "div", { class: "shardlab-choice", role: "radiogroup", "aria-label": label },
    make("span", {}, label), row,
  );
  const chosen = () => [...inputs].find(([, input]) => input.checked)?.[0];
  const mark = () => (node.dataset.value = chosen() ?? "");
  const set = (next) => {
    for (const [key, input] of inputs) input.checked = key === String(next);
    mark();
  };
  set(value);
  return {
    node,
    get value() {
      return chosen();
    },
    set,
  };
}

/**
 * A row of checkboxes. `options`: [[value, text], ...]; `onInput` gets the values that are checked.
 * Returns { node, set(values) }.
 */
function checkList({ label, options, onInput, signal }) {
  const inputs = options.map(([value]) => make("input", { type: "checkbox", value }));
  const checked = () => inputs.filter((input) => input.checked).map(({ value }) => value);
  for (const input of inputs) {
    input.addEventListener("change", () => onInput(checked()), { signal });
    keepKeys(input, signal);
  }
  const labels = inputs.map((input, index) => make("label", {}, input, make("span", {}, options[index][1])));
  const node = make(
    "div", { class: "shardlab-choice", role: "group", "aria-label": label },
    make("span", {}, label), make("span", { class: "shardlab-options" }, ...labels),
  );
  const set = (values) => {
    for (const input of inputs) input.checked = values.includes(input.value);
  };
  return { node, set };
}
