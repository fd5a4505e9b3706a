"""GPT keeps the contract, in every variant of its norms, positions and caches."""

import importlib.util
import math
from itertools import chain

import pytest
import torch
import transformers
from transformers import AutoTokenizer, DynamicCache, QuantizedCache, StaticCache, Trainer, TrainingArguments, pipeline

from hf_attnzoo import (
    GPTConfig,
    GPTForCausalLM,
    GPTForSequenceClassification,
    GPTForTokenClassification,
    GPTModel,
    train_tokenizer,
)
from hf_attnzoo.models.classification import classification_loss
from hf_attnzoo.testing import CAUSAL_CONTRACT, CAUSAL_INTEGRATIONS, scattered

VARIANTS = {
    "gpt2": {"num_hidden_layers": 2},
    "gpt": {"norm_first": False, "hidden_act": "gelu", "dropout": 0.2, "attention_dropout": 0.2},
    "nanogpt": {"use_bias": False, "hidden_act": "gelu", "num_hidden_layers": 2, "embedding_dropout": 0.0},
    "untied-eager": {"tie_word_embeddings": False, "hidden_act": "relu", "intermediate_size": 12},
}
# Of these random models, those that write different words and whose beams change places.
SEEDS = {"gpt2": 11, "gpt": 11, "nanogpt": 10, "untied-eager": 15}
PAD, END = 1, 3
LEFT = torch.tensor([[4, 9, 7, 5], [PAD, PAD, 8, 6], [PAD, PAD, PAD, 11]])
RIGHT = torch.tensor([[4, 9, 7, 5], [8, 6, PAD, PAD], [11, PAD, PAD, PAD]])
TEXTS = [[4, 9, 7, 5], [8, 6], [11]]


def build(variant: str, head: type = GPTForCausalLM, **options) -> GPTForCausalLM:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes |= {"max_position_embeddings": 32, "dropout": 0.1, "attention_dropout": 0.0}
    model = head(GPTConfig(**(sizes | VARIANTS[variant] | options)))
    if variant == "untied-eager":
        model.set_attn_implementation("eager")
    return scattered(model, SEEDS[variant])


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("check", CAUSAL_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", CAUSAL_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("gpt2"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_models_under_test_write_different_words(variant):
    options = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
    output = build(variant).generate(LEFT, suppress_tokens=[END], **options)
    assert (output.beam_indices[:, 1:] != output.beam_indices[:, :-1]).sum() >= 4
    assert sum(len(set(row.tolist())) for row in output.sequences[:, 4:]) >= 8


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_nothing_reads_what_comes_later(implementation):
    model = build("gpt2")
    model.set_attn_implementation(implementation)
    ids = torch.randint(4, 20, (1, 9), generator=torch.Generator().manual_seed(0))
    logits = model(ids).logits
    for place in range(9):
        changed = ids.clone()
        changed[0, place] = 4 + (ids[0, place] - 3) % 16
        moved = (model(changed).logits - logits).abs().amax(dim=(0, 2))
        assert (moved[:place] < 1e-6).all()
        assert (moved[place:] > 1e-6).all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("packed", [False, True])
def test_no_gradient_comes_from_later_or_elsewhere(packed, implementation):
    model = build("gpt2").double()
    model.set_attn_implementation(implementation)
    ids = torch.randint(4, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 0, 1, 0, 0]]) if packed else None
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]] if packed else [[0] * 7] * 2)
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embeds, attention_mask=mask, position_ids=places).logits
    # Of the change of a later word, or of another document's, nothing arrives at all: not little, 0.
    for row, length in enumerate((7, 5)):
        for place in range(length):
            gradient = torch.autograd.grad(logits[row, place].square().sum(), embeds, retain_graph=True)[0]
            read = (torch.arange(7) <= place) & (documents[row] == documents[row, place])
            assert torch.equal(gradient[row].ne(0).any(dim=-1), read)
            assert not gradient[1 - row].any()
    changed = ids.clone()
    changed[0, 4] = 4 + (ids[0, 4] - 3) % 16
    before, after = (model(given, attention_mask=mask, position_ids=places).logits for given in (ids, changed))
    assert torch.equal(before[0, :4], after[0, :4])
    assert torch.equal(before[1, :5], after[1, :5])
    assert before[0, 4:].ne(after[0, 4:]).any(dim=-1).all()


