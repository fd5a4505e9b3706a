"""The page in a browser: typed, clicked and read as a person would, with an eye on what it asks the network for."""

import shutil

import pytest
from PIL import Image
from tiny_demos import captioner, reader, translator, writer

from hf_attnzoo.app import serve

pytest.importorskip("gradio", reason="the page needs gradio")
playwright = pytest.importorskip("playwright.sync_api", reason="a browser is driven by playwright")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = '<img src=x onerror="window.hacked=1">${window.hacked=1}{{value}}'

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome on this machine")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, tmp_path, monkeypatch):
    """Opens the page of a demo; at the end nothing but this machine must have been asked for anything."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    served, asked, errors = [], [], []

    def visit(demo):
        app, url, _ = serve(demo, host="127.0.0.1", prevent_thread_lock=True, quiet=True)
        page = browser.new_page()
        # This machine may be busy with other things
        page.set_default_timeout(120_000)
        served.append((app, page, url))
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield visit
    for app, page, _ in served:
        page.close()
        app.blocks.close()
    local = (*(url for _, _, url in served), "data:", "blob:", "about:srcdoc")
    assert [url for url in asked if not url.startswith(local)] == []
    assert errors == []


def test_a_translation(visit):
    demo = translator()
    expected = demo.ask({"text": "due sei"})
    page = visit(demo)
    assert page.locator("h1").inner_text() == "tiny <b>"
    page.locator("#text textarea").fill("due sei")
    page.locator("#ask").click()
    outputs = page.locator("#output .az-out")
    outputs.nth(2).wait_for()
    assert outputs.all_inner_texts() == [text for text, _ in expected.rows]
    tokens = page.frame_locator("iframe.az-map").locator("#source .token")
    tokens.nth(2).wait_for()
    assert tokens.all_inner_texts() == ["due", "sei", "</s>"]

    # The map of another output
    page.locator("#row label").nth(2).click()
    title = page.frame_locator("iframe.az-map").locator("h1")
    playwright.expect(title).to_have_text(f"due sei → {expected.rows[2][0]}")
    # All of it is seen: the frame is as high as what is in it
    page.wait_for_function("document.querySelector('iframe.az-map').style.height !== ''")

    # What is wrong stands in the place of the answer, and of the map
    page.locator("#text textarea").fill("   ")
    page.locator("#ask").click()
    page.locator("#output .az-error").wait_for()
    assert page.locator("#output").inner_text() == "Text is empty: write something first"
    assert page.locator("iframe.az-map").count() == 0


def test_texts_are_shown_and_never_run(visit):
    page = visit(reader("ForSequenceClassification", id2label={0: EVIL, 1: "good"}, label2id={EVIL: 0, "good": 1}))
    page.locator("#text textarea").fill(EVIL)
    page.locator("#ask").click()
    page.locator("#output .az-out").nth(1).wait_for()
    assert EVIL in page.locator("#output .az-out").all_inner_texts()
    heading = page.frame_locator("iframe.az-map").locator("h1")
    playwright.expect(heading).to_have_text(EVIL)
    page.locator("#text textarea").fill(EVIL * 30)
    page.locator("#ask").click()
    page.locator("#output .az-error").wait_for()
    assert "the model takes at most 40" in page.locator("#output").inner_text()
    assert page.evaluate("window.hacked") is None
    assert all(frame.evaluate("window.hacked") is None for frame in page.frames)


def test_a_picture_that_is_dropped(visit, tmp_path):
    demo = captioner()
    Image.effect_noise((20, 30), 90).convert("RGB").save(tmp_path / "picture.png")
    expected = demo.ask({"image": str(tmp_path / "picture.png")})
    page = visit(demo)
    page.locator("#image input[type=file]").set_input_files(tmp_path / "picture.png")
    outputs = page.locator("#output .az-out")
    outputs.nth(2).wait_for()
    assert outputs.all_inner_texts() == [text for text, _ in expected.rows]
    words = page.frame_locator("iframe.az-map").locator(".word .token")
    words.last.wait_for()
    assert words.all_inner_texts() == demo.look(expected).words

    # One that is none is told of in the page's words, by the name it had
    (tmp_path / "letter.png").write_text("no picture", encoding="utf-8")
    page.reload()
    page.locator("#image input[type=file]").set_input_files(tmp_path / "letter.png")
    said = page.locator("#output .az-error")
    said.wait_for()
    assert said.inner_text().startswith("letter.png can't be read: ")


def test_a_model_without_attention(visit):
    page = visit(writer("RNNLM"))
    page.locator("#prompt textarea").fill("Ann")
    page.locator("#ask").click()
    page.locator("#output .az-out").nth(2).wait_for()
    playwright.expect(page.locator("#seen")).to_contain_text("a model without attention")
