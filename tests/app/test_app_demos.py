"""What a page asks of a model of each kind and shows of it, without the page."""

import inspect
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_demos import TEXTS, captioner, reader, translator, writer
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, RobertaConfig, RobertaForMaskedLM

import hf_attnzoo
from hf_attnzoo.app import Answer, fragments, load_demo
from hf_attnzoo.app.cards import card_examples, card_title
from hf_attnzoo.app.reading import FillMaskDemo
from hf_attnzoo.app.writing import ContinuationDemo, TranslationDemo

NASTY = "<img src=x onerror=alert(1)>\"'&${alert(1)}{{value}}"


def forced(model, tokenizer, text, target):
    """Mean log-probability in nats of a target that ends."""
    with torch.no_grad():
        return -model(**tokenizer(text, text_target=target, return_tensors="pt")).loss.item()


def test_translations_with_their_scores_and_maps():
    demo = translator()
    answer = demo.ask({"text": "due sei"}, {"n_best": 3, "beams": 5, "max_new_tokens": 12})
    assert answer.columns == ("output", "score")
    assert len({text for text, _ in answer.rows}) == 3
    scores = [score for _, score in answer.rows]
    assert scores == sorted(scores, reverse=True)
    assert answer.shares == pytest.approx(np.exp(scores))
    whole = 0
    for number, (text, score) in enumerate(answer.rows):
        seen = demo.look(answer, number)
        assert seen.source == ["due", "sei", "</s>"]
        assert (seen.source_text, seen.target_text) == ("due sei", text)
        np.testing.assert_allclose(seen.weights.sum(1), 1, rtol=1e-5)
        if seen.target[-1] == "</s>":
            whole += 1
            assert score == pytest.approx(forced(demo.model, demo.tokenizer, "due sei", text), rel=1e-4)
    assert whole < 3 or not answer.notes
    with pytest.raises(ValueError, match="row=3 is out of range; the answer has 3"):
        demo.look(answer, 3)


def test_a_score_is_by_length_as_the_model_has_it():
    demo = translator()
    assert demo.ask({"text": "due sei"}).meaning.startswith("log-probability of the output in nats, divided by its ")
    demo.model.generation_config.length_penalty = 2.0
    answer = demo.ask({"text": "due sei"}, {"n_best": 4, "beams": 6, "max_new_tokens": 12})
    page = _Texts(fragments.table(answer))
    (title,) = [attributes["title"] for tag, attributes in page.tags if tag == "th" and "title" in attributes]
    assert "divided by its number of tokens to the power of 2, the model's length_penalty; the bar is" in title
    # Those that ended, without special tokens, which their texts don't have
    looks = [demo.look(answer, number) for number in range(4)]
    whole = [number for number, seen in enumerate(looks) if seen.target == [*seen.target_text.split(), "</s>"]]
    assert whole
    for number in whole:
        text, score = answer.rows[number]
        by_token = forced(demo.model, demo.tokenizer, "due sei", text)
        tokens = len(text.split()) + 1
        assert score == pytest.approx(by_token * tokens / tokens**2, rel=1e-4)
        assert answer.shares[number] == pytest.approx(np.exp(by_token), rel=1e-4)

    demo = writer()
    demo.model.generation_config.suppress_tokens = [demo.tokenizer.eos_token_id]
    options = {"n_best": 2, "max_new_tokens": 4, "seed": 3}
    first = demo.ask({"prompt": "Ann"}, options)
    demo.model.generation_config.length_penalty = 0.0
    second = demo.ask({"prompt": "Ann"}, options)
    assert [score for _, score in second.rows] == pytest.approx([4 * score for _, score in first.rows], rel=1e-4)
    assert second.shares == pytest.approx(first.shares, rel=1e-4)


def test_a_transformer_shows_all_layers_and_heads():
    demo = translator("Transformer")
    answer = demo.ask({"text": "due sei"})
    seen = demo.look(answer)
    config = demo.model.config
    assert [layer.shape[0] for layer in seen.layers] == [config.num_attention_heads] * config.num_decoder_layers
    np.testing.assert_allclose(seen.weights, seen.layers[-1].mean(0), rtol=1e-5)


