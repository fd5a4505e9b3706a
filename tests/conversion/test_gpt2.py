"""transformers' GPT-2 to our GPT and back, and nanoGPT's checkpoints to our GPT, by what they compute."""

import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2DoubleHeadsModel,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
)

from hf_attnzoo import GPTConfig, GPTForCausalLM, train_tokenizer
from hf_attnzoo.conversion import convert

IDS = torch.tensor([[5, 8, 4, 9, 6], [7, 7, 4, 11, 5]])
HEADS = {
    GPT2Model: AutoModel,
    GPT2LMHeadModel: AutoModelForCausalLM,
    GPT2ForSequenceClassification: AutoModelForSequenceClassification,
    GPT2ForTokenClassification: AutoModelForTokenClassification,
}


def random(model, seed=0, std=0.3):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    return model.eval()


def gpt2(head=GPT2LMHeadModel, **options):
    sizes = {"vocab_size": 17, "n_positions": 20, "n_embd": 8, "n_layer": 2, "n_head": 2}
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    return random(head(GPT2Config(**(sizes | ids | options))))


def edit(folder, change):
    """Change the weights of a saved model."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual.detach(), expected.detach(), atol=tolerance, rtol=tolerance)


class TestGPT2:
    @pytest.mark.parametrize("head", HEADS)
    def test_there_and_back(self, head, tmp_path):
        names = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
        stock = gpt2(head, **names, problem_type="single_label_classification")
        stock.save_pretrained(tmp_path / "stock")
        assert convert(tmp_path / "stock", tmp_path / "ours") == tmp_path / "ours"
        ours, info = HEADS[head].from_pretrained(tmp_path / "ours", output_loading_info=True)
        assert not any(info.values()), info
        assert type(ours).__module__ == "hf_attnzoo.models.modeling_gpt"
        close(ours(IDS)[0], stock(IDS)[0])
        assert (ours.config.id2label, ours.config.label2id) == (names["id2label"], names["label2id"])

        convert(tmp_path / "ours", tmp_path / "again", to="transformers")
        again, info = head.from_pretrained(tmp_path / "again", output_loading_info=True)
        assert not any(info.values()), info
        expected = stock.state_dict()
        assert again.state_dict().keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
        first, last = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("stock", "again"))
        differ = {name for name in first.keys() | last.keys() if first.get(name) != last.get(name)}
        # Four times the size, written out; and the rate that GPT-2 takes where none is given.
        assert differ <= {"n_inner", "classifier_dropout"}
        assert last["n_inner"] == 32
        assert last.get("classifier_dropout", 0.1) == 0.1

    @given(
        heads=st.integers(1, 3),
        layers=st.integers(1, 3),
        inner=st.sampled_from([None, 5]),
        activation=st.sampled_from(["gelu_new", "gelu", "relu"]),
        tied=st.booleans(),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
        eps=st.sampled_from([1e-5, 0.1]),
        sharded=st.booleans(),
    )
    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def test_whatever_its_shape(self, tmp_path, heads, layers, inner, activation, tied, dtype, eps, sharded):
        shutil.rmtree(tmp_path)
        sizes = {"n_embd": 4 * heads, "n_head": heads, "n_layer": layers, "n_inner": inner}
        rates = {"resid_pdrop": 0.3, "embd_pdrop": 0.2, "attn_pdrop": 0.1}
        choices = {"activation_function": activation, "tie_word_embeddings": tied, "layer_norm_epsilon": eps}
        stock = gpt2(**sizes, **rates, **choices).to(dtype)
        stock.generation_config.update(max_new_tokens=4)
        stock.save_pretrained(tmp_path / "stock", max_shard_size="1KB" if sharded else "1GB")
        convert(tmp_path / "stock", tmp_path / "ours")
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
        assert ours.dtype == dtype
        assert ours.generation_config.max_new_tokens == 4
        config = ours.config
        assert (config.dropout, config.embedding_dropout, config.attention_dropout) == (0.3, 0.2, 0.1)
        assert (ours.lm_head.weight is ours.model.embed_tokens.weight) == tied
        close(ours.float()(IDS).logits, stock.float()(IDS).logits)
        for search in ({}, {"num_beams": 3}):
            mask = torch.ones_like(IDS)
            written = ours.generate(IDS, attention_mask=mask, **search)
            assert torch.equal(written, stock.generate(IDS, attention_mask=mask, **search))
        convert(tmp_path / "ours", tmp_path / "again", to="transformers")
        again = GPT2LMHeadModel.from_pretrained(tmp_path / "again")
        assert again.dtype == dtype
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor.float(), stock.state_dict()[name]), name

    def test_the_first_checkpoints_have_bare_names_and_masks(self, tmp_path):
        stock = gpt2()
        stock.save_pretrained(tmp_path / "stock")
        mask = torch.ones(20, 20, dtype=torch.uint8).tril()[None, None]

        def age(weights):
            for name in list(weights):
                weights[name.removeprefix("transformer.")] = weights.pop(name)
            for index in range(2):
                weights[f"h.{index}.attn.bias"] = mask.clone()
                weights[f"h.{index}.attn.masked_bias"] = torch.tensor(-1e4)

        edit(tmp_path / "stock", age)
        convert(tmp_path / "stock", tmp_path / "ours")
        close(AutoModelForCausalLM.from_pretrained(tmp_path / "ours")(IDS).logits, stock(IDS).logits)
        edit(tmp_path / "stock", lambda weights: weights["h.1.attn.bias"].fill_(1))
        with pytest.raises(ValueError, match=r"h\.1\.attn\.bias is no causal mask"):
            convert(tmp_path / "stock", tmp_path / "other")

    def test_special_tokens_of_another_vocabulary_name_no_word(self, tmp_path):
        # Those that a GPT-2 has if nobody says otherwise.
        gpt2(bos_token_id=50256, eos_token_id=50256, pad_token_id=None).save_pretrained(tmp_path / "stock")
        convert(tmp_path / "stock", tmp_path / "ours")
        config = GPTConfig.from_pretrained(tmp_path / "ours")
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (None, None, None)
        gpt2(bos_token_id=0, eos_token_id=[3, 50256], pad_token_id=-1).save_pretrained(tmp_path / "stock")
        convert(tmp_path / "stock", tmp_path / "again")
        config = GPTConfig.from_pretrained(tmp_path / "again")
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (None, 0, [3])

    def test_what_has_no_place_is_named(self, tmp_path):
        cases = (
            (
                lambda w: w.update({"transformer.h.0.crossattention.q": torch.ones(2)}),
                r"no place for.*crossattention\.q",
            ),
            (
                lambda w: w.pop("transformer.h.1.mlp.c_fc.bias"),
                r"lacks the parameter transformer\.h\.1\.mlp\.c_fc\.bias",
            ),
            (
                lambda w: w.update({"transformer.h.2.ln_1.bias": torch.ones(8)}),
                r"no place for transformer\.h\.2\.ln_1",
            ),
            (lambda w: w.update({"lm_head.weight": torch.ones(17, 8)}), r"lm_head\.weight is not the embedding"),
            (
                lambda w: w.update({"transformer.wpe.weight": torch.ones(19, 8)}),
                r"positions\.table\.weight must have the shape \(20, 8\), got \(19, 8\)",
            ),
        )
        for number, (change, words) in enumerate(cases):
            folder = tmp_path / str(number)
            gpt2().save_pretrained(folder)
            edit(folder, change)
            with pytest.raises(ValueError, match=words):
                convert(folder, tmp_path / "ours")
            assert not (tmp_path / "ours").exists()

    def test_settings_without_a_place_are_named(self, tmp_path):
        for options in (
            {"scale_attn_by_inverse_layer_idx": True},
            {"scale_attn_weights": False},
            {"reorder_and_upcast_attn": True},
            {"add_cross_attention": True},
        ):
            gpt2(**options).save_pretrained(tmp_path / "stock")
            with pytest.raises(ValueError, match=f"{next(iter(options))}={next(iter(options.values()))}"):
                convert(tmp_path / "stock", tmp_path / "ours")
        gpt2(GPT2DoubleHeadsModel, num_labels=1).save_pretrained(tmp_path / "double")
        with pytest.raises(ValueError, match=r"architectures=\['GPT2DoubleHeadsModel'\]"):
            convert(tmp_path / "double", tmp_path / "ours")


class TestBack:
    def test_without_biases_they_are_zero(self, tmp_path):
        config = GPTConfig(vocab_size=17, hidden_size=8, num_attention_heads=2, use_bias=False, hidden_act="gelu")
        ours = random(GPTForCausalLM(config))
        ours.save_pretrained(tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")
        theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "theirs")
        close(theirs(IDS).logits, ours(IDS).logits)
        assert theirs.transformer.h[0].attn.c_attn.bias.eq(0).all()

    def test_what_has_no_place_is_named(self, tmp_path):
        for options in ({"norm_first": False}, {"activation_dropout": 0.1}):
            config = GPTConfig(vocab_size=17, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, **options)
            GPTForCausalLM(config).save_pretrained(tmp_path / "ours")
            with pytest.raises(ValueError, match=f"{next(iter(options))}={next(iter(options.values()))}"):
                convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")


class TestTokenizer:
    def test_it_goes_along_both_ways(self, tmp_path):
        tokenizer = train_tokenizer("byte-bpe", ["the cat sat"] * 2, causal=True)
        ours = random(GPTForCausalLM(GPTConfig(vocab_size=len(tokenizer), hidden_size=8, num_attention_heads=2)))
        ours.save_pretrained(tmp_path / "ours")
        tokenizer.save_pretrained(tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")
        convert(tmp_path / "theirs", tmp_path / "again")
        for folder in ("theirs", "again"):
            loaded = AutoTokenizer.from_pretrained(tmp_path / folder)
            assert loaded("the cat \U0001f431")["input_ids"] == tokenizer("the cat \U0001f431")["input_ids"]
            assert (loaded.pad_token_id, loaded.eos_token_id, loaded.padding_side) == (1, 3, "left")
            assert len(loaded) == len(tokenizer)

    def test_gpt2s_own_without_a_class_in_its_files(self, tmp_path):
        # As the first checkpoints have it: a vocabulary, merges, and no word about their class.
        learned = json.loads(train_tokenizer("byte-bpe", ["the cat sat"] * 2).backend_tokenizer.to_str())["model"]
        entries = [entry for entry in learned["vocab"] if not entry.startswith("<")] + ["<", "<|endoftext|>"]
        gpt2(
            vocab_size=len(entries), eos_token_id=len(entries) - 1, bos_token_id=None, pad_token_id=None
        ).save_pretrained(tmp_path / "stock")
        (tmp_path / "stock" / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
        merges = "\n".join(" ".join(merge) for merge in learned["merges"])
        (tmp_path / "stock" / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
        expected = AutoTokenizer.from_pretrained(tmp_path / "stock")
        convert(tmp_path / "stock", tmp_path / "ours")
        assert AutoConfig.from_pretrained(tmp_path / "ours").model_type == "attnzoo_gpt"
        loaded = AutoTokenizer.from_pretrained(tmp_path / "ours")
        assert loaded("the cat sat<|endoftext|>")["input_ids"] == expected("the cat sat<|endoftext|>")["input_ids"]
        assert loaded.eos_token_id == len(entries) - 1


def nanogpt(bias: bool) -> tuple[dict, dict]:
    """Arguments and weights under the names of nanoGPT's model.py."""
    size, layers, vocab = 8, 2, 13
    generator = torch.Generator().manual_seed(3)
    shapes = {"transformer.wte.weight": (vocab, size), "transformer.wpe.weight": (10, size)}
    for index in range(layers):
        block = f"transformer.h.{index}"
        shapes |= {
            f"{block}.ln_1.weight": (size,),
            f"{block}.attn.c_attn.weight": (3 * size, size),
            f"{block}.attn.c_proj.weight": (size, size),
            f"{block}.ln_2.weight": (size,),
            f"{block}.mlp.c_fc.weight": (4 * size, size),
            f"{block}.mlp.c_proj.weight": (size, 4 * size),
        }
    shapes["transformer.ln_f.weight"] = (size,)
    if bias:
        shapes |= {f"{name[:-7]}.bias": shape[:1] for name, shape in shapes.items() if ".h." in name or "ln_f" in name}
    weights = {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    arguments = {"n_layer": layers, "n_head": 2, "n_embd": size, "block_size": 10, "bias": bias, "vocab_size": vocab}
    return arguments | {"dropout": 0.25}, weights


def nanogpt_logits(arguments: dict, weights: dict, ids: torch.Tensor) -> torch.Tensor:
    """What its model computes: pre-LN blocks, exact GELU, an output layer that is the embedding."""
    size, heads = arguments["n_embd"], arguments["n_head"]

    def of(kind, name, x):
        weight, bias = weights[f"transformer.{name}.weight"], weights.get(f"transformer.{name}.bias")
        return (
            functional.layer_norm(x, (size,), weight, bias, 1e-5)
            if kind == "norm"
            else functional.linear(x, weight, bias)
        )

    x = weights["transformer.wte.weight"][ids] + weights["transformer.wpe.weight"][: ids.shape[1]]
    for index in range(arguments["n_layer"]):
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in of("linear", f"h.{index}.attn.c_attn", of("norm", f"h.{index}.ln_1", x)).split(size, dim=2)
        )
        scores = (q @ k.transpose(2, 3) / (size // heads) ** 0.5).masked_fill(
            torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool(), -torch.inf
        )
        x = x + of("linear", f"h.{index}.attn.c_proj", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        inner = functional.gelu(of("linear", f"h.{index}.mlp.c_fc", of("norm", f"h.{index}.ln_2", x)))
        x = x + of("linear", f"h.{index}.mlp.c_proj", inner)
    return of("norm", "ln_f", x) @ weights["lm_head.weight"].T


class TestNanoGPT:
    @pytest.mark.parametrize("compiled", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_its_training_file(self, bias, compiled, tmp_path):
        arguments, weights = nanogpt(bias)
        expected = nanogpt_logits(arguments, weights, IDS)
        model = {("_orig_mod." if compiled else "") + name: tensor for name, tensor in weights.items()}
        checkpoint = {
            "model": model,
            "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]},
            "model_args": arguments,
            "iter_num": 5,
            "best_val_loss": torch.tensor(1.5),
            "config": {"dataset": "shakespeare_char", "dropout": 0.25},
        }
        (tmp_path / "out").mkdir()
        torch.save(checkpoint, tmp_path / "out" / "ckpt.pt")
        for source in (tmp_path / "out", tmp_path / "out" / "ckpt.pt"):
            target = tmp_path / f"ours-{source.name}"
            convert(source, target)
            ours = AutoModelForCausalLM.from_pretrained(target)
            close(ours(IDS).logits, expected)
        config = ours.config
        assert (config.dropout, config.attention_dropout, config.use_bias) == (0.25, 0.25, bias)
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (None, None, None)
        gpt2(bos_token_id=0, eos_token_id=[3, 50256], pad_token_id=-1).save_pretrained(tmp_path / "stock")
        convert(tmp_path / "stock", tmp_path / "ours")
        config = GPTConfig.from_pretrained(tmp_path / "ours")
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (None, 0, [3])
        assert ours.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=4).shape == (2, 9)
        convert(target, tmp_path / "back", to="transformers")
        close(GPT2LMHeadModel.from_pretrained(tmp_path / "back")(IDS).logits, expected)

    def test_its_weights_in_safetensors_beside_its_arguments(self, tmp_path):
        arguments, weights = nanogpt(bias=False)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "config.json").write_text(json.dumps(arguments))
        save_file({name: tensor.clone() for name, tensor in weights.items()}, tmp_path / "out" / "model.safetensors")
        convert(tmp_path / "out", tmp_path / "ours")
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
        close(ours(IDS).logits, nanogpt_logits(arguments, weights, IDS))

    def test_what_has_no_place_is_named(self, tmp_path):
        for change, words in (
            (lambda a, w: a.update(rotary=True), "rotary"),
            (lambda a, w: a.pop("n_head"), "lack n_head"),
            (lambda a, w: w.update(extra=torch.ones(1)), "no place for extra"),
            (lambda a, w: w.pop("transformer.ln_f.weight"), r"lacks.*transformer\.ln_f\.weight"),
            (lambda a, w: w.update({"lm_head.weight": torch.ones(13, 8)}), r"lm_head\.weight is not the embedding"),
            (lambda a, w: a.update(bias=False), r"no place for transformer\.h\.0\.attn\.c_attn\.bias"),
        ):
            arguments, weights = nanogpt(bias=True)
            change(arguments, weights)
            torch.save({"model": weights, "model_args": arguments}, tmp_path / "ckpt.pt")
            with pytest.raises(ValueError, match=words):
                convert(tmp_path / "ckpt.pt", tmp_path / "ours")
            assert not (tmp_path / "ours").exists()
