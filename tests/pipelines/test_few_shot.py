"""Tasks told by examples: prompts, labels scored by hand, calibration, what is dropped, and what is read once."""

import functools
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    pipeline,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

import hf_attnzoo
from hf_attnzoo import FewShotPipeline, GPTConfig, GPTForCausalLM, RNNLMConfig, RNNLMForCausalLM
from hf_attnzoo.pipelines import ExampleSelector, PromptTemplate

TASK = "attnzoo-few-shot"
TEMPLATE = "Q: {source}\nA: {target}"
EXAMPLES = [
    {"source": "one cat", "target": "cat"},
    {"source": "two dogs", "target": "dog"},
    {"source": "a red cat", "target": "red"},
    {"source": "no dog", "target": "no"},
]
TEXT = "".join(f"{each['source']} {each['target']}\n" for each in EXAMPLES) + "QA: N/A bdfghklmpuvwxyz."


@pytest.fixture(scope="module")
def tokenizer():
    return hf_attnzoo.train_tokenizer("character", [TEXT], causal=True)


@pytest.fixture(scope="module")
def subwords():
    return hf_attnzoo.train_tokenizer("byte-bpe", [TEXT] * 3, vocab_size=320, causal=True)


def make(kind: str, size: int):
    """A small model whose next token depends on all that it has read."""
    torch.manual_seed(0)
    common = {"vocab_size": size, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    stock = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    stock |= {"num_key_value_heads": 1, "max_position_embeddings": 256}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=256, **common))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**stock, **common))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**stock, sliding_window=8, **common))
    elif kind == "gpt":
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 256}
        model = GPTForCausalLM(GPTConfig(vocab_size=size, **shape))
    else:
        model = RNNLMForCausalLM(RNNLMConfig(vocab_size=size, embedding_size=16, hidden_size=16))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def pipe_of(kind: str, tokenizer, **options) -> FewShotPipeline:
    model = make(kind, len(tokenizer))
    options = {"template": TEMPLATE, "examples": EXAMPLES} | options
    return pipeline(TASK, model=model, tokenizer=tokenizer, device="cpu", **options)


KINDS = ["gpt2", "llama", "gpt", "rnnlm"]


def test_what_a_prompt_looks_like(tokenizer):
    template = PromptTemplate(TEMPLATE, "Say {it}.\n", "\n--\n")
    assert template.inputs == ("source",)
    assert template.answer == "target"
    assert template.end == "\n--\n"
    assert template.head(EXAMPLES[:2]) == "Say {it}.\nQ: one cat\nA: cat\n--\nQ: two dogs\nA: dog\n--\n"
    # The space goes with the answer
    assert template.asked("a {target}") == ("Q: a {target}\nA:", " ")
    several = PromptTemplate("{title}, {sub} = {body}!")
    assert several.inputs == ("title", "sub")
    assert several.end == "!\n"
    assert several.asked({"title": "x", "sub": "{title}", "body": "left out"}) == ("x, {title} =", " ")
    pipe = pipe_of("gpt", tokenizer, shots=1, instruction="Do.\n", max_new_tokens=3)
    answer = pipe("a cat", return_prompt=True)
    assert answer["prompt"] == "Do.\nQ: one cat\nA: cat\nQ: a cat\nA:"
    assert answer["shots"] == 1


def log_probs_by_hand(model, tokenizer, prompt: str, answer: str) -> list[float]:
    """One token at a time, without a cache."""
    ids, found = tokenizer(prompt)["input_ids"], []
    for index in tokenizer(answer, add_special_tokens=False)["input_ids"]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        found.append(logits.double().log_softmax(-1)[index].item())
        ids = [*ids, index]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_scored_as_a_loop_does(kind, tokenizer):
    pipe = pipe_of(kind, tokenizer, labels=["cat", "no", "red dog"], return_scores=True)
    shots = "".join(f"Q: {each['source']}\nA: {each['target']}\n" for each in EXAMPLES)
    queries = ["a dog", "two red cats", "x"]
    expected = {}
    for query in queries:
        for label in ("cat", "no", "red dog"):
            expected[query, label] = log_probs_by_hand(pipe.model, tokenizer, f"{shots}Q: {query}\nA:", f" {label}")
    for options in ({}, {"batch_size": 3}, {"batch_size": 2, "share_prefix": False}, {"share_prefix": True}):
        for normalize in ("tokens", "none"):
            answers = pipe(queries, normalize=normalize, **options)
            for query, answer in zip(queries, answers, strict=True):
                values = {
                    label: sum(expected[query, label]) / (len(label) + 1 if normalize == "tokens" else 1)
                    for label in ("cat", "no", "red dog")
                }
                total = sum(map(math.exp, values.values()))
                assert [one["label"] for one in answer] == sorted(values, key=values.get, reverse=True)
                for one in answer:
                    assert one["score"] == pytest.approx(math.exp(values[one["label"]]) / total, abs=1e-5)
                    assert one["log_prob"] == pytest.approx(sum(expected[query, one["label"]]), abs=2e-4)
                    assert one["tokens"] == len(one["label"]) + 1
    best = pipe("a dog", return_scores=False)
    assert set(best) == {"label", "score"}


