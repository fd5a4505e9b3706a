"""Small random models of every kind that a page can show."""

import hf_attnzoo
from hf_attnzoo import train_tokenizer
from hf_attnzoo.app.reading import ClassificationDemo, FillMaskDemo, QuestionAnsweringDemo, TokenClassificationDemo
from hf_attnzoo.app.writing import CaptioningDemo, ContinuationDemo, TranslationDemo
from hf_attnzoo.testing import scattered

TEXTS = ["Ann plays the piano.", "Bo is playing, and Ann listens to Bo.", "Ann"]
WORDS = ["uno due tre quattro cinque sei"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def translator(family="RNNSearch", std=0.6, **options):
    tokenizer = train_tokenizer("word", WORDS)
    config = getattr(hf_attnzoo, f"{family}Config")
    model_class = getattr(hf_attnzoo, config.auto_classes["AutoModelForSeq2SeqLM"])
    model = scattered(model_class(config.from_preset("tiny", vocab_size=len(tokenizer), **options)), seed=1, std=std)
    # A trained model never writes padding, no label ever is one, and seldom an unknown word
    model.generation_config.suppress_tokens = [tokenizer.pad_token_id, tokenizer.unk_token_id]
    model.generation_config.max_new_tokens = 8
    return TranslationDemo(model, tokenizer, "tiny <b>", "a summary")


def captioner():
    tokenizer = train_tokenizer("word", WORDS)
    config = hf_attnzoo.ShowAttendTellConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), image_size=16, encoder_channels=[4, 8]
    )
    model = scattered(hf_attnzoo.ShowAttendTellForConditionalGeneration(config), seed=1, std=0.6)
    model.generation_config.suppress_tokens = [tokenizer.pad_token_id, tokenizer.unk_token_id]
    model.generation_config.max_new_tokens = 8
    processor = hf_attnzoo.ShowAttendTellProcessor(hf_attnzoo.ShowAttendTellImageProcessor(size=16), tokenizer)
    return CaptioningDemo(model, processor, "tiny captioner")


def writer(family="GPT", **options):
    tokenizer = train_tokenizer("byte-bpe", TEXTS, vocab_size=300, causal=True)
    config = getattr(hf_attnzoo, f"{family}Config").from_preset("tiny", vocab_size=len(tokenizer), **options)
    model = scattered(getattr(hf_attnzoo, f"{family}ForCausalLM")(config), seed=1, std=0.3)
    return ContinuationDemo(model, tokenizer, "tiny writer")


def reader(head, **options):
    kinds = {
        "ForMaskedLM": FillMaskDemo,
        "ForSequenceClassification": ClassificationDemo,
        "ForTokenClassification": TokenClassificationDemo,
        "ForQuestionAnswering": QuestionAnsweringDemo,
    }
    tokenizer = train_tokenizer("wordpiece", TEXTS * 2, vocab_size=120)
    config = hf_attnzoo.BERTConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **SIZES, **options)
    model = scattered(getattr(hf_attnzoo, f"BERT{head}")(config), seed=1, std=0.4)
    return kinds[head](model, tokenizer, "tiny reader")
