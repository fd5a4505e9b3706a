"""The checks that need a compiler, a process or another package: seconds each, for one or two variants of a family."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from .batches import (
    FIRST_ID,
    answers_of,
    assert_close,
    auto_class_of,
    is_encoder,
    newly_written,
    prompt_length,
    prompts_for,
    ragged_batch,
    source_of,
    training_batch,
    without_labels,
)


def _forward_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """What a forward pass needs, its mask included."""
    if is_encoder(model):
        return without_labels(training_batch(model))
    input_ids, labels = ragged_batch(model)
    inputs = source_of(model, input_ids)
    if "input_ids" in inputs:
        inputs["attention_mask"] = (input_ids != model.config.pad_token_id).long()
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    return inputs


def _answer(model: PreTrainedModel, **inputs: Tensor) -> Tensor:
    """What a model says, without a cache if it could have one."""
    options = {} if is_encoder(model) else {"use_cache": False}
    return next(iter(answers_of(model(**inputs, **options)).values()))


def check_compile(model: PreTrainedModel) -> None:
    """`torch.compile` takes the forward pass without a graph break, and gives equal outputs at two shapes."""
    # The backend that only traces: Inductor takes a minute, and what it makes of a graph is its own affair.
    inputs = _forward_inputs(model)
    inputs.pop("attention_mask", None)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    shorter = {
        name: tensor[:2] if tensor.is_floating_point() else tensor[:2, ..., :-2] for name, tensor in inputs.items()
    }
    for given in (inputs, shorter):
        assert_close(_answer(compiled, **given), _answer(model, **given))
    torch._dynamo.reset()


def check_export(model: PreTrainedModel) -> None:
    """`torch.export` with a dynamic batch and dynamic lengths gives a program that is right on others."""
    inputs = _forward_inputs(model)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *tensors: Tensor) -> Tensor:
            return _answer(self.model, **dict(zip(inputs, tensors, strict=True)))

    batch = torch.export.Dim("batch", min=1, max=64)
    source, written = torch.export.Dim("source", min=1, max=512), torch.export.Dim("target", min=1, max=512)
    # A picture has one size.
    lengths = {name: source for name, tensor in inputs.items() if not tensor.is_floating_point()}
    lengths |= {"decoder_input_ids": written} if model.config.is_encoder_decoder else {}
    shapes = tuple(
        {0: batch, tensor.ndim - 1: lengths[name]} if name in lengths else {0: batch}
        for name, tensor in inputs.items()
    )
    longer = {
        name: torch.cat([tensor, tensor[..., :3]], dim=-1)[:2] if name in lengths else tensor[:2]
        for name, tensor in inputs.items()
    }
    shortest = {name: tensor[:1, ..., :1] if name in lengths else tensor[:1] for name, tensor in inputs.items()}
    with torch.no_grad():
        program = torch.export.export(Logits().eval(), tuple(inputs.values()), dynamic_shapes=(shapes,)).module()
        for given in (inputs, longer, shortest):
            assert_close(program(*given.values()), _answer(model, **given))


def _run_elsewhere(script: str, *arguments: object) -> object:
    """What a script prints last, as JSON, run where hf_attnzoo can't be imported and there is no network."""
    prelude = """
        import json, sys
        sys.modules["hf_attnzoo"] = None  # an import of it now fails
        import torch
        import transformers
    """
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(  # noqa: S603
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(script), json.dumps(arguments)],
            capture_output=True,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": folder},
            cwd=folder,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def check_remote_code(model: PreTrainedModel) -> None:
    """A saved model loads by every auto class where hf_attnzoo can't be imported; saved from there, it still does."""
    script = """
        first, second, classes, head, prompts, written = json.loads(sys.argv[1])
        for name in classes:
            loaded = getattr(transformers, name).from_pretrained(first, trust_remote_code=True)
        model = getattr(transformers, head).from_pretrained(first, trust_remote_code=True)
        model.save_pretrained(second)
        again = transformers.AutoModel.from_pretrained(second, trust_remote_code=True)
        assert all(torch.equal(a, b) for a, b in zip(model.base_model.parameters(), again.parameters()))
        model = getattr(transformers, head).from_pretrained(second, trust_remote_code=True)
        prompts = torch.tensor(prompts)
        if written:
            print(json.dumps(model.generate(prompts, num_beams=2, max_new_tokens=6).tolist()))
        else:
            # The first tensor of an output is what a model says.
            print(json.dumps(model(prompts).to_tuple()[0].tolist()))
    """
    written = model.can_generate()
    prompts = prompts_for(model) if written else training_batch(model)["input_ids"]
    if written:
        expected = model.generate(prompts, num_beams=2, max_new_tokens=6).tolist()
    else:
        expected = _answer(model, input_ids=prompts)
    with tempfile.TemporaryDirectory() as folder:
        first, second = str(Path(folder) / "first"), str(Path(folder) / "second")
        model.save_pretrained(first)
        classes = list(model.config.auto_classes)
        said = _run_elsewhere(script, first, second, classes, auto_class_of(model), prompts.tolist(), written)
    if written:
        assert said == expected
    else:
        assert_close(torch.tensor(said), expected)