class TestCaches:
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("beams", [1, 3])
    @pytest.mark.parametrize("kind", ["dynamic", "static"])
    def test_every_kind_writes_the_same(self, implementation, beams, kind):
        model = build("gpt2")
        model.set_attn_implementation(implementation)
        options = {"max_new_tokens": 8, "num_beams": beams, "suppress_tokens": [END]}
        plain = model.generate(LEFT, use_cache=False, **options)
        assert torch.equal(model.generate(LEFT, cache_implementation=kind, **options), plain)

    def test_one_that_the_caller_made_and_one_that_holds_a_beginning(self):
        model = build("gpt2")
        options = {"max_new_tokens": 6, "suppress_tokens": [END]}
        plain = model.generate(LEFT, use_cache=False, **options)
        mask = (LEFT != PAD).long()
        for make in (
            DynamicCache,
            lambda: DynamicCache(config=model.config),
            lambda: StaticCache(config=model.config, max_cache_len=12),
        ):
            assert torch.equal(model.generate(LEFT, cache=make(), **options), plain)
            cache = make()
            model(LEFT[:, :2], attention_mask=mask[:, :2], cache=cache)
            assert torch.equal(model.generate(LEFT, attention_mask=mask, cache=cache, **options), plain)

    def test_a_quantised_one(self):
        model = build("gpt2")
        ids = torch.tensor([TEXTS[0] + [12, 6]])
        whole = model(ids, use_cache=False).logits
        cache, pieces = QuantizedCache("fp8", model.config), []
        for piece in ids.split(1, dim=1):
            pieces.append(model(piece, cache=cache).logits)
        coarse = torch.cat(pieces, dim=1)
        assert (coarse - whole).abs().mean() < 0.1 * whole.abs().mean()
        assert not torch.allclose(coarse, whole, atol=1e-5), "nothing was quantised"
        options = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}, "max_new_tokens": 5}
        assert model.generate(LEFT, num_beams=3, **options).shape[0] == 3

    @pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
    def test_one_that_is_kept_elsewhere_is_refused_where_there_is_nothing_else(self, kind):
        with pytest.raises(ValueError, match=rf"cache_implementation='{kind}'.*'cpu'"):
            build("gpt2").generate(LEFT, cache_implementation=kind, max_new_tokens=2)

    @pytest.mark.skipif(importlib.util.find_spec("optimum") is not None, reason="the package is there")
    def test_a_quantised_one_needs_its_package(self):
        with pytest.raises(ImportError, match="optimum-quanto"):
            build("gpt2").generate(LEFT, cache_implementation="quantized", max_new_tokens=2)

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_a_prompt_in_pieces(self, size):
        model = build("gpt2")
        options = {"max_new_tokens": 6, "suppress_tokens": [END]}
        pieces = model.generate(LEFT, cache=DynamicCache(), prefill_chunk_size=size, **options)
        assert torch.equal(pieces, model.generate(LEFT, **options))

    def test_it_holds_keys_and_values_of_every_layer(self):
        cache = build("gpt2")(LEFT, use_cache=True).cache
        assert [layer.keys.shape for layer in cache.layers] == [(3, 2, 4, 4)] * 2
        assert build("gpt2").train()(LEFT).cache is None


