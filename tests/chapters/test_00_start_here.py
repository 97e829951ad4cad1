"""Chapter 00 runs from top to bottom, and its outputs match its text."""

import re
import shutil

import pytest
from playwright.sync_api import expect

from autograder.course import checks
from tests.chapters.running_chapter import Chapter

pytestmark = [pytest.mark.ranks, pytest.mark.browser]


@pytest.fixture(scope="module")
def front_page(lab):
    """The notebook that `make lab` opens, for a student who has not checked anything yet."""
    shutil.rmtree(checks.folder(), ignore_errors=True)
    lab.page.goto(lab.server.url_of("/") + "&reset")  # the server remembers open tabs
    return lab.current()


@pytest.fixture(scope="module")
def notebook(lab, front_page, artifacts):
    """The first chapter, reached from the map, after Run All."""
    progress = front_page.cell("progress()").run()
    expect(progress.output.locator("[data-lab='01_one_device']")).to_contain_text("0 of 4")
    shown = {"map-of-the-course": lambda: front_page.cell("map-of-the-course").element}
    lab.screenshot_in_both_themes(artifacts, shown)
    front_page.cell("map-of-the-course").element.get_by_role("link", name="00 Start here").click()
    lab.page.wait_for_function(
        "jupyterapp.shell.currentWidget?.context?.path.endsWith('here.ipynb')"
    )
    notebook = lab.current()
    unsaved = "(panel) => panel.context.model.dirty"
    assert not notebook.evaluate(unsaved), "JupyterLab shows it as changed when it is opened"
    notebook.run_all()
    return notebook


@pytest.fixture(scope="module")
def chapter(notebook):
    return Chapter("00_start_here", notebook.content())


def test_four_processes_say_hello(chapter):
    hellos = re.findall(
        r"I am rank (\d) of 4, process (\d+)", chapter.text_of("run = launch(hello")
    )
    assert sorted(rank for rank, _ in hellos) == ["0", "1", "2", "3"]
    assert len({process for _, process in hellos}) == 4


def test_each_rank_takes_its_part_of_the_numbers(chapter):
    assert chapter.text_of("def my_share") == "[[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]"


def test_the_operating_system_counts_little_more_than_the_tensor(chapter):
    cell = "print(run.traffic.source)"
    assert chapter.text_of(cell).startswith("counted by the operating system")
    rows = chapter.table_of(cell)
    assert [row["tensor, bytes"] for row in rows] == ["1,048,576"] * 4
    assert all(0 <= int(row["protocol, bytes"].replace(",", "")) < 10_000 for row in rows)


def test_the_map_shows_the_ring_and_no_prediction(chapter):
    picture = chapter.svg_of("traffic_map(run, predicted=predicted_bytes)")
    assert "1.0 MiB" in picture
    assert "predicted" not in picture


def test_the_tensor_returns_with_one_added_by_each_rank(chapter):
    assert "[4.0, 2.0, 3.0, 4.0]" in [
        output.data["text/plain"]
        for cell in chapter.notebook.cells
        if cell.cell_type == "code" and cell.source == "run.outputs"
        for output in cell.outputs
    ]


def test_each_call_names_its_line(chapter):
    rows = chapter.table_of("for call in run.calls]")
    assert {row["call"] for row in rows} == {"send", "recv"}
    assert all(re.match(r"cell \d+, line \d+", row["line of your code"]) for row in rows)
    assert len(rows) == 8
    assert "8 calls on 4 ranks" in chapter.svg_of("timeline(run)")


def test_the_failed_rank_is_named(chapter):
    first_line = chapter.text_of("def fail_on_rank_2").splitlines()[0]
    assert re.match(
        r"rank 2 failed: ZeroDivisionError: .* \[cell \d+, line 2: return 10", first_line
    )


def test_the_deadlock_is_named_and_drawn(chapter):
    first_line = chapter.text_of("def both_receive_first").splitlines()[0]
    assert first_line.startswith("deadlock: ranks 0 → 1 → 0 all wait in recv")
    assert "never ended" in chapter.svg_of("timeline(hang)")


def test_the_machine_is_described(chapter):
    machine = {row["this machine"]: row["has"] for row in chapter.table_of("max_ranks()")}
    assert int(machine["cores"]) >= 1
    assert int(machine["ranks at most, in one launch"]) >= 1
    assert len(chapter.table_of('choose_device("auto", world_size)')) == 4
    assert "gloo" in chapter.text_of("launch(dist.get_backend")


def test_make_lab_opens_the_front_page_and_the_map_leads_here(front_page, notebook):
    assert front_page.path == "course/front_page.ipynb"
    assert notebook.path == "course/chapters/00_start_here.ipynb"


def test_chapter_names_are_not_cut_off_in_the_file_browser(lab, notebook):
    lab.command("filebrowser:open-path", path="course/chapters")
    names = lab.page.locator(".jp-DirListing-itemText", has_text=".ipynb")
    expect(names).to_have_count(len(list((lab.server.root / "course/chapters").glob("*.ipynb"))))
    is_cut = "(name) => name.scrollWidth > name.clientWidth"
    assert [name.inner_text() for name in names.all() if name.evaluate(is_cut)] == []


