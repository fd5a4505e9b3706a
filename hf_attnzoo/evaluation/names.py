"""What scores are called, in cards and in pictures."""

SCORE_NAMES = {
    "exact_match": "exact match",
    "sequence_error_rate": "sequence error rate",
    "token_error_rate": "token error rate",
    "word_error_rate": "word error rate",
    "character_error_rate": "character error rate",
    "phoneme_error_rate": "phoneme error rate",
    "pointing": "pointing score",
    "token_accuracy": "token accuracy",
    "cross_entropy": "cross-entropy, nats per token",
    "perplexity": "perplexity per token",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
    "masked_accuracy": "accuracy on masked tokens",
    "mcc": "Matthews correlation",
    "f1": "F1",
    "bleu": "BLEU",
    "chrf": "chrF",
    "ter": "TER",
    "gleu": "GLEU",
}