class TestPadding:
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_holes_repeat_what_stands_before(self, implementation):
        model = build("gpt2")
        model.set_attn_implementation(implementation)
        mask = torch.tensor([[0, 1, 0, 1, 1, 0]])
        ids = torch.tensor([[15, 4, 15, 9, 7, 15]])
        alone = model(torch.tensor([[4, 9, 7]]), labels=torch.tensor([[4, 9, 7]]))
        holed = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
        close(holed.logits[:, 1:], alone.logits[:, [0, 0, 1, 2, 2]])
        # Also what follows a hole is predicted from what stands before it.
        close(holed.loss, alone.loss)

    @pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_prompts_may_be_padded_on_the_right(self, implementation, options):
        model = build("gpt2")
        model.set_attn_implementation(implementation)
        options = options | {"max_new_tokens": 6, "suppress_tokens": [END]}
        assert torch.equal(model.generate(RIGHT, **options)[:, 4:], model.generate(LEFT, **options)[:, 4:])
        without = options | {"use_cache": False}
        without.pop("cache_implementation", None)
        assert torch.equal(model.generate(RIGHT, **without)[:, 4:], model.generate(LEFT, **without)[:, 4:])

    def test_padding_that_also_ends_a_text_is_read_unless_a_mask_says_otherwise(self):
        model = build("gpt2", pad_token_id=END)
        ids = torch.tensor([[4, END, 5]])
        close(model(ids).logits, model(ids, attention_mask=torch.ones_like(ids)).logits)
        passed_over = model(ids, attention_mask=torch.tensor([[1, 0, 1]])).logits
        close(passed_over[:, 2], model(torch.tensor([[4, 5]])).logits[:, 1])

    def test_padding_that_the_model_writes_is_a_word(self):
        model = build("gpt2")

        def allowed(row: int, ids: torch.Tensor) -> list[int]:
            return [PAD] if len(ids) == 4 else list(range(4, 20))

        options = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
        read = model(torch.tensor([[4, 9, 7, 5, PAD]]), attention_mask=torch.ones(1, 5)).logits[0, -1]
        for prompts in (LEFT[:1], LEFT):
            for use_cache in (True, False):
                written = model.generate(prompts, prefix_allowed_tokens_fn=allowed, use_cache=use_cache, **options)
                assert written.sequences[0, 4] == PAD
                close(written.logits[1][0], read)


class TestPacked:
    """Documents one after the other in a row, told by position numbers that start anew."""

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("variant", ["gpt2", "gpt"])
    def test_each_is_as_it_is_alone(self, variant, implementation):
        model = build(variant)
        model.set_attn_implementation(implementation)
        ids = torch.tensor([[*chain(*TEXTS)], [*TEXTS[1], *TEXTS[0], PAD]])
        places = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [0, 1, 0, 1, 2, 3, 0]])
        mask = (ids != PAD).long()
        output = model(ids, attention_mask=mask, position_ids=places, labels=ids.masked_fill(mask == 0, -100))
        total = 0
        for row, start, text in ((0, 0, 0), (0, 4, 1), (0, 6, 2), (1, 0, 1), (1, 2, 0)):
            words = torch.tensor([TEXTS[text]])
            alone = model(words, labels=words)
            close(output.logits[row : row + 1, start : start + words.shape[1]], alone.logits)
            total = total + alone.loss * (words.shape[1] - 1)
        # The first word of a document isn't predicted from the one before: 3 + 1 + 0 and 1 + 3 words are.
        close(output.loss, total / 8)

    def test_they_train_as_they_do_alone(self):
        model = build("gpt2", dropout=0.0).train()
        ids, places = torch.tensor([[*chain(*TEXTS)]]), torch.tensor([[0, 1, 2, 3, 0, 1, 0]])
        model(ids, position_ids=places, labels=ids).loss.backward()
        packed = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        model.zero_grad()
        for text in TEXTS[:2]:
            model(torch.tensor([text]), labels=torch.tensor([text]), num_items_in_batch=4).loss.backward()
        for name, parameter in model.named_parameters():
            close(packed[name], parameter.grad)

    def test_they_have_no_cache(self):
        model, places = build("gpt2"), torch.tensor([[0, 1, 0, 1]])
        assert model(LEFT[:1], position_ids=places).cache is None
        with pytest.raises(ValueError, match=r"position_ids start anew.*cache"):
            model(LEFT[:1], position_ids=places, cache=DynamicCache())