def test_it_runs_without_errors(lab, notebook):
    assert notebook.errors_and_stderr() == []
    assert lab.errors == []


def test_four_ranks_say_hello(notebook):
    text = notebook.cell("def hello()").output.locator(".shardlab-output").inner_text()
    ranks = re.findall(r"rank (\d) │ hello, I am rank (\d) of 4, process (\d+)", text)
    assert sorted(prefix for prefix, _, _ in ranks) == ["0", "1", "2", "3"]
    assert all(prefix == own for prefix, own, _ in ranks)
    assert len({process for _, _, process in ranks}) == 4


def test_without_a_guess_the_answer_is_hidden_and_nothing_is_printed(notebook, chapter):
    answer = notebook.cell("predicted_bytes.compare(").widget("comparison")
    expect(answer).to_have_attribute("data-state", "waiting")
    assert "MiB" not in answer.inner_text()
    traffic = notebook.cell("traffic_map(run").widget("traffic-map")
    expect(traffic).to_have_attribute("data-state", "waiting")
    assert "MiB" not in notebook.cell("traffic_map(run").output.inner_text()
    expect(notebook.cell("traffic_map(run").output.locator("img")).to_be_hidden()
    printed = chapter.text_of("predicted_bytes.compare(")
    assert printed.strip() == "<Comparison: Bytes that each rank sends: measured 1.0 MiB>"


def test_a_guess_after_the_run_is_answered_and_drawn_next_to_the_measurement(lab, notebook):
    prediction = notebook.cell("= predict(").widget("prediction")
    prediction.get_by_role("textbox").focus()
    lab.page.keyboard.type("a few\n")
    expect(prediction.get_by_role("status")).to_have_text("“a” is not a number.")
    expect(prediction.get_by_role("textbox")).to_have_value("a few")
    lab.page.keyboard.press("ControlOrMeta+a")
    lab.page.keyboard.type("4 MiB\n")
    expect(prediction).to_have_attribute("data-value", str(4 * 2**20))
    assert notebook.cell("= predict(").is_active(), "a key reached the notebook"

    answer = notebook.cell("predicted_bytes.compare(").widget("comparison")
    expect(answer).to_have_attribute("data-outcome", "named")
    expect(answer).to_contain_text("that is what all ranks send together")
    for words in ("= predict(", "predicted_bytes.compare("):
        notebook.wait(  # the saved notebook contains the guess as well
            """(panel, index) =>
              JSON.stringify(panel.content.widgets[index].model.outputs).includes("4.0 MiB")""",
            notebook.cell(words).index,
        )
    traffic = notebook.cell("traffic_map(run").widget("traffic-map")
    traffic.locator(".shardlab-plot").focus()
    for key in ("ArrowRight", "End"):
        lab.page.keyboard.press(key)
    expect(traffic).to_have_attribute("data-selected", "0,total")
    expect(traffic.locator(".shardlab-detail")).to_contain_text("predicted 4,194,304 bytes")


def test_the_traffic_map_shows_the_counted_bytes(chapter, notebook):
    rows = chapter.table_of("print(run.traffic.source)")
    sent = [int(row["sent, bytes"].replace(",", "")) for row in rows]
    assert len(sent) == 4
    assert all(2**20 < count < 1.001 * 2**20 for count in sent)

    traffic = notebook.cell("traffic_map(run").widget("traffic-map")
    expect(traffic).to_have_attribute("data-total-bytes", str(sum(sent)))
    expect(traffic.locator(".shardlab-sub")).to_have_text("4.0 MiB by 4 ranks")


def test_a_rerun_prediction_cell_keeps_its_guess_and_allows_a_change(lab, notebook):
    question = notebook.cell("= predict(")
    expect(question.widget("prediction").get_by_role("button")).to_have_count(0)  # answered
    prediction = question.run().widget("prediction")
    expect(prediction).to_have_attribute("data-value", str(4 * 2**20))
    prediction.get_by_role("button", name="Change").click()
    prediction.get_by_role("textbox").fill("1,000,000")
    lab.page.keyboard.press("Enter")
    notebook.cell("traffic_map(run").run()  # later cells reassigned `run`
    answer = notebook.cell("predicted_bytes.compare(").run().widget("comparison")
    expect(answer).to_have_attribute("data-outcome", "close")


def test_screenshots_in_both_themes(lab, notebook, artifacts):
    traffic = notebook.cell("traffic_map(run")
    lab.screenshot_in_both_themes(
        artifacts,
        {
            "chapter-00-opener": lambda: notebook.cell("<details open>").element,
            "chapter-00-hello": lambda: notebook.cell("def hello()").element,
            "chapter-00-map": lambda: traffic.element,
            "chapter-00-prediction": lambda: notebook.cell("= predict(").element,
            "chapter-00-answer": lambda: notebook.cell("predicted_bytes.compare(").element,
            "chapter-00-timeline": lambda: notebook.cell("timeline(run)").element,
            "chapter-00-deadlock": lambda: notebook.cell("timeline(hang)").element,
            "chapter-00-page": lambda: lab.page.locator("#main"),
        },
        always=True,
    )
    notebook.close()