def check_lora(model: PreTrainedModel) -> None:
    """LoRA on all linear layers is neutral at first, trains, loads as saved, merges to equal outputs. Needs `peft`."""
    from peft import LoraConfig, PeftModel, get_peft_model

    batch = training_batch(model)
    expected = model(**batch)
    task_type = None
    if "input_ids" in batch and not is_encoder(model):
        # peft's classes for tasks pass ids on, whatever there is.
        task_type = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    config = LoraConfig(r=2, target_modules="all-linear", task_type=task_type)
    adapted = get_peft_model(copy.deepcopy(model), config).eval()
    assert_close(answers_of(adapted(**batch)), answers_of(expected))
    optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        adapted(**batch).loss.backward()
        unused = [n for n, p in adapted.named_parameters() if p.requires_grad and p.grad is None]
        assert not unused, f"adapters that nothing runs through: {unused}"
        optimizer.step()
    trained = adapted(**batch)
    assert trained.loss < expected.loss
    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(folder)
        assert (Path(folder) / "adapter_model.safetensors").is_file()
        loaded = PeftModel.from_pretrained(copy.deepcopy(model), folder).eval()
    assert_close(answers_of(loaded(**batch)), answers_of(trained))
    assert_close(answers_of(adapted.merge_and_unload()(**batch)), answers_of(trained), 1e-4)


def check_int8(model: PreTrainedModel) -> None:
    """Dynamic 8-bit quantisation of the linear layers stays close, and the original as it was."""
    batch = training_batch(model)
    before = answers_of(model(**batch))
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)
    for name, answer in answers_of(quantized(**batch)).items():
        # Where there is padding an answer may be the lowest number of its type.
        told = before[name].abs() < 1e30
        assert (answer - before[name])[told].abs().mean() < 0.1 * before[name][told].abs().mean()
    if model.can_generate():
        assert quantized.generate(prompts_for(model), max_new_tokens=4).shape[0] == 3
    assert all(torch.equal(answer, before[name]) for name, answer in answers_of(model(**batch)).items())


def _word_tokenizer(model: PreTrainedModel) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are `w4`, `w5` and so on up to the last id, and that begins every text with `<s>`."""
    special = {model.config.pad_token_id: "<pad>", model.config.bos_token_id: "<s>", model.config.eos_token_id: "</s>"}
    vocab = {special.get(index, f"w{index}"): index for index in range(model.config.vocab_size)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=f"w{FIRST_ID}"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", model.config.bos_token_id)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        **{"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"},
    )


def check_stop_strings(model: PreTrainedModel) -> None:
    """`generate(stop_strings=...)` ends a text with the first that it writes, greedily and by beams."""
    # transformers wants a tokenizer that can spell, where `_word_tokenizer` knows its words alone.
    letters = {chr(ord("a") + max(index - FIRST_ID, -1)): index for index in range(model.config.vocab_size)}
    special = {"<pad>": model.config.pad_token_id, "<s>": model.config.bos_token_id, "</s>": model.config.eos_token_id}
    backend = Tokenizer(WordLevel(letters | special))
    backend.pre_tokenizer, backend.decoder = Split(Regex("."), "isolated"), Fuse()
    tokenizer, prompt = PreTrainedTokenizerFast(tokenizer_object=backend), prompts_for(model)[:1]
    options = {"max_new_tokens": 6, "suppress_tokens": list(range(FIRST_ID))}
    whole = newly_written(model, prompt, **options)[0]
    stop = tokenizer.convert_ids_to_tokens(whole[2].item())
    written = newly_written(model, prompt, stop_strings=[stop], tokenizer=tokenizer, **options)[0]
    assert torch.equal(written, whole[: whole.tolist().index(whole[2]) + 1])
    for text in model.generate(prompt, stop_strings=[stop], tokenizer=tokenizer, num_beams=3, **options):
        assert stop not in tokenizer.convert_ids_to_tokens(text[prompt_length(model, prompt) : -1])


def check_text_generation(model: PreTrainedModel) -> None:
    """`pipeline("text-generation")` goes on from each prompt of a batch as `generate()` does, with and without the
    package, returns as many texts as it's asked for, and streams them."""
    script = """
        folder, prompts, options = json.loads(sys.argv[1])
        pipe = transformers.pipeline("text-generation", model=folder, trust_remote_code=True)
        print(json.dumps([texts[0]["generated_text"] for texts in pipe(prompts, batch_size=3, **options)]))
    """
    tokenizer = _word_tokenizer(model)
    prompts = ["w5 w6 w7 w8", "w9", "w10 w11"]
    options = {"max_new_tokens": 5, "do_sample": False}
    expected = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        expected.append(tokenizer.decode(newly_written(model, ids, **options)[0], skip_special_tokens=True))
    assert any(expected), "the model says nothing: the check wants another one"
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        pipe = transformers.pipeline("text-generation", model=folder)
        for batch_size in (1, 3):
            answers = pipe(prompts, batch_size=batch_size, return_full_text=False, **options)
            assert [texts[0]["generated_text"] for texts in answers] == expected
        full = [prompt + text for prompt, text in zip(prompts, expected, strict=True)]
        assert [texts[0]["generated_text"] for texts in pipe(prompts, **options)] == full
        for search in ({"do_sample": True}, {"do_sample": False, "num_beams": 3}):
            answers = pipe(prompts, num_return_sequences=3, max_new_tokens=5, batch_size=2, **search)
            assert [len(texts) for texts in answers] == [3, 3, 3]
            for prompt, texts in zip(prompts, answers, strict=True):
                assert all(text["generated_text"].startswith(prompt) for text in texts)
        assert _run_elsewhere(script, folder, prompts, options) == full

    class Collector(transformers.TextStreamer):
        text = ""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            self.text += text

    for prompt, text in zip(prompts, expected, strict=True):
        streamer = Collector(tokenizer, skip_prompt=True, skip_special_tokens=True)
        pipe(prompt, streamer=streamer, **options)
        assert streamer.text.split() == text.split()
