"""A text that a model can't read whole is refused with the limit by every pipeline of transformers, not cut."""

import pytest
import torch
from transformers import pipeline

import hf_attnzoo
from hf_attnzoo import train_tokenizer

POSITIONS = 12
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": POSITIONS}
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
CASES = {
    "fill-mask": ("BERTForMaskedLM", {}, {}),
    "text-classification": ("BERTForSequenceClassification", {}, {}),
    "token-classification": ("BERTForTokenClassification", {}, {}),
    "feature-extraction": ("BERTModel", {}, {}),
    "zero-shot-classification": (
        "BERTForSequenceClassification",
        NLI,
        {"candidate_labels": ["a"], "hypothesis_template": "{}"},
    ),
    "text-generation": ("GPTForCausalLM", {}, {"max_new_tokens": 1}),
    "text-classification by a GPT": ("GPTForSequenceClassification", {}, {}),
    "token-classification by a GPT": ("GPTForTokenClassification", {}, {}),
}


@pytest.fixture(scope="module")
def tokenizers():
    """`a` is a token of either, and so is `b`."""
    return {
        "BERT": train_tokenizer("wordpiece", ["a b a b"]),
        "GPT": train_tokenizer("word", ["a b a b"], causal=True),
    }


@pytest.mark.parametrize("case", CASES)
def test_a_text_that_is_too_long_is_refused(tokenizers, case):
    name, fields, options = CASES[case]
    kind, task = name.split("For")[0].removesuffix("Model"), case.split(" ")[0]
    tokenizer = tokenizers[kind]
    torch.manual_seed(0)
    config = getattr(hf_attnzoo, f"{kind}Config")(vocab_size=len(tokenizer), **SIZES, **fields)
    pipe = pipeline(task, model=getattr(hf_attnzoo, name)(config), tokenizer=tokenizer, device="cpu")
    # <s>, and where a BERT reads </s> and a hypothesis with another
    around = {"GPT": 1, "BERT": 2}[kind] + (2 if task.startswith("zero") else 0)
    ending = ["<mask>"] if task == "fill-mask" else []
    fits = " ".join(["a"] * (POSITIONS - around - len(ending)) + ending)
    assert pipe(fits, **options)
    for inputs, more in ((f"a {fits}", {}), (["a " + ending[0] if ending else "a", f"a {fits}"], {"batch_size": 2})):
        with pytest.raises(
            ValueError, match=rf"position_ids reach {POSITIONS}, .*max_position_embeddings={POSITIONS}"
        ):
            pipe(inputs, **options, **more)


def test_what_is_written_beyond_the_table_is_refused(tokenizers):
    config = hf_attnzoo.GPTConfig(vocab_size=len(tokenizers["GPT"]), **SIZES)
    torch.manual_seed(0)
    write = pipeline(
        "text-generation",
        model=hf_attnzoo.GPTForCausalLM(config),
        tokenizer=tokenizers["GPT"],
        device="cpu",
        suppress_tokens=[3],
        return_tensors=True,
    )
    # <s> a b, and the last token is not read
    [answer] = write("a b", max_new_tokens=POSITIONS - 2)
    assert len(answer["generated_token_ids"]) == POSITIONS + 1
    with pytest.raises(ValueError, match=f"max_position_embeddings={POSITIONS}"):
        write("a b", max_new_tokens=POSITIONS - 1)