def test_a_token_that_prompt_and_label_share_is_scored(subwords):
    pipe = pipe_of("gpt2", subwords, template="{source} {target}", examples=[], return_scores=True)
    # A space joins what follows: the prompt ends before it, and the label begins with it.
    answer = pipe("one", labels=["cat", "dog"])
    for one in answer:
        by_hand = log_probs_by_hand(pipe.model, subwords, "one", f" {one['label']}")
        assert one["log_prob"] == pytest.approx(sum(by_hand), abs=1e-4)
        assert one["tokens"] == len(by_hand)
    # Without it "o" and "ne" make one token, or fewer than apart: all labels are scored from where they differ.
    glued = pipe("ca", template="{source}{target}", labels=["t", "x"])
    whole = {label: subwords(f"ca{label}")["input_ids"] for label in ("t", "x")}
    prompt = subwords("ca")["input_ids"]
    start = min(
        next((n for n, (a, b) in enumerate(zip(prompt, ids, strict=False)) if a != b), len(prompt))
        for ids in whole.values()
    )
    assert start < len(prompt)
    assert {one["label"]: one["tokens"] for one in glued} == {label: len(ids) - start for label, ids in whole.items()}


def test_calibration_by_hand(tokenizer):
    pipe = pipe_of("gpt", tokenizer, labels={"yes": "cat", "no": "dog"}, return_scores=True, shots=2, normalize="none")
    plain = {one["label"]: one["score"] for one in pipe("a cat")}
    assert plain["yes"] + plain["no"] == pytest.approx(1)
    priors = []
    for text in ("N/A", ""):
        shots = "Q: one cat\nA: cat\nQ: two dogs\nA: dog\n"
        sums = [
            sum(log_probs_by_hand(pipe.model, tokenizer, f"{shots}Q: {text}\nA:", f" {a}")) for a in ("cat", "dog")
        ]
        priors.append(1 / (1 + math.exp(sums[1] - sums[0])))
    for given, prior in (("N/A", priors[0]), (["N/A", ""], sum(priors) / 2)):
        weights = {"yes": plain["yes"] / prior, "no": plain["no"] / (1 - prior)}
        answer = pipe("a cat", calibrate=True, content_free=given)
        for one in answer:
            assert one["score"] == pytest.approx(weights[one["label"]] / sum(weights.values()), abs=1e-5)
            assert one["uncalibrated"] == pytest.approx(plain[one["label"]], abs=1e-5)
    # The query that says nothing is as likely one as the other
    assert [one["score"] for one in pipe("N/A", calibrate=True)] == pytest.approx([0.5, 0.5])