def test_an_output_that_is_cut_is_said_to_be():
    demo = translator()
    demo.model.generation_config.suppress_tokens.append(demo.tokenizer.eos_token_id)
    answer = demo.ask({"text": "due"}, {"n_best": 1, "max_new_tokens": 4})
    assert answer.notes == ("1 output of 1 ends at the limit of 4 tokens, unfinished.",)
    assert len(demo.look(answer).target) == 4


def test_what_is_drawn_depends_on_the_seed():
    demo = translator(std=0.2)
    options = {"sample": True, "n_best": 4, "beams": 1, "temperature": 1.5}
    first, again, other = (demo.ask({"text": "due"}, {**options, "seed": seed}).rows for seed in (1, 1, 2))
    assert first == again != other


def test_a_model_without_attention_says_so():
    demo = translator(attention="none")
    answer = demo.ask({"text": "due sei"})
    assert len(answer.rows) == 3
    assert answer.looks == ()
    assert "no cross-attention to show" in answer.notes[0]
    recurrent = writer("RNNLM")
    answer = recurrent.ask({"prompt": "Ann"}, {"max_new_tokens": 3, "n_best": 1})
    with pytest.raises(ValueError, match="a model without attention, such as an RNN"):
        recurrent.look(answer)


def test_captions():
    demo = captioner()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8))
    answer = demo.ask({"image": image}, {"n_best": 2, "beams": 4})
    pixels = demo.pipe.image_processor([image], return_tensors="pt")["pixel_values"]
    ids = demo.model.generate(pixel_values=pixels, num_beams=4)
    assert answer.rows[0][0] == demo.tokenizer.decode(ids[0], skip_special_tokens=True)
    seen = demo.look(answer, 1)
    assert seen.image.size == (30, 20)
    assert seen.text == answer.rows[1][0]
    np.testing.assert_allclose(seen.weights.sum((1, 2)), 1, rtol=1e-5)
    with pytest.raises(ValueError, match="Picture is missing"):
        demo.ask({"image": None})


