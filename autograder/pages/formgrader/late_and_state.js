// Runs after nbgrader's own script, and adds late penalties and states to its lists of submissions.
// Declares nothing at the top level, where nbgrader's scripts declare names of their own.
for (const view of [
    window.SubmissionUI, window.SubmittedNotebookUI,
    window.StudentSubmissionUI, window.StudentSubmittedNotebookUI,
].filter(Boolean)) {
    const render = view.prototype.render;
    view.prototype.render = function () {
        render.call(this);
        if (this.$student_name) { // without a name, nbgrader's list shows "None, None"
            const names = [this.model.get("last_name"), this.model.get("first_name")];
            const name = names.filter(Boolean).join(", ") || this.model.get("student");
            this.$student_name.attr("data-order", name);
            this.$student_name.find("a").add(this.$student_name).last().text(name);
        }
        const penalty = this.model.get("late_penalty");
        if (penalty) {
            const points = roundToPrecision(penalty, 2);
            const words = `after a late penalty of ${points} point${points === 1 ? "" : "s"}`;
            this.$score.append($("<div/>").addClass("small late-penalty").text(words));
        }
        const state = this.model.get("state");
        if (state && state !== "graded") {
            const label = $("<span/>").addClass("label label-danger state").text(state);
            (this.$status || this.$score).append(" ", label);
        }
    };
}

if (has_written_answers) {
    $(() => $("<a/>")
        .addClass("written-answers")
        .attr("href", `${base_url}/shardlab/written/${encodeURIComponent(assignment_id)}`)
        .text("Grade written answers, one question for all students")
        .prependTo($("table").first().parent()));
}

if (window.SubmissionUI || window.SubmittedNotebookUI) { // lists of one lab
    $(() => {
        const link = $("<a/>")
            .attr("href", `${base_url}/shardlab/report/${encodeURIComponent(assignment_id)}`)
            .text(`Class report, written ${class_report}`);
        const command = $("<code/>").text(`python -m autograder report ${assignment_id}`);
        const none = $("<span/>").append("No class report yet: ", command);
        $("<p/>").addClass("class-report").append(class_report ? link : none)
            .prependTo($("table").first().parent());
    });
}