class TestAssistance:
    def test_an_assistant_changes_nothing(self):
        model, assistant = build("gpt2"), build("nanogpt")
        for text in TEXTS:
            prompt, options = torch.tensor([text]), {"max_new_tokens": 12, "suppress_tokens": [END]}
            plain = model.generate(prompt, **options)
            assert torch.equal(model.generate(prompt, assistant_model=assistant, **options), plain)
            assert torch.equal(model.generate(prompt, assistant_model=model, **options), plain)

    def test_nor_does_leaving_early(self):
        model, depths = build("gpt2"), []
        first, last = model.model.stack.layers[0], model.model.stack.layers[-1]
        for layer in (first, last):
            layer.register_forward_hook(lambda layer, *_: depths.append(layer is last))
        prompt, options = torch.tensor([[4, 9, 7, 5]]), {"max_new_tokens": 12, "suppress_tokens": [END]}
        plain = model.generate(prompt, **options)
        depths.clear()
        assert torch.equal(model.generate(prompt, assistant_early_exit=1, **options), plain)
        assert sum(depths) < len(depths) - sum(depths), "no layer was left out"
        assert model.config.num_hidden_layers == len(model.model.stack.layers)

    def test_nor_does_looking_up_in_the_prompt(self, monkeypatch):
        model, lengths = build("gpt2"), []
        forward = GPTForCausalLM.forward

        def counting(self, input_ids=None, **inputs):
            lengths.append(input_ids.shape[1])
            return forward(self, input_ids=input_ids, **inputs)

        prompt, options = torch.tensor([[4, 9, 7, 5, 4, 9]]), {"max_new_tokens": 12, "suppress_tokens": [END]}
        plain = model.generate(prompt, **options)
        monkeypatch.setattr(GPTForCausalLM, "forward", counting)
        assert torch.equal(model.generate(prompt, prompt_lookup_num_tokens=3, **options), plain)
        assert max(lengths[1:]) > 1, "nothing was looked up"


class TestTooLong:
    """There are 32 positions."""

    def test_is_refused(self):
        model = build("gpt2")
        with pytest.raises(ValueError, match=r"reach 32, but.* 0 to 31.*max_position_embeddings=32"):
            model(torch.full((1, 33), 5))
        with pytest.raises(ValueError, match=r"reach -1, but.*none is negative"):
            model(torch.full((1, 2), 5), position_ids=torch.tensor([[-1, 0]]))
        with pytest.raises(ValueError, match=r"32.*31"):
            model.generate(LEFT[:1], max_new_tokens=30, suppress_tokens=[END])
        # The last word that is written is not read.
        assert model.generate(LEFT[:1], max_new_tokens=29, suppress_tokens=[END]).shape == (1, 33)

    def test_padding_does_not_count(self):
        model = build("gpt2")
        ids = torch.tensor([[PAD] * 30 + [5, 7, 8]])
        close(model(ids).logits[:, 30:], model(ids[:, 30:]).logits)


class TestOutputs:
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_attention_is_a_distribution_over_what_came_before(self, implementation):
        model = build("gpt2")
        model.set_attn_implementation(implementation)
        output = model(LEFT, output_attentions=True, output_hidden_states=True)
        assert len(output.attentions) == 2
        assert len(output.hidden_states) == 3
        real = LEFT != PAD
        for weights in output.attentions:
            assert weights.shape == (3, 2, 4, 4)
            assert weights.triu(1).eq(0).all()
            assert weights[~real[:, None, None].expand_as(weights)].eq(0).all()
            close(weights.sum(-1)[real[:, None].expand(3, 2, 4)], torch.ones(real.sum() * 2))
        close(output.logits, model(LEFT).logits)

    def test_generation_returns_it_step_by_step(self):
        options = {"max_new_tokens": 3, "output_attentions": True, "return_dict_in_generate": True}
        output = build("gpt2").generate(LEFT, suppress_tokens=[END], **options)
        shapes = [[tuple(layer.shape) for layer in step] for step in output.attentions]
        assert shapes == [[(3, 2, 4, 4)] * 2, [(3, 2, 1, 5)] * 2, [(3, 2, 1, 6)] * 2]