def test_a_picture_that_cannot_be_read_goes_by_its_name(tmp_path):
    demo = captioner()
    Image.new("RGB", (40, 40)).save(tmp_path / "cut short.png")
    whole = (tmp_path / "cut short.png").read_bytes()
    (tmp_path / "cut short.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "it's text.png").write_text("no picture", encoding="utf-8")
    for name in ("cut short.png", "it's text.png", "gone.png"):
        with pytest.raises(ValueError, match="damaged, or no picture") as refused:
            demo.ask({"image": str(tmp_path / name)})
        expected = f"{name} can't be read: it is damaged, or no picture of a kind that is known here"
        assert str(refused.value) == expected


@pytest.mark.parametrize("sample", [True, False])
def test_texts_that_go_on(sample):
    demo = writer()
    answer = demo.ask({"prompt": "Bo.\nAnn plays"}, {"n_best": 2, "max_new_tokens": 6, "sample": sample, "seed": 3})
    assert answer.lead == "…Ann plays"
    assert len({text for text, _ in answer.rows}) == 2
    for number, (text, _) in enumerate(answer.rows):
        seen = demo.look(answer, number)
        assert seen.target_text == "Bo.\nAnn plays" + text
        assert len(seen.layers) == demo.model.config.num_hidden_layers
        # Nothing looks at what follows
        assert not np.triu(seen.weights, 1).any()


def test_scores_of_texts_that_go_on():
    """The one token that is written is the likeliest, so its probability is what one forward pass gives."""
    demo = writer()
    answer = demo.ask({"prompt": "Ann"}, {"n_best": 1, "max_new_tokens": 1, "sample": False})
    with torch.no_grad():
        steps = demo.model(**demo.tokenizer("Ann", return_tensors="pt")).logits[0, -1].log_softmax(-1)
    assert answer.rows[0][1] == pytest.approx(steps.max().item(), rel=1e-4)
    assert answer.rows[0][0] == demo.tokenizer.decode([steps.argmax().item()])


def test_any_token_can_be_drawn():
    demo = writer()
    with torch.no_grad():
        steps = demo.model(**demo.tokenizer("Ann", return_tensors="pt")).logits[0, -1]
    # Those that generate() would draw from, left to itself
    likely = {demo.tokenizer.decode([number]) for number in steps.topk(50).indices.tolist()}
    answer = demo.ask({"prompt": "Ann"}, {"n_best": 10, "max_new_tokens": 1, "temperature": 2.0})
    assert {text for text, _ in answer.rows} - likely


def test_missing_words():
    demo = reader("ForMaskedLM")
    answer = demo.ask({"text": "Ann <mask> the piano."}, {"top_k": 4})
    inputs = demo.tokenizer("Ann <mask> the piano.", return_tensors="pt")
    with torch.no_grad():
        chances = demo.model(**inputs).logits[0, inputs["input_ids"][0].tolist().index(4)].softmax(-1)
    assert [chance for _, chance in answer.rows] == pytest.approx(chances.topk(4).values.tolist(), rel=1e-4)
    assert demo.look(answer, 3).weights.shape == (len(inputs["input_ids"][0]),) * 2
    two = demo.ask({"text": "<mask> plays <mask>"}, {"top_k": 1})
    assert [place for _, place, _ in two.rows] == ["gap 1", "gap 2"]
    with pytest.raises(ValueError, match="The text has no gap: write <mask> where a word is missing"):
        demo.ask({"text": "Ann plays."})
    with pytest.raises(ValueError, match="The text has 42 tokens; the model takes at most 40"):
        demo.ask({"text": "Ann " * 39 + "<mask>"})


def test_classes():
    demo = reader("ForSequenceClassification", id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    for given in ({"text": TEXTS[0]}, {"text": TEXTS[0], "text_pair": "Ann"}):
        with torch.no_grad():
            logits = demo.model(**demo.tokenizer(*given.values(), return_tensors="pt")).logits[0]
        chances = dict(zip(("bad", "good"), logits.softmax(-1).tolist(), strict=True))
        answer = demo.ask(given)
        assert dict(answer.rows) == pytest.approx(chances, rel=1e-4)
        assert answer.rows[0][1] == max(chances.values())
    # Both texts, and three special tokens
    tokens = len(demo.tokenizer.tokenize(TEXTS[0])) + 1 + 3
    assert demo.look(answer).weights.shape == (tokens, tokens)


def test_a_number_is_no_class():
    demo = reader("ForSequenceClassification", num_labels=1, problem_type="regression")
    # A value that could be a probability
    torch.nn.init.zeros_(demo.model.classifier.weight)
    torch.nn.init.constant_(demo.model.classifier.bias, 0.25)
    answer = demo.ask({"text": TEXTS[0]})
    assert answer.columns == ("class", "value")
    assert [score for _, score in answer.rows] == pytest.approx([0.25])
    assert answer.shares == ()


def test_parts():
    demo = reader("ForTokenClassification", id2label={0: "O", 1: "B-PER"}, label2id={"O": 0, "B-PER": 1})
    answer = demo.ask({"text": TEXTS[1]})
    assert answer.rows or answer.notes
    assert all(part in TEXTS[1] and label == "PER" and 0 < score <= 1 for part, label, score in answer.rows)


def test_answers_to_questions():
    demo = reader("ForQuestionAnswering")
    answer = demo.ask({"question": "Ann?", "context": TEXTS[1]}, {"top_k": 5})
    scores = [score for *_, score in answer.rows]
    assert scores == sorted(scores, reverse=True)
    assert all(text in TEXTS[1] and around == TEXTS[1] for text, around, _ in answer.rows)
    seen = demo.look(answer, 4)
    assert seen.target == demo.tokenizer.tokenize("Ann?")
    with pytest.raises(ValueError, match="The question has 65 tokens; at most 64 are read"):
        demo.ask({"question": "Ann " * 65, "context": TEXTS[1]})
    # What the pipeline would cut a question at
    assert inspect.signature(demo.pipe.preprocess).parameters["max_question_len"].default == 64


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ({"text": "  \n"}, {}, "Text is empty: write something first"),
        ({}, {}, "Text is empty"),
        ({"text": 3}, {}, "Text is a int; it must be a text"),
        ({"text": "due"}, {"n_best": 11}, "Outputs is 11; it must be at most 10"),
        ({"text": "due"}, {"n_best": 0}, "Outputs is 0; it must be at least 1"),
        ({"text": "due"}, {"n_best": 2.5}, "Outputs is 2.5; it must be a whole number"),
        ({"text": "due"}, {"beams": "4"}, "Beams of the search is '4'; it must be a number"),
        ({"text": "due"}, {"beams": float("inf")}, "Beams of the search is inf; it must be a number"),
        ({"text": "due"}, {"temperature": float("nan")}, "Temperature of what is drawn is nan; it must be a number"),
        ({"text": "due"}, {"sample": "false"}, "instead of searching is 'false'; it must be true or false"),
        ({"text": "due"}, {"n_best": 5, "beams": 4}, "is 4, which can't give 5 outputs"),
    ],
)
def test_what_is_wrong_is_told(given, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        translator().ask(given, settings)


def test_what_does_not_fit_is_refused_and_never_cut():
    demo = translator("Transformer", max_position_embeddings=10)
    assert demo.ask({"text": "due " * 9}, {"max_new_tokens": 3}).rows
    with pytest.raises(ValueError, match="The text has 11 tokens; the model takes at most 10"):
        demo.ask({"text": "due " * 10})
    # The first of 12 positions is that after padding's, which has 1
    tokenizer = reader("ForMaskedLM").tokenizer
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=12, **sizes, pad_token_id=1)
    roberta = FillMaskDemo(RobertaForMaskedLM(config), tokenizer)
    assert roberta.ask({"text": "Ann " * 7 + "<mask>"}).rows
    with pytest.raises(ValueError, match="The text has 11 tokens; the model takes at most 10"):
        roberta.ask({"text": "Ann " * 8 + "<mask>"})
    text = writer(max_position_embeddings=20)
    with pytest.raises(ValueError, match=r"and 18 new ones are asked for, \d+ together; the model takes at most 20"):
        text.ask({"prompt": "Ann plays"}, {"max_new_tokens": 18})


