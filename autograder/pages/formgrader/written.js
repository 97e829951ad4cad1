// Chosen rubric items become the comment's first lines: the gradebook has no other place for them,
// and students see in their feedback what earned points.
const byId = (id) => document.getElementById(id);
const answers = [...document.querySelectorAll("section.answer")];
const items = [...document.querySelectorAll("input.item")];
const { baseUrl, maxPoints } = document.body.dataset;
const lineOf = (item) => `- ${item.dataset.text} (${Number(item.dataset.points)})`;
let at = Math.max(answers.findIndex((one) => !("graded" in one.dataset)), 0);
let isChanged = false;
let isSaving = false;

function showProgress() {
    const graded = answers.filter((one) => "graded" in one.dataset).length;
    byId("progress").textContent = `${graded} of ${answers.length} graded`;
    byId("position").textContent = answers.length ? `answer ${at + 1}` : "";
}

function show(index) {
    at = index;
    answers.forEach((one, i) => { one.hidden = i !== at; });
    const { mark, text } = answers[at].dataset;
    const lines = text.split("\n");
    for (const item of items) {
        const line = lines.indexOf(lineOf(item));
        item.checked = line >= 0;
        if (line >= 0) lines.splice(line, 1);
    }
    byId("comment").value = lines.join("\n").trim();
    byId("points").value = mark;
    byId("message").textContent = "";
    isChanged = false;
    showProgress();
}

async function put(what, id, values) {
    const cookie = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/);
    const response = await fetch(`${baseUrl}/formgrader/api/${what}/${id}`, {
        method: "PUT",
        headers: { "Content-Type": "application/json", "X-XSRFToken": cookie ? cookie[1] : "" },
        body: JSON.stringify(values),
    });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
}

async function save() {
    const { dataset } = answers[at];
    const field = byId("points");
    if (!field.reportValidity()) return false;
    const chosen = items.filter((item) => item.checked).map(lineOf).join("\n");
    const text = [chosen, byId("comment").value.trim()].filter(Boolean).join("\n\n");
    const mark = field.value === "" ? null : Number(field.value);
    // formgrader's request replaces both numbers, so extra credit is sent back unchanged.
    const extra = dataset.extraCredit === "" ? null : Number(dataset.extraCredit);
    try {
        await put("comment", dataset.comment, { manual_comment: text || null });
        await put("grade", dataset.grade, { manual_score: mark, extra_credit: extra });
    } catch (error) {
        byId("message").textContent = `Not saved: ${error.message}. Try again.`;
        return false;
    }
    dataset.text = text;
    dataset.mark = field.value;
    if (mark === null) delete dataset.graded;
    else dataset.graded = "";
    return true;
}

// ``confirms``: also save an unchanged mark, such as that of an earlier submission.
async function go(step, confirms = false) {
    if (isSaving || !answers.length) return;
    isSaving = byId("marks").inert = true;
    try {
        const isNew = confirms && byId("points").value !== "";
        if ((isChanged || isNew) && !(await save())) return;
        show(Math.min(Math.max(at + step, 0), answers.length - 1));
        document.activeElement.blur(); // so that the next key is a command, not text
    } finally {
        isSaving = byId("marks").inert = false;
    }
}

function addUp() {
    const sum = items.filter((item) => item.checked).reduce((all, item) => all + Number(item.dataset.points), 0);
    byId("points").value = Math.min(Math.max(sum, 0), Number(maxPoints));
}

byId("marks").addEventListener("input", (event) => {
    isChanged = true;
    if (event.target.classList.contains("item")) addUp();
    if (event.target.id === "reusable" && event.target.value) {
        const comment = byId("comment");
        comment.value = [comment.value.trim(), event.target.value].filter(Boolean).join("\n");
        event.target.value = "";
    }
});
byId("marks").addEventListener("submit", (event) => { event.preventDefault(); go(1, true); });
byId("previous").addEventListener("click", () => go(-1, true));
byId("names").addEventListener("change", (event) => {
    document.body.classList.toggle("names", event.target.checked);
});
document.addEventListener("keydown", (event) => {
    const isText = event.target.matches("textarea, select, input:not([type=checkbox])");
    if (isText || isSaving || event.ctrlKey || event.metaKey || event.altKey) return;
    const item = items[Number(event.key) - 1];
    if (event.key === "n" || event.key === "ArrowRight") go(1);
    else if (event.key === "p" || event.key === "ArrowLeft") go(-1);
    else if (item) item.click();
    else if (event.key === "0") {
        for (const one of items) one.checked = false;
        addUp();
        isChanged = true;
    }
    else return;
    event.preventDefault();
});
window.addEventListener("beforeunload", (event) => { if (isChanged) event.preventDefault(); });
if (answers.length) show(at);
else byId("marks").hidden = true;