class TestSequences:
    """Told by the last word, wherever padding stands."""

    def model(self, **options):
        return build("gpt2", GPTForSequenceClassification, num_labels=3, **options)

    def test_batch_is_single(self):
        model = self.model()
        alone = [model(torch.tensor([text])).logits for text in TEXTS]
        for batch in (LEFT, RIGHT):
            close(model(batch).logits, torch.cat(alone))
        mask = (RIGHT != PAD).long()
        embeds = model.get_input_embeddings()(RIGHT)
        close(model(inputs_embeds=embeds, attention_mask=mask).logits, torch.cat(alone))
        hidden = model.model(torch.tensor([TEXTS[0]])).last_hidden_state[0, -1]
        close(alone[0][0], model.score.weight @ hidden)

    def test_losses(self):
        model, logits = self.model(), self.model()(LEFT).logits
        labels = torch.tensor([2, 0, 1])
        by_hand = -logits.log_softmax(-1)[torch.arange(3), labels]
        close(model(LEFT, labels=labels).loss, by_hand.mean())
        assert model.config.problem_type == "single_label_classification"
        close(model(LEFT, labels=labels, num_items_in_batch=12).loss, by_hand.sum() / 12)
        shares = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1]])
        p = logits.sigmoid()
        by_hand = -(shares * p.log() + (1 - shares) * (1 - p).log())
        close(self.model()(LEFT, labels=shares).loss, by_hand.mean())
        one = build("gpt2", GPTForSequenceClassification, num_labels=1)
        values = torch.tensor([0.5, -1.0, 2.0])
        close(one(LEFT, labels=values).loss, ((one(LEFT).logits[:, 0] - values) ** 2).mean())

    def test_it_learns(self):
        torch.manual_seed(0)
        model = self.model(dropout=0.0).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        labels = torch.tensor([2, 0, 1])
        for _ in range(30):
            optimizer.zero_grad()
            model(RIGHT, labels=labels).loss.backward()
            optimizer.step()
        assert model.eval()(LEFT).logits.argmax(-1).tolist() == [2, 0, 1]

    def test_refusals(self):
        model = self.model()
        with pytest.raises(ValueError, match=r"labels must be -100 or from 0 to 2.*up to 3"):
            model(LEFT, labels=torch.tensor([0, 1, 3]))
        with pytest.raises(ValueError, match=r"labels must have the shape \(3,\), got \(2,\)"):
            model(LEFT, labels=torch.tensor([0, 1]))
        with pytest.raises(ValueError, match=r"labels must have the shape \(3, 3\), got \(3, 2\)"):
            self.model()(LEFT, labels=torch.ones(3, 2))


def test_tokens_are_classified_one_by_one():
    model = build("gpt2", GPTForTokenClassification, num_labels=3)
    labels = torch.tensor([[0, 1, 2, 0], [-100, -100, 1, 1], [-100, -100, -100, 2]])
    output = model(LEFT, labels=labels)
    assert output.logits.shape == (3, 4, 3)
    for row, text in enumerate(TEXTS):
        close(output.logits[row, -len(text) :], model(torch.tensor([text])).logits[0])
    counted = labels != -100
    by_hand = -output.logits.log_softmax(-1)[counted].gather(1, labels[counted][:, None])
    close(output.loss, by_hand.mean())
    close(model(LEFT, labels=labels, num_items_in_batch=2).loss, by_hand.sum() / 2)
    dropped = build("gpt2", GPTForTokenClassification, num_labels=3, dropout=0.0, classifier_dropout=0.5).train()
    assert not torch.equal(dropped(LEFT).logits, dropped(LEFT).logits)


def test_no_label_no_loss():
    config = GPTConfig(num_labels=2)
    logits = torch.ones(2, 3, 2, requires_grad=True)
    loss = classification_loss(logits, torch.full((2, 3), -100), config)
    loss.backward()
    assert loss == 0
    assert logits.grad.eq(0).all()