def test_calibration_does_not_depend_on_the_batch(tokenizer):
    options = {"select": "random", "shots": 2, "calibrate": True}
    pipe = pipe_of("gpt2", tokenizer, labels=["cat", "dog", "red"], return_scores=True, **options)
    queries = ["a cat", "two", "no red dog"]
    for one, other in zip(pipe(queries, batch_size=3), map(pipe, queries), strict=True):
        assert [each["label"] for each in one] == [each["label"] for each in other]
        assert [each["score"] for each in one] == pytest.approx([each["score"] for each in other], abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "select"), [*((kind, "fixed") for kind in KINDS), ("llama", "nearest"), ("rnnlm", "random")]
)
def test_what_is_read_once_changes_nothing(kind, select, tokenizer):
    options = {"select": select, "instruction": "no red cat.\n", "shots": 2, "max_new_tokens": 6, "stop": "\0"}
    options |= {"embed": "word-overlap"} if select == "nearest" else {}
    pipe = pipe_of(kind, tokenizer, **options)
    queries = ["a dog", "two red cats and a dog", "x"]
    alone = []
    for query in queries:
        prompt = tokenizer(pipe(query, return_prompt=True)["prompt"], return_tensors="pt", return_token_type_ids=False)
        ids = pipe.model.generate(**prompt, max_new_tokens=6, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        alone.append(tokenizer.decode(ids, skip_special_tokens=True).strip())
    assert len(set(alone)) > 1
    for share, size in ((False, 3), (True, 2), (True, 3)):
        answers = pipe(queries, batch_size=size, share_prefix=share)
        assert [one["generated_text"] for one in answers] == alone
    beams = [
        pipe(queries, batch_size=3, num_beams=3, return_scores=True, share_prefix=share) for share in (True, False)
    ]
    for one, other in zip(*beams, strict=True):
        assert one["generated_text"] == other["generated_text"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_examples_are_read_once_in_a_call(kind, tokenizer):
    pipe = pipe_of(kind, tokenizer, labels=["cat", "dog"])
    lengths = []
    pipe.model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    head = len(tokenizer("".join(f"Q: {each['source']}\nA: {each['target']}\n" for each in EXAMPLES))["input_ids"])
    pipe(["a", "b", "c", "d"], batch_size=2)
    assert lengths[0] == (1, head)
    # The rest of what a batch has in common, and its four rows
    assert lengths[1:] == [(1, 3), (4, 7), (1, 3), (4, 7)]
    assert sum(rows * length for rows, length in lengths) < head * 3
    lengths.clear()
    pipe(["a", "b", "c", "d"], batch_size=2, share_prefix=False)
    assert lengths == [(4, head + 10)] * 2


def test_a_cache_that_can_not_be_shared_is_not(tokenizer):
    pipe = pipe_of("mistral", tokenizer, labels=["cat", "dog"], return_scores=True)
    queries = ["a dog", "x"]
    for one, other in zip(pipe(queries, batch_size=2), pipe(queries, share_prefix=False), strict=True):
        assert one[0]["score"] == pytest.approx(other[0]["score"], abs=1e-5)
    with pytest.raises(ValueError, match="share_prefix=True, but what a MistralForCausalLM remembers"):
        pipe(queries, share_prefix=True)
    with pytest.raises(ValueError, match="share_prefix=True needs use_cache"):
        pipe_of("gpt2", tokenizer)("x", share_prefix=True, use_cache=False)


def test_truncation_drops_examples_and_never_the_query(tokenizer):
    pipe = pipe_of("gpt2", tokenizer, max_new_tokens=5, return_prompt=True)
    shots = [f"Q: {each['source']}\nA: {each['target']}\n" for each in EXAMPLES]
    query = "Q: a dog\nA:"
    # One for <s>; of five new tokens the last is not read
    for kept in range(5):
        length = 1 + len("".join(shots[4 - kept :])) + len(query) + 4
        for more, expected in ((0, kept), (-1, kept - 1)):
            if expected < 0:
                with pytest.raises(ValueError, match=rf"makes {length} tokens .* and {length - 1} is the most"):
                    pipe("a dog", context_length=length - 1)
                continue
            answer = pipe("a dog", context_length=length + more)
            assert answer["shots"] == expected
            assert answer["prompt"] == "".join(shots[4 - expected :]) + query
    # A long query loses more, and its neighbours in the batch nothing
    length = 1 + len("".join(shots)) + len(query) + 4
    answers = pipe(["a dog", "a" * 30, "a dog"], context_length=length, batch_size=3)
    assert [one["shots"] for one in answers] == [4, 2, 4]
    # Of labels the longest counts, but for its last token
    length = 1 + len("".join(shots[1:])) + len(query) + len(" red dog") - 1
    for more, expected in ((0, 3), (-1, 2)):
        assert pipe("a dog", labels=["red dog", "no"], context_length=length + more)["shots"] == expected


def test_the_model_s_own_limit(tokenizer):
    pipe = pipe_of("gpt", tokenizer, max_new_tokens=5)
    assert pipe("a" * 175, return_prompt=True)["shots"] == 3
    with pytest.raises(ValueError, match="256 is the most that the model can read"):
        pipe("a" * 250)
    with pytest.raises(ValueError, match="context_length=257 must lie between 1 and what the model can read, 256"):
        pipe("a", context_length=257)
    # A recurrence has none
    assert pipe_of("rnnlm", tokenizer, max_new_tokens=2)("a" * 300, return_prompt=True)["shots"] == 4


class Spelling(torch.nn.Module):
    """Logits that write a text after any prompt that ends with `A:`, letter by letter, and then `</s>`."""

    def __init__(self, tokenizer, text: str):
        super().__init__()
        self.tokenizer, self.text = tokenizer, text

    def forward(self, input_ids=None, **kwargs):
        logits = torch.zeros(*input_ids.shape, len(self.tokenizer))
        for number, row in enumerate(input_ids):
            written = self.tokenizer.decode(row, skip_special_tokens=True).rsplit("A:", 1)[1]
            rest = self.tokenizer(self.text, add_special_tokens=False)["input_ids"][len(written) :]
            logits[number, -1, rest[0] if rest else self.tokenizer.eos_token_id] = 9.0
        return CausalLMOutputWithPast(logits=logits)


@pytest.mark.parametrize(
    ("stop", "expected", "steps"),
    [
        (None, "cat", 5),
        ("dog", "cat\nQ: two", 15),
        (["zzz", " two", "dog"], "cat\nQ:", 11),
        ("zzz", "cat\nQ: two dogs", 17),
    ],
)
def test_stop_strings_end_what_is_written(tokenizer, stop, expected, steps, monkeypatch):
    text = " cat\nQ: two dogs"
    pipe = pipe_of("gpt", tokenizer, max_new_tokens=40, use_cache=False)
    spelling, calls = Spelling(tokenizer, text), []

    @functools.wraps(pipe.model.forward)
    def forward(**kwargs):
        calls.append(kwargs["input_ids"].shape)
        return spelling(**kwargs)

    monkeypatch.setattr(pipe.model, "forward", forward)
    answer = pipe("a", stop=stop)
    assert answer == {"generated_text": expected}
    # No token is written after the one that completes a stop
    assert len(calls) == steps


def numbers(selector: ExampleSelector, query: str) -> list[int]:
    return selector.choose([{"source": query}])[0]


def test_nearest_by_words_by_hand():
    selector = ExampleSelector(EXAMPLES, ["source"], 2, "nearest", embed="word-overlap")
    # "A dog": no dog 1/3, a red cat 1/4, one cat and two dogs nothing
    assert selector.similarities(["A dog!"])[0] == pytest.approx([0, 0, 1 / 4, 1 / 3])
    assert numbers(selector, "A dog!") == [2, 3]
    # Equal ones in the order of the list, the nearest last
    assert numbers(selector, "zebra") == [1, 0]
    assert numbers(selector, "cat") == [2, 0]


def test_nearest_by_tf_idf_by_hand():
    selector = ExampleSelector(EXAMPLES, ["source"], 1, "nearest", embed="tf-idf")
    # cat stands in two of four examples, every other word in one, and "big" in none
    rare, common, unseen = (1 + math.log(5 / (1 + count)) for count in (1, 2, 0))
    query = math.hypot(common, rare, unseen)
    expected = [
        common * common / query / math.hypot(common, rare),
        0,
        (common * common + rare * rare) / query / math.hypot(rare, rare, common),
        0,
    ]
    assert selector.similarities(["big red cat"])[0] == pytest.approx(expected)
    assert numbers(selector, "big red cat") == [2]


def test_nearest_by_vectors():
    seen = []

    def embed(texts):
        seen.append(texts)
        # Length doesn't count, and vectors of tokens, in a batch of one, have their mean taken
        table = {"one cat": [9.0, 0.1], "two dogs": [0.0, 1.0], "a red cat": [1.0, 1.0], "no dog": [-1.0, 0.0]}
        return [[[[2.0, 0.0], [0.0, 1.0]]] if text == "q" else table[text] for text in texts]

    selector = ExampleSelector(EXAMPLES, ["source"], 3, "nearest", embed=embed)
    assert numbers(selector, "q") == [1, 0, 2]
    assert numbers(selector, "q") == [1, 0, 2]
    # The examples are embedded once
    assert seen == [[each["source"] for each in EXAMPLES], ["q"], ["q"]]
    root = math.sqrt(5)
    near = selector.similarities(["q"])[0]
    assert near == pytest.approx([18.1 / root / math.hypot(9, 0.1), 1 / root, 3 / root / math.sqrt(2), -2 / root])


def test_nearest_by_a_feature_extraction_pipeline(tokenizer):
    embedder = pipeline("feature-extraction", model=make("gpt", len(tokenizer)).eval().model, tokenizer=tokenizer)
    pipe = pipe_of("gpt", tokenizer, select="nearest", embed=embedder, shots=1, return_prompt=True, max_new_tokens=1)
    for example in EXAMPLES:
        assert pipe(example["source"])["prompt"].startswith(f"Q: {example['source']}\nA: {example['target']}\n")


def test_random_examples_depend_on_seed_and_query_alone():
    examples = [{"source": str(number), "target": "x"} for number in range(50)]
    drawn = [ExampleSelector(examples, ["source"], 4, "random", seed=seed) for seed in (0, 0, 1)]
    first, again, other = (selector.choose([{"source": "a"}, {"source": "b"}]) for selector in drawn)
    assert first == again
    assert drawn[0].choose([{"source": "b"}]) == first[1:]
    assert first[0] != first[1]
    assert first != other
    assert all(len(set(row)) == 4 for row in first)


def test_inputs_of_every_kind(tokenizer):
    pipe = pipe_of("gpt", tokenizer, labels=["cat", "dog"], batch_size=2)
    queries = ["a", "two", "x"]
    expected = [pipe(query) for query in queries]
    for answers in (pipe(queries), list(pipe(iter(queries))), pipe([{"source": query} for query in queries])):
        assert [one["label"] for one in answers] == [one["label"] for one in expected]
        assert [one["score"] for one in answers] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert pipe([]) == []
    several = pipe("a", template="{source}/{target}", labels=None, num_return_sequences=2, do_sample=True)
    assert len(several) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": None}, "template=None"),
        ({"template": "{target}"}, "template='{target}' must have a field"),
        ({"template": "{a} {b} {b}"}, "which stands once"),
        ({"template": "{a} {target}"}, "has a=None"),
        ({"template": PromptTemplate(TEMPLATE), "instruction": "x"}, "template is a PromptTemplate"),
        ({"examples": [{"source": "a"}]}, "has target=None"),
        ({"shots": 5}, "shots=5 must lie between 0 and the number of examples, 4"),
        ({"shots": -1}, "shots=-1"),
        ({"select": "best"}, "select='best' must be one of fixed, random, nearest"),
        ({"select": "nearest"}, "embed=None: select='nearest' needs"),
        ({"select": "nearest", "embed": "bm25"}, "embed='bm25'"),
        ({"embed": "tf-idf"}, "embed is for select='nearest'"),
        ({"labels": ["a"]}, "labels=.* must be at least 2"),
        ({"labels": "ab"}, "labels='ab'"),
        ({"labels": ["a", "a"]}, "must differ"),
        ({"labels": ["", "a"], "template": "{source}:{target}"}, "which adds no token"),
        ({"labels": ["a", "b"], "normalize": "words"}, "normalize='words'"),
        ({"labels": ["a", "b"], "stop": "x"}, "stop='x' is for what a model writes"),
        ({"labels": ["a", "b"], "num_beams": 2}, "num_beams is for what a model writes"),
        ({"calibrate": True}, "calibrate=True is for labels"),
        ({"labels": ["a", "b"], "calibrate": True, "content_free": []}, "content_free"),
        ({"stop": ["a", ""]}, "has an empty text"),
        ({"max_length": 9}, "max_length=9 would count the prompt"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"context_length": 0}, "context_length=0"),
    ],
)
def test_refuses_clearly(tokenizer, options, message):
    pipe = pipe_of("gpt", tokenizer)
    with pytest.raises(ValueError, match=message):
        pipe("a", **options)


