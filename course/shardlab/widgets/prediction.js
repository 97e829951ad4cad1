// A prediction: the reader's guess is parsed in amount.js, and locked once it is committed.

/** One field for each label, or a single one. Like the options below: { node, read, show, lock }. */
function numberFields({ question, unit, labels, maximum, line }, signal) {
  const axis = line?.axis ?? "";
  const node = make("div", { class: "shardlab-fields" });
  let changed = () => {};
  const fields = (labels.length ? labels : [""]).map((label) => {
    const name = [axis, label || question, unit].filter(Boolean).join(", ");
    const input = make("input", { type: "text", inputmode: "text", autocomplete: "off", "aria-label": name });
    const reading = make("span", { class: "shardlab-reading" }); // what the text means
    const look = () => {
      input.removeAttribute("aria-invalid");
      reading.textContent = "";
      const text = input.value.trim();
      try {
        const meaning = amountInWords(readAmount(text, unit, maximum), unit);
        const isSaid = meaning === `${text} ${unit}`.trim() || meaning === text || (line && meaning.endsWith(`(${text})`));
        if (!isSaid) reading.textContent = `= ${meaning}`;
      } catch (error) {
        if (!(error instanceof Unreadable)) throw error; // reported when the reader commits
      }
      changed();
    };
    input.addEventListener("input", look, { signal });
    const parts = [input, make("span", { class: "shardlab-unit" }, unit), reading];
    node.append(make("label", {}, ...(label ? [make("span", {}, label)] : []), ...parts));
    return { input, look, label };
  });
  const read = () => {
    const numbers = fields.map(({ input, label }) => {
      try {
        return readAmount(input.value, unit, maximum);
      } catch (error) {
        if (!(error instanceof Unreadable)) throw error;
        input.setAttribute("aria-invalid", "true");
        input.focus();
        throw new Unreadable(label ? `${label}: ${error.message}` : error.message);
      }
    });
    return labels.length ? numbers : numbers[0];
  };
  const show = (value) => {
    const numbers = [value].flat();
    for (const [i, { input, look }] of fields.entries()) {
      let typed = null;
      try {
        typed = readAmount(input.value, unit, maximum);
      } catch {} // nothing readable was typed in this view
      if (typed !== numbers[i]) input.value = String(numbers[i]);
      look();
    }
  };
  const lock = (locked) => {
    for (const { input } of fields) input.readOnly = locked;
  };
  const valueAt = (i) => {
    try {
      return readAmount(fields[i].input.value, unit, maximum);
    } catch {
      return null; // not typed or drawn yet
    }
  };
  const set = (i, value) => {
    fields[i].input.value = unit === "B" ? formatBytes(value) : plain(value, 3).replaceAll(",", "");
    fields[i].look();
  };
  const onChange = (listener) => (changed = listener);
  return { node, read, show, lock, valueAt, set, onChange, focus: () => fields[0].input.focus() };
}

/** Axes on which to draw the numbers with the mouse; with the keyboard, they are typed into the fields. */
function drawingOf(root, scene, fields, isLocked, signal) {
  const { labels, line, unit, color, question } = scene;
  const plot = make("div", { class: "shardlab-plot shardlab-drawing" });
  const values = () => labels.map((_, i) => fields.valueAt(i));
  const label = `${question}, over ${line.axis}: axes to draw on. The fields below do the same.`;
  const stage = createStage({ root, plot, width: 640, height: LINE.height, label, draw, signal });

  function draw(context, theme) {
    const drawn = values();
    const top = Math.max(line.top, ...drawn.filter((value) => value !== null));
    return paint(context, [...axesMarks(labels, line.axis, top, unit), ...lineMarks(drawn, top, color, true)], theme);
  }

  const put = (event) => {
    if (isLocked() || event.buttons !== 1) return;
    const { x, y } = stage.at(event);
    const share = (x - LINE.left) / (LINE.right - LINE.left);
    const i = clamp(Math.floor(share * labels.length), 0, labels.length - 1);
    const height = clamp((LINE.bottom - y) / (LINE.bottom - LINE.top), 0, 1);
    fields.set(i, (Math.round(100 * height) / 100) * line.top);
  };
  stage.canvas.addEventListener("pointerdown", put, { signal });
  stage.canvas.addEventListener("pointermove", put, { signal });
  fields.onChange(stage.redraw);
  return plot;
}