class TestPipelines:
    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("gpt")
        texts = ["the cat sat on the mat", "a dog ate the hat", "na\u00efve \u732b"]
        tokenizer = train_tokenizer("byte-bpe", texts * 2, vocab_size=290, causal=True)
        tokenizer.save_pretrained(folder)
        config = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "dropout": 0.0}
        torch.manual_seed(0)
        model = GPTForCausalLM(GPTConfig(**config, attention_dropout=0.0, max_position_embeddings=64)).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        batch = tokenizer([text + "</s>" for text in texts], padding=True, return_tensors="pt")
        for _ in range(60):
            optimizer.zero_grad()
            model(**batch, labels=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)).loss.backward()
            optimizer.step()
        model.save_pretrained(folder)
        return folder

    def test_text_generation_with_prompts_of_any_length(self, folder):
        pipe = pipeline("text-generation", model=str(folder))
        assert pipe.tokenizer.padding_side == "left"
        prompts = ["the cat", "a dog ate the", "na\u00efve"]
        rest = [" sat on the mat", " hat", " \u732b"]
        options = {"max_new_tokens": 30, "do_sample": False, "return_full_text": False}
        assert [texts[0]["generated_text"] for texts in pipe(prompts, batch_size=3, **options)] == rest
        full = [texts[0]["generated_text"] for texts in pipe(prompts, max_new_tokens=30, do_sample=False)]
        assert full == [prompt + text for prompt, text in zip(prompts, rest, strict=True)]

    def test_stop_strings_and_streams(self, folder):
        pipe = pipeline("text-generation", model=str(folder))
        options = {"max_new_tokens": 30, "do_sample": False, "return_full_text": False}
        texts = pipe(["the cat", "a dog"], stop_sequence=["at"], batch_size=2, **options)
        assert [text["generated_text"] for (text,) in texts] == [" sat", " ate"]

        class Collector(transformers.TextStreamer):
            text = ""

            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                self.text += text

        for prompt, rest in (("the cat", " sat on the mat"), ("na\u00efve", " \u732b")):
            streamer = Collector(pipe.tokenizer, skip_prompt=True, skip_special_tokens=True)
            pipe(prompt, streamer=streamer, **options)
            assert streamer.text == rest

    def test_classification(self, folder, tmp_path):
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
        names = {"id2label": {0: "NOUN", 1: "OTHER"}, "label2id": {"NOUN": 0, "OTHER": 1}}
        config = GPTConfig.from_pretrained(folder, **names)
        texts = ["the cat", "a", "the mat sat on a hat"]
        for task, head in (
            ("text-classification", GPTForSequenceClassification),
            ("token-classification", GPTForTokenClassification),
        ):
            scattered(head(config), 2).save_pretrained(tmp_path)
            pipe = pipeline(task, model=str(tmp_path))
            alone = [pipe(text) for text in texts]
            together = pipe(texts, batch_size=3)
            flat = [entry for result in together for entry in (result if isinstance(result, list) else [result])]
            for one, other in zip([entry for result in alone for entry in result], flat, strict=True):
                entry = "label" if task == "text-classification" else "entity"
                assert one[entry] == other[entry]
                assert one[entry] in ("NOUN", "OTHER")
                assert math.isclose(one["score"], other["score"], abs_tol=1e-5)


def test_weights_begin_as_the_papers_say():
    config = GPTConfig.from_preset("tiny", num_hidden_layers=8, initializer_range=0.03)
    for norm_first in (True, False):
        config.norm_first = norm_first
        for name, value in GPTForCausalLM(config).named_parameters():
            if value.ndim == 1:
                assert value.eq(1 if name.endswith("norm.weight") else 0).all(), name
                continue
            # 8 layers add to the residual twice each
            scaled = norm_first and name.endswith(("out_proj.weight", "down_proj.weight"))
            expected = 0.03 / 4 if scaled else 0.03
            assert value.std().item() == pytest.approx(expected, rel=0.05), name
            assert abs(value.mean().item()) < 0.1 * expected