def test_a_map_that_is_too_large_for_a_page(monkeypatch):
    demo = translator("Transformer")
    answer = demo.ask({"text": "due sei"}, {"n_best": 1, "max_new_tokens": 4})
    seen = demo.look(answer)
    size, whole = seen.weights.size, 2 * 4 * seen.weights.size
    assert [layer.shape[0] for layer in seen.layers] == [4, 4]

    def shown(most):
        monkeypatch.setattr("hf_attnzoo.app.fragments._MOST_WEIGHTS", most)
        parsed = _Texts(fragments.frame(seen))
        (page,) = [attributes["srcdoc"] for tag, attributes in parsed.tags if tag == "iframe"]
        data, _ = json.JSONDecoder().raw_decode(page, page.index('{"source"'))
        return parsed.text, len(data["views"])

    # The map itself, and a view of either layer
    assert shown(whole) == ("", 3)
    assert shown(whole - 1) == (
        f"Shown is the mean of the last layer's heads. The model has 2 layers with 8 heads in all: {whole} weights, "
        f"and a page holds at most {whole - 1}. A shorter text shows them all.",
        1,
    )
    assert shown(size)[1] == 1
    with pytest.raises(ValueError, match=f"it has {size} weights, and a page holds at most {size - 1}: "):
        shown(size - 1)


