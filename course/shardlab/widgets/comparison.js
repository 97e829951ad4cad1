// Guess and answer side by side. The guess is in the prediction's model, and may come later.

/** Guess (a list, or null) and answer on an axis from 0, or as lines: the same as in comparison.py. */
function marksOf(scene, guess) {
  return scene.line ? linesOf(scene, guess) : rowsOf(scene, guess);
}

function linesOf(scene, guess) {
  const { roles, answer, labels, line, unit, source } = scene;
  const [guessX, answerX] = scene.columns;
  const top = Math.max(line.top, ...answer, ...(guess ?? []));
  const write = (x, text) => ({ kind: "text", x, y: 12, text, fill: "muted" });
  const marks = axesMarks(labels, line.axis, top, unit);
  marks.push(write(answerX + 14, source), circle(answerX + 5, 8, roles.measured));
  marks.push(...lineMarks(answer, top, roles.measured, false));
  if (guess) {
    marks.push(write(guessX + 14, "your guess"), diamond(guessX + 5, 8, roles.predicted));
    marks.push(...lineMarks(guess, top, roles.predicted, true));
  }
  return marks;
}

function rowsOf(scene, guess) {
  const { top, row, unit, roles, answer, labels, source } = scene;
  const [left, right] = scene.axis;
  const [guessX, answerX] = scene.columns;
  const largest = Math.max(...answer, ...(guess ?? [])) || 1;
  const bottom = top + row * answer.length;
  const at = (value) => left + ((right - left) * value) / largest;
  const write = (x, y, text, more = {}) => ({ kind: "text", x, y, text, ...more });
  const line = (x1, y1, x2, y2) => ({ kind: "path", d: `M${x1} ${y1}L${x2} ${y2}`, stroke: "rule" });
  const marks = [write(answerX + 14, 12, source, { fill: "muted" }), circle(answerX + 5, 8, roles.measured)];
  if (guess) {
    marks.push(write(guessX + 14, 12, "your guess", { fill: "muted" }), diamond(guessX + 5, 8, roles.predicted));
  }
  marks.push(line(left, top - 4, left, bottom));
  for (const value of [0, largest]) {
    const text = value ? formatAmount(value, unit) : "0";
    marks.push(write(at(value), bottom + 16, text, { anchor: "middle", fill: "muted" }));
  }
  for (const [i, value] of answer.entries()) {
    const y = top + row * (i + 0.5);
    marks.push(line(left, y, right, y));
    if (labels.length) marks.push(write(left - 12, y + 4, labels[i], { anchor: "end" }));
    marks.push(circle(at(value), y, roles.measured), write(answerX, y + 4, formatAmount(value, unit)));
    if (guess) {
      marks.push(diamond(at(guess[i]), y, roles.predicted), write(guessX, y + 4, formatAmount(guess[i], unit)));
    }
  }
  return marks;
}

function build(model, signal, _host, prediction) {
  const scene = model.get("scene");
  const root = make("div", { class: "shardlab-widget shardlab-comparison", "data-widget": "comparison" });
  const verdict = make("p", { class: "shardlab-verdict", role: "status" });
  const answer = make("p", {});
  const plot = make("div", { class: "shardlab-plot" });
  const title = make("span", { class: "shardlab-title" }, scene.question);
  root.append(make("div", { class: "shardlab-head" }, title), verdict, answer, plot);

  const height = scene.line ? LINE.height : scene.top + scene.row * scene.answer.length + 24;
  const stage = scene.is_choice
    ? null
    : createStage({ root, plot, width: scene.width, height, draw, signal });

  const guessOf = () => {
    const value = prediction?.get("value") ?? null;
    return value === null ? null : [value].flat();
  };

  function draw(context, theme) {
    return paint(context, marksOf(scene, guessOf()), theme);
  }

  function judge(guess) {
    const { answer: right, named, places, source } = scene;
    if (scene.is_choice) return judgeOptions(guess, right, named);
    return judgeNumbers(guess, right, named, places, source);
  }

  function show() {
    const guess = guessOf();
    const found = guess && judge(guess);
    root.dataset.state = guess ? "answered" : "shown";
    root.dataset.outcome = found?.outcome ?? "";
    verdict.hidden = !guess;
    verdict.textContent = found?.text ?? "";
    answer.hidden = !scene.is_choice;
    const mine = guess && scene.is_choice ? `Your guess: ${listed(guess)}. ` : "";
    answer.textContent = scene.is_choice ? `${mine}${capital(scene.source)}: ${scene.answer_text}.` : "";
    plot.hidden = scene.is_choice;
    if (!stage) return;
    const words = guess?.map((value, i) => (scene.labels[i] ? `${scene.labels[i]}: ` : "") + formatAmount(value, scene.unit));
    const label = `${scene.question}: ${words ? `your guess ${words.join(", ")}; ` : ""}${scene.source} ${scene.answer_text}`;
    stage.canvas.setAttribute("aria-label", label);
    stage.redraw();
  }

  if (prediction) onTraits(prediction, ["value"], show, signal);
  show();
  return root;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

export default widget(build, "comparison");