@pytest.mark.parametrize(
    ("preset", "millions"),
    [
        # The first five as they were released, the others as table 2.1 of Brown et al. (2020) rounds them.
        ("gpt", 116.5),
        ("gpt2", 124.4),
        ("gpt2-medium", 354.8),
        ("gpt2-large", 774.0),
        ("gpt2-xl", 1557.6),
        ("gpt3-small", 125),
        ("gpt3-medium", 350),
        ("gpt3-large", 760),
        ("gpt3-xl", 1300),
        ("gpt3-2.7b", 2700),
        ("gpt3-6.7b", 6700),
        ("gpt3-13b", 13_000),
        ("gpt3-175b", 175_000),
    ],
)
def test_presets_have_the_sizes_of_the_papers(preset, millions):
    config = GPTConfig.from_preset(preset)
    n, d = config.num_hidden_layers, config.hidden_size
    # By hand: embeddings; per layer 12 matrices of d x d, their 9 d biases and two norms; the last norm with pre-LN.
    count = (config.vocab_size + config.max_position_embeddings) * d + n * (12 * d * d + 13 * d)
    count += 2 * d if config.norm_first else 0
    assert count / 1e6 == pytest.approx(millions, rel=0.02 if preset.startswith("gpt3") else 5e-4)
    with torch.device("meta"):
        assert GPTForCausalLM(config).num_parameters() == count
    assert d % config.num_attention_heads == 0


def test_the_size_of_nanogpt_on_a_cpu():
    config = GPTConfig.from_preset("char", vocab_size=65)
    model = GPTForCausalLM(config)
    # 0.80 million parameters without positions, as nanoGPT counts them, and 64 positions of 128.
    assert model.num_parameters() == 65 * 128 + 64 * 128 + 4 * (12 * 128 * 128 + 2 * 128) + 128
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert not [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout) and module.p]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_size": 10, "num_attention_heads": 4}, ("hidden_size=10", "num_attention_heads=4")),
        ({"hidden_act": "gelu_mew"}, ("'gelu_mew'", "did you mean 'gelu_new'")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers=0",)),
        ({"intermediate_size": 0}, ("intermediate_size=0",)),
        ({"embedding_dropout": 1.0}, ("embedding_dropout=1.0",)),
        ({"attention_dropout": -0.1}, ("attention_dropout=-0.1",)),
        ({"classifier_dropout": 2}, ("classifier_dropout=2",)),
        ({"pad_token_id": 1000}, ("pad_token_id=1000", "999")),
        ({"initializer_range": -0.1}, ("initializer_range=-0.1",)),
        ({"max_position_embeddings": 0}, ("max_position_embeddings=0",)),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused(options, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        GPTConfig(**options)
    assert all(word in str(error.value) for word in words), error.value


def test_trainer_knows_that_labels_are_shifted(tmp_path):
    model = build("gpt2")
    labels = RIGHT.masked_fill(RIGHT == PAD, -100)
    trainer = Trainer(model, TrainingArguments(tmp_path, use_cpu=True, report_to=[]))
    # of all labels those that something is predicted from
    assert trainer._get_num_items_in_batch([{"labels": labels}], torch.device("cpu")) == 4


def test_the_bare_model_needs_no_head():
    model = build("gpt2", GPTModel)
    output = model(LEFT, output_hidden_states=True)
    assert output.last_hidden_state.shape == (3, 4, 8)
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    close(output.hidden_states[0][0], model.embed_tokens.weight[LEFT[0]] + model.positions.table.weight[:4])


@pytest.mark.parametrize("implementation", [None, "static"])
def test_a_compiled_forward_generates_with_a_cache(implementation):
    model = build("gpt2").eval()
    options = {"attention_mask": (LEFT != PAD).long(), "max_new_tokens": 4, "suppress_tokens": [END]}
    options["cache_implementation"] = implementation
    expected = model.generate(LEFT, **options)
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    assert torch.equal(model.generate(LEFT, **options), expected)