def test_refuses_models_and_queries_of_other_kinds(tokenizer):
    pipe = pipe_of("gpt", tokenizer)
    with pytest.raises(ValueError, match="query=3 must be a text"):
        pipe([3])
    with pytest.raises(ValueError, match=r"inputs=None must be a text, a dict of texts, or a list"):
        pipe(None)
    with pytest.raises(ValueError, match="query='a' is one text, and the template has x, y"):
        pipe("a", template="{x} {y} {z}", examples=[])
    config = hf_attnzoo.RNNSearchConfig(vocab_size=9, hidden_size=4, embedding_size=4, maxout_size=4)
    model = hf_attnzoo.RNNSearchForConditionalGeneration(config)
    with pytest.raises(ValueError, match="takes a causal language model"):
        FewShotPipeline(model, tokenizer=tokenizer, task=TASK)


def test_saved_with_its_code(tokenizer, tmp_path):
    # What goes with a recurrent model is its own cache too
    pipe = pipe_of("rnnlm", tokenizer)
    pipe.save_pretrained(tmp_path / "saved")
    queries = ["a dog", "x"]
    script = """
import json, sys
sys.modules["hf_attnzoo"] = None
from transformers import pipeline
pipe = pipeline("attnzoo-few-shot", model=sys.argv[1], trust_remote_code=True, device="cpu")
print(json.dumps(pipe(json.loads(sys.argv[4]), template=sys.argv[2], examples=json.loads(sys.argv[3]), batch_size=2,
                      labels=["cat", "dog"], share_prefix=True)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "saved"), TEMPLATE, json.dumps(EXAMPLES), json.dumps(queries)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for one, other in zip(found, pipe(queries, labels=["cat", "dog"]), strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