function optionFields({ question, options, several }, signal) {
  const pairs = options.map((option) => [option, option]);
  const node = make("div", { class: "shardlab-fields" });
  const row = make("span", { class: "shardlab-options" });
  const one = several ? null : choice({ label: question, options: pairs, value: null, signal });
  if (several) {
    for (const option of options) {
      const input = make("input", { type: "checkbox", value: option });
      row.append(make("label", {}, input, make("span", {}, option)));
    }
    node.append(row);
  } else {
    one.node.firstChild.remove(); // the question is above
    node.append(one.node);
  }
  const inputs = [...node.querySelectorAll("input")];
  const read = () => {
    const chosen = inputs.filter((input) => input.checked).map((input) => input.value);
    if (several) return chosen;
    if (!chosen.length) {
      inputs[0].focus();
      throw new Unreadable("Choose one of them first.");
    }
    return chosen[0];
  };
  const show = (value) => {
    for (const input of inputs) input.checked = [value].flat().includes(input.value);
  };
  const lock = (locked) => {
    for (const input of inputs) input.disabled = locked;
  };
  return { node, read, show, lock, focus: () => inputs[0].focus() };
}

/**
 * Shift+Enter moves the focus past this cell's output, to the next cell. If Tab is the first key pressed there,
 * `focus()` is called instead of leaving the field behind.
 */
function handleFirstTab(root, focus, signal) {
  const first = new AbortController();
  signal.addEventListener("abort", () => first.abort());
  const look = (event) => {
    if (["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    first.abort();
    const cell = root.closest(".jp-Cell");
    const isNext = cell && document.activeElement?.previousElementSibling === cell;
    if (event.key !== "Tab" || event.shiftKey || !isNext) return;
    event.preventDefault();
    event.stopPropagation();
    focus();
  };
  for (const type of ["keydown", "pointerdown"]) {
    document.addEventListener(type, look, { capture: true, signal: first.signal });
  }
}

const amountInWords = (value, unit) => (unit === "B" ? exactBytes(value) : formatAmount(value, unit));

function build(model, signal) {
  const scene = model.get("scene");
  const { question, unit, labels, options, several, color } = scene;
  const root = make("div", { class: "shardlab-widget shardlab-prediction", "data-widget": "prediction" });
  root.style.setProperty("--shardlab-predicted", color);
  const fields = options.length ? optionFields(scene, signal) : numberFields(scene, signal);
  const commit = make("button", { type: "submit" }, "Commit");
  const change = make("button", { type: "button" }, "Change");
  const hint = scene.line ? "Draw with the mouse, or type the numbers." : options.length ? (several ? "Choose any number of them." : "Choose one.") : HINTS[unit] ?? HINTS[""];
  const status = make("p", { class: "shardlab-detail", role: "status", tabindex: "-1", "data-hint": hint });
  const group = make("fieldset", {}, make("legend", {}, question));
  const isLocked = () => model.get("value") !== null;
  if (scene.line) group.append(drawingOf(root, scene, fields, isLocked, signal));
  group.append(fields.node);
  const form = make("form", { novalidate: "", autocomplete: "off" }, group, commit, change, status);
  root.append(form);

  function inWords(value) {
    if (labels.length) return "Your guess is above."; // in its fields
    const words = typeof value === "number" ? amountInWords(value, unit) : listed([value].flat());
    return `Your guess: ${words}.`;
  }

  function show() {
    const value = model.get("value");
    const [committed, answered] = [value !== null, model.get("answered")];
    root.dataset.state = committed ? "committed" : "open";
    root.dataset.value = committed ? JSON.stringify(value) : "";
    if (committed) fields.show(value);
    fields.lock(committed);
    commit.hidden = committed;
    change.hidden = !committed || answered;
    delete status.dataset.error;
    if (!committed) {
      const hidden = "It has run. Guess before you read on: the next picture is hidden until then.";
      status.textContent = answered && !model.get("revealed") ? hidden : "";
    } else {
      const next = answered ? "The answer is below. To guess again, run this cell again." : scene.next ?? "Now run the next cells.";
      status.textContent = `${inWords(value)} ${next}`;
    }
  }

  form.addEventListener(
    "submit",
    (event) => {
      event.preventDefault();
      if (model.get("value") !== null) return;
      try {
        setTraits(model, { value: fields.read() });
        status.focus();
      } catch (error) {
        if (!(error instanceof Unreadable)) throw error;
        status.textContent = error.message;
        status.dataset.error = "yes";
      }
    },
    { signal },
  );
  change.addEventListener("click", () => (setTraits(model, { value: null }), fields.focus()), { signal });
  form.addEventListener(
    "keydown",
    (event) => {
      // Typed keys belong to the form; the notebook gets only its shortcuts, such as Shift+Enter.
      const isShortcut = event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key === "Enter");
      if (!isShortcut) event.stopPropagation();
    },
    { signal },
  );
  onTraits(model, ["value", "answered", "revealed"], show, signal);
  show();
  if (!isLocked()) handleFirstTab(root, fields.focus, signal);
  return root;
}

export default widget(build);