class _Texts(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_texts_on_a_page_are_no_code():
    answer = Answer((NASTY, NASTY), ((NASTY, NASTY, 0.5),), shares=(0.5,), lead=NASTY, notes=(NASTY,))
    demo = translator()
    demo.name = demo.summary = NASTY
    for page, times in ((fragments.table(answer), 6), (fragments.header(demo), 2), (fragments.error(NASTY), 1)):
        parsed = _Texts(page)
        assert parsed.text.count(NASTY) == times
        assert not {"img", "script"} & {tag for tag, _ in parsed.tags}
    seen = hf_attnzoo.AttentionMap([NASTY], [NASTY], np.ones((1, 1)), NASTY, NASTY)
    ((tag, attributes),) = _Texts(fragments.frame(seen)).tags
    assert tag == "iframe"
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["srcdoc"].startswith("<!doctype html>")
    assert "<img" not in attributes["srcdoc"]


def test_choices_of_a_map():
    rows = (("first\nline", 0.9), ("", 0.1), ("x" * 50, 0.0))
    answer = Answer(("output", "score"), rows, looks=(lambda: None,) * 3)
    assert fragments.choices(answer) == [("1 · first line", 0), ("2 · (nothing)", 1), (f"3 · {'x' * 35}…", 2)]
    assert fragments.choices(Answer(("output", "score"), rows, looks=(lambda: None,))) == []


CARD = """---
# For what may stand here, see the Hub
license: mit
---

```bash
# install it
```

# dates

```python
import nothing
translate = pipeline("x")
translate("12 mars \\n 2019")
translate(text)
broken(
```

```python
translate({["no key"]: 1})
translate("3. Mai 1988", num_beams=4)
```

## Samples

| source | reference | output |
| --- | --- | --- |
| a \\| b\\<c\\> | x | y |
| 3. Mai 1988 | x | y |

## Data
"""


def test_examples_of_a_card(tmp_path):
    card = tmp_path / "README.md"
    card.write_text(CARD, encoding="utf-8")
    assert card_title(card) == "dates"
    found = list(card_examples(card, TranslationDemo.fields))
    # The first block is no Python, the first call of the other fails; a sample that stands in the code comes once
    assert found == [{"text": "3. Mai 1988"}, {"text": "a | b<c>"}]
    assert list(card_examples(card, ContinuationDemo.fields)) == [{"prompt": "3. Mai 1988"}]
    (tmp_path / "secret.png").write_bytes(b"")
    inner = tmp_path / "model"
    inner.mkdir()
    (inner / "README.md").write_text('```python\ncaption("../secret.png")\n```\n', encoding="utf-8")
    fields = captioner().fields
    assert list(card_examples(inner / "README.md", fields)) == []
    (inner / "secret.png").write_bytes(b"")
    assert list(card_examples(inner / "README.md", fields)) == [{"image": str(inner / "secret.png")}]


def test_loading_a_trained_model(tiny_run):
    demo = load_demo(tiny_run.model)
    assert isinstance(demo, TranslationDemo)
    assert demo.name == "tiny-reversal"
    assert demo.summary.startswith("rnnsearch: ")
    first = demo.examples[0]
    assert set(first) == {"text"}
    assert demo.ask(first).rows
    assert load_demo(tiny_run.model, name="mine").name == "mine"


@pytest.mark.parametrize(
    "head", ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_the_head_says_what_is_asked(tmp_path, head):
    made = reader(head)
    made.model.save_pretrained(tmp_path / "my-bert")
    made.tokenizer.save_pretrained(tmp_path / "my-bert")
    demo = load_demo(tmp_path / "my-bert")
    assert type(demo) is type(made)
    assert (demo.name, demo.examples) == ("my-bert", ())


@pytest.mark.parametrize(
    ("name", "message"),
    [("BERTModel", "a BERTModel lacks what AutoModelForMaskedLM needs"), ("BERTForMultipleChoice", "would be random")],
)
def test_a_model_without_such_a_head_is_refused(tmp_path, name, message):
    made = reader("ForMaskedLM")
    getattr(hf_attnzoo, name)(made.model.config).save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_demo(tmp_path)


def test_code_of_a_model_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("a question was asked"))
    (tmp_path / "own.py").write_text("raise SystemExit", encoding="utf-8")
    content = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="custom code"):
        load_demo(tmp_path)


def test_pretraining_heads_fill_in(tmp_path):
    made = reader("ForMaskedLM")
    hf_attnzoo.BERTForPreTraining(made.model.config).save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    assert type(load_demo(tmp_path)) is type(made)


def test_models_of_transformers(tmp_path):
    tokenizer = writer().tokenizer
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 2, "eos_token_id": 3}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    demo = load_demo(tmp_path / "gpt2")
    assert isinstance(demo, ContinuationDemo)
    assert demo.look(demo.ask({"prompt": "Ann"}, {"max_new_tokens": 4})).layers[0].shape[0] == 2
    with pytest.raises(ValueError, match="the model takes at most 32"):
        demo.ask({"prompt": "Ann"}, {"max_new_tokens": 32})

    words = translator().tokenizer
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    ids = {"pad_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    MarianMTModel(MarianConfig(vocab_size=len(words), **sizes, **heads, **ids)).save_pretrained(tmp_path / "marian")
    words.save_pretrained(tmp_path / "marian")
    demo = load_demo(tmp_path / "marian")
    assert isinstance(demo, TranslationDemo)
    seen = demo.look(demo.ask({"text": "due sei"}, {"max_new_tokens": 5}))
    assert [layer.shape[0] for layer in seen.layers] == [2, 2]
