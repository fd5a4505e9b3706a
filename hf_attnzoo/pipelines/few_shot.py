"""`"attnzoo-few-shot"`: a task told by examples in the prompt, answered by any causal language model.

`pipe.save_pretrained` copies this file into a checkpoint that carries its model's code, where it works without the
package: so it imports only torch, transformers and its neighbours.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, GenerationConfig, Pipeline, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer

from .generating import SavedWithCodeMixin, position_limit, real_tokens, sequence_scores
from .prompting import ExampleSelector, PromptTemplate

NORMALIZATIONS = ("tokens", "none")


@dataclass(frozen=True)
class _Settings:
    """What a call is told, see `FewShotPipeline`."""

    template: str | PromptTemplate | None = None
    examples: Sequence[Mapping[str, str]] = ()
    instruction: str = ""
    separator: str = "\n"
    shots: int | None = None
    select: str = "fixed"
    seed: int = 0
    embed: str | Callable[[list[str]], Any] | None = None
    labels: Sequence[str] | Mapping[str, str] | None = None
    normalize: str = "tokens"
    calibrate: bool = False
    content_free: str | Sequence[str] = "N/A"
    stop: str | Sequence[str] | None = None
    context_length: int | None = None
    share_prefix: bool | None = None
    return_scores: bool = False
    return_prompt: bool = False


class FewShotPipeline(SavedWithCodeMixin, Pipeline):
    """Does a task that a prompt shows by example, with any causal language model (Brown et al. 2020).

    ```python
    >>> import hf_attnzoo
    >>> from transformers import pipeline

    >>> pipe = pipeline(
    ...     "attnzoo-few-shot",
    ...     model="my-gpt",
    ...     template="Poor English input: {source}\\nGood English output: {target}",
    ...     examples=[{"source": "She go home.", "target": "She goes home."}],
    ... )
    >>> pipe("He have a dog.")
    {'generated_text': 'He has a dog.'}
    >>> pipe("good film", template="{text}: {label}", examples=[], labels=["good", "bad"], calibrate=True)
    {'label': 'good', 'score': 0.8}
    ```

    The prompt is the instruction, the examples, and the query up to its answer. Without `labels` the model goes on
    from there until it writes what would end an example. With `labels` it doesn't write: each label is scored as the
    answer, and the scores are made probabilities by a softmax over the labels.

    A prompt that is too long loses examples, those that stand furthest from the query first, and never any of the
    query or of the instruction.

    What all prompts of a batch begin with is read once, and the cache of it repeated for all rows; what the fixed
    examples make the same in all batches of a call is read once in a call. That is so for models that take
    `position_ids` and whose cache holds the keys and values of all positions (transformers' `DynamicLayer`), and for
    the recurrent ones of this package. Others (sliding windows, linear attention, fixed sizes) read every prompt in
    full, as do calls with `use_cache=False`, a `cache_implementation`, or drafts.

    Arguments of the pipeline, at construction or in a call, where the call's win:

    Args:
        template: Text of an example with fields in braces, the answer last, or a `PromptTemplate`, which brings its
            own instruction and separator.
        examples: Dicts with a text for every field.
        instruction: Text in front of the examples. Default: `""`.
        separator: Text after each example. Default: a new line.
        shots: How many examples a prompt has. Default: `None`, all.
        select: Which ones: `"fixed"`, the first; `"random"`, drawn for every query by `seed` and its text; or
            `"nearest"`, the most similar by `embed`, the nearest last. Default: `"fixed"`.
        seed: Of what is drawn. Default: `0`.
        embed: Of `"nearest"`: `"tf-idf"`, `"word-overlap"`, or a function of a list of texts, such as a
            `feature-extraction` pipeline; see `ExampleSelector`. There is no default.
        labels: Answers to choose from; a mapping has the text of each label as its value. Default: `None`, the model
            writes.
        normalize: What the log-probability of a label is divided by: `"tokens"`, their number, or `"none"`. Default:
            `"tokens"`.
        calibrate: Whether the probability of each label is divided by what it has for a query without content (Zhao
            et al. 2021, section 5: `W = diag(p_cf)^-1`, `b = 0`), with the same examples in front, and made to sum to
            1 again. Default: `False`.
        content_free: That query: what stands in all its fields; several are averaged. Default: `"N/A"`.
        stop: Text, or texts, that end what the model writes, and are no part of it. Default: `None`, what follows an
            answer in the template, and the separator.
        context_length: Most tokens that the model reads. Default: `None`, those of its position table and the
            tokenizer's `model_max_length`, the smaller.
        share_prefix: Whether the common beginning of prompts is read once. Default: `None`, if the model allows it;
            `True` is refused where it doesn't.
        return_scores: Tell every label's score, best first, or the score of what is written. Default: `False`.
        return_prompt: Tell the prompt, and how many examples it holds. Default: `False`.
        batch_size: Queries at a time. With labels, the model reads as many rows for each. Default: `1`.
        generate_kwargs: Anything else is for `model.generate()`: `max_new_tokens` (64 if nothing is said),
            `do_sample`, `num_beams`, `num_return_sequences`, ...

    Returns:
        For one query a dict, for a list of them a list, for an iterator or a dataset an iterator.

        - Without labels: `generated_text`, white space around it left out, and with `return_scores` `score`, the
          log-probability in nats of the tokens written, those that end the text included, over their number to the
          power of `length_penalty`. A list of such dicts where `num_return_sequences` is above 1.
        - With labels: `label` and `score`, its probability. With `return_scores` a list of these of all labels, and in
          them `log_prob`, in nats, `tokens`, their number, and if calibrated `uncalibrated`, the probability before.
        - With `return_prompt`, `prompt` and `shots` too.

    Raises:
        ValueError: if an argument is missing, unknown or out of range, or the instruction and the query alone, with
            what is to be written or scored, are longer than the model can read.
    """

    task_name = "attnzoo-few-shot"
    auto_class = "AutoModelForCausalLM"

    _pipeline_calls_generate = True
    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _default_generation_config = GenerationConfig(max_new_tokens=64)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        name = type(self.model).__name__
        if self.model.config.is_encoder_decoder or not self.model.can_generate():
            raise ValueError(f"model is a {name}; {self.task_name} takes a causal language model")
        if self.tokenizer is None:
            raise ValueError(f"tokenizer is None; {self.task_name} needs the tokenizer of the {name}")
        if self.assistant_model is not None:
            raise ValueError(f"assistant_model is not for {self.task_name}: leave it out")
        # A model that is handed over may come from training, and dropout would change every answer
        self.model.eval()

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        known = {each.name for each in fields(_Settings)}
        return (
            {name: value for name, value in kwargs.items() if name in known},
            {name: value for name, value in kwargs.items() if name not in known},
            {},
        )

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Answer one query, a list of them, or those of an iterator or a dataset as they come.

        Args:
            inputs: a text, or a dict of texts where the template has several fields before the answer; or many.
            batch_size: see the class.
            kwargs: see the class.

        Returns:
            See the class.
        """
        told, generate_kwargs, _ = self._sanitize_parameters(**kwargs)
        call = _Call(
            self, _Settings(**{**self._preprocess_params, **told}), {**self._forward_params, **generate_kwargs}
        )
        size = batch_size if batch_size is not None else self._batch_size or 1
        if size < 1:
            raise ValueError(f"batch_size={size} must be at least 1")
        if isinstance(inputs, (str, Mapping)):
            return next(self._answers(iter([inputs]), 1, call))
        try:
            queries = iter(inputs)
        except TypeError:
            raise ValueError(
                f"inputs={inputs!r} must be a text, a dict of texts, or a list, an iterator or a dataset of them"
            ) from None
        answers = self._answers(queries, size, call)
        return list(answers) if isinstance(inputs, Sequence) else answers

    def _answers(self, queries: Iterator[Any], size: int, call: "_Call") -> Iterator[Any]:
        while batch := list(islice(queries, size)):
            yield from self.run_single(batch, {"call": call}, {"call": call}, {})

    def preprocess(self, queries: Sequence[Any], call: "_Call") -> list["_Prompt"]:
        """Prompts of B queries."""
        return call.prompts(queries)

    def _forward(self, prompts: list["_Prompt"], call: "_Call") -> list[Any]:
        return call.choices(prompts) if call.labels else call.texts(prompts)

    def postprocess(self, answers: list[Any]) -> list[Any]:
        """One answer for each query."""
        return answers


@dataclass(frozen=True)
class _Prompt:
    """A prompt as text and as N ids.

    Args:
        text: up to the answer.
        ids: of the text.
        head: how many of them are those of the instruction and the examples.
        shots: numbers of the examples it has.
        answers: ids of the prompt with each label, where there are labels.
        start: where in these the labels begin, the same for all.
    """

    text: str
    ids: list[int]
    head: int
    shots: tuple[int, ...]
    answers: list[list[int]] = field(default_factory=list)
    start: int = 0


@dataclass(frozen=True)
class _Prefix:
    """Ids that have been read, and what a model remembers of them, in a batch of one."""

    ids: list[int]
    cache: Cache


@dataclass(frozen=True)
class _Scored:
    """Log-probabilities in nats of the L labels of a query, and how many tokens each has, shape `(L,)`."""

    totals: Tensor
    counts: Tensor


class _Call:
    """One call of the pipeline: what it was told, and what its batches share."""

    def __init__(self, pipe: FewShotPipeline, settings: _Settings, generate_kwargs: dict[str, Any]):
        self.pipe, self.model, self.tokenizer = pipe, pipe.model, pipe.tokenizer
        self.settings, self.generate_kwargs = settings, generate_kwargs
        if settings.template is None:
            raise ValueError('template=None: say what an example looks like, such as "{source}: {target}"')
        self.template = settings.template
        if isinstance(self.template, str):
            self.template = PromptTemplate(self.template, settings.instruction, settings.separator)
        elif (settings.instruction, settings.separator) != (_Settings.instruction, _Settings.separator):
            raise ValueError("template is a PromptTemplate: give it instruction and separator, and not the pipeline")
        self.examples = list(settings.examples)
        self.selector = ExampleSelector(
            self.examples, self.template.inputs, settings.shots, settings.select, settings.seed, settings.embed
        )
        self.labels = _labels(settings)
        if self.labels and generate_kwargs:
            raise ValueError(
                f"{next(iter(generate_kwargs))} is for what a model writes, and with labels it writes nothing"
            )
        self.new_tokens = 0 if self.labels else self._new_tokens()
        self.limit = self._limit()
        self.stops = _stops(settings.stop, self.template)
        # Special tokens in front; those that would end a prompt are left out
        start, end = self.tokenizer("")["input_ids"], self.tokenizer.eos_token_id
        self.start = [index for index in start if index != end or end == self.tokenizer.bos_token_id]
        self.pad = next(
            (index for index in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if index is not None), 0
        )
        self.parameters = set(inspect.signature(self.model.forward).parameters)
        self.shares = self._may_share()
        self.held: _Prefix | None = None
        self.priors: dict[tuple[int, ...], Tensor] = {}

    def prompts(self, queries: Sequence[Any]) -> list[_Prompt]:
        """Prompts of queries, with as many of their examples as fit."""
        checked = [self.template.as_fields(query) for query in queries]
        return [
            self._fitted(query, chosen) for query, chosen in zip(checked, self.selector.choose(checked), strict=True)
        ]

    def choices(self, prompts: list[_Prompt]) -> list[Any]:
        """Labels of B prompts with their scores."""
        answers = []
        for prompt, scored in zip(prompts, self._scores(prompts), strict=True):
            before = self._probabilities(scored)
            after = before
            if self.settings.calibrate:
                after = before / self._prior(prompt)
                after = after / after.sum()
            records = []
            for number in after.argsort(descending=True, stable=True).tolist():
                record = {"label": list(self.labels)[number], "score": after[number].item()}
                if self.settings.return_scores:
                    record |= {"log_prob": scored.totals[number].item(), "tokens": int(scored.counts[number])}
                    record |= {"uncalibrated": before[number].item()} if self.settings.calibrate else {}
                records.append(record | self._told(prompt))
            answers.append(records if self.settings.return_scores else records[0])
        return answers

    def texts(self, prompts: list[_Prompt]) -> list[Any]:
        """What the model writes after B prompts."""
        rows = [prompt.ids for prompt in prompts]
        shared = self._shared(prompts, rows, [len(ids) - 1 for ids in rows])
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.pad)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            # Padding stands between what is shared and the rest: the cache has the one, and the text ends the other
            places = [*range(shared), *range(longest - len(row) + shared, longest)]
            ids[number, places], mask[number, places] = torch.tensor(row), 1
        ids, mask = ids.to(self.pipe.device), mask.to(self.pipe.device)
        arguments = self.pipe._prepare_generate_kwargs(
            self.generate_kwargs,
            return_dict_in_generate=True,
            output_logits=self.settings.return_scores,
            max_new_tokens=self.new_tokens,
            pad_token_id=self.pad,
        )
        known = self.pipe._get_set_generation_params(arguments)
        beams, returned = known.get("num_beams") or 1, known.get("num_return_sequences") or 1
        if shared:
            arguments["cache"] = self._repeated(rows[0][:shared], len(rows) * max(beams, returned))
        if self.settings.return_scores and beams > 1:
            arguments["output_scores"] = True
        if self.stops:
            criteria = [*arguments.pop("stopping_criteria", []), _StopAtText(self.tokenizer, self.stops, longest)]
            arguments["stopping_criteria"] = StoppingCriteriaList(criteria)
        output = self.model.generate(ids, attention_mask=mask, **arguments)
        written = output.sequences[:, longest:]
        scores = None
        if self.settings.return_scores:
            real = real_tokens(written, known.get("eos_token_id"), self.pad)
            scores = sequence_scores(output, real, known.get("length_penalty")).tolist()
        answers = []
        for number, prompt in enumerate(prompts):
            records = []
            for row in range(number * returned, (number + 1) * returned):
                text = self.tokenizer.decode(written[row], skip_special_tokens=True)
                record = {"generated_text": _cut(text, self.stops).strip()}
                record |= {} if scores is None else {"score": scores[row]}
                records.append(record | self._told(prompt))
            answers.append(records if returned > 1 else records[0])
        return answers

    def _new_tokens(self) -> int:
        chosen = {**self.pipe._generate_kwargs, **self.generate_kwargs}
        config = chosen.get("generation_config")
        if chosen.get("max_length") is not None:
            raise ValueError(f"max_length={chosen['max_length']} would count the prompt: give max_new_tokens")
        known = [chosen, {} if config is None else config.to_diff_dict(), self.model.generation_config.to_diff_dict()]
        found = [each["max_new_tokens"] for each in known if each.get("max_new_tokens") is not None]
        return found[0] if found else self.pipe._generation_defaults["max_new_tokens"]

    def _limit(self) -> int | None:
        known = [position_limit(self.model.config, "decoder"), self.tokenizer.model_max_length]
        # Of a tokenizer that knows no limit it is a number beyond all texts
        known = [number for number in known if number is not None and number < 10**9]
        limit, wanted = min(known, default=None), self.settings.context_length
        if wanted is not None and not 1 <= wanted <= (wanted if limit is None else limit):
            raise ValueError(f"context_length={wanted} must lie between 1 and what the model can read, {limit}")
        return limit if wanted is None else wanted

    def _ids(self, text: str) -> list[int]:
        return self.start + self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _fitted(self, query: Mapping[str, str], chosen: Sequence[int]) -> _Prompt:
        for dropped in range(len(chosen) + 1):
            prompt = self._prompt(query, tuple(chosen[dropped:]))
            # The last token that is written or scored is not read
            length = max([len(prompt.ids) + self.new_tokens, *map(len, prompt.answers)]) - 1
            if self.limit is None or length <= self.limit:
                return prompt
        what = "the longest label" if self.labels else f"max_new_tokens={self.new_tokens}"
        raise ValueError(
            f"query {dict(query)!r:.60} makes {length} tokens with the instruction, {what} and no example, and "
            f"{self.limit} is the most that the model can read"
        )

    def _prompt(self, query: Mapping[str, str], chosen: tuple[int, ...]) -> _Prompt:
        head = self.template.head([self.examples[number] for number in chosen])
        asked, gap = self.template.asked(query)
        ids = self._ids(head + asked)
        if not ids:
            raise ValueError(f"query {dict(query)!r:.60} makes a prompt without a token, which nothing can follow")
        answers = [self._ids(head + asked + gap + text) for text in self.labels.values()]
        for name, answer in zip(self.labels, answers, strict=True):
            if len(answer) <= _common([ids, answer]):
                raise ValueError(f"labels has {name!r}, which adds no token to the prompt")
        # Where a label and the end of the prompt make one token, that token is scored, and for all labels
        start = max(1, min((_common([ids, answer]) for answer in answers), default=len(ids)))
        return _Prompt(head + asked, ids, _common([ids, self._ids(head)]), chosen, answers, start)

    def _told(self, prompt: _Prompt) -> dict[str, Any]:
        return {"prompt": prompt.text, "shots": len(prompt.shots)} if self.settings.return_prompt else {}

    def _prior(self, prompt: _Prompt) -> Tensor:
        """Probabilities of the labels without content, behind the same examples, shape `(L,)`."""
        if prompt.shots not in self.priors:
            given = self.settings.content_free
            empty = [given] if isinstance(given, str) else list(given)
            prompts = [self._fitted(self.template.without_content(text), prompt.shots) for text in empty]
            found = [self._probabilities(scored) for scored in self._scores(prompts)]
            self.priors[prompt.shots] = torch.stack(found).mean(0)
        return self.priors[prompt.shots]

    def _probabilities(self, scored: _Scored) -> Tensor:
        divisor = scored.counts if self.settings.normalize == "tokens" else 1
        return (scored.totals / divisor).softmax(-1)

    def _scores(self, prompts: list[_Prompt]) -> list[_Scored]:
        """Log-probabilities of the labels of B prompts, read as B * L rows."""
        rows = [answer for prompt in prompts for answer in prompt.answers]
        starts = [prompt.start for prompt in prompts for _ in prompt.answers]
        shared = self._shared(prompts, rows, [start - 1 for start in starts])
        longest = max(map(len, rows)) - 1
        ids = torch.full((len(rows), longest), self.pad)
        mask, targets = torch.zeros_like(ids), torch.full_like(ids, -100)
        for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[number, : len(row) - 1], mask[number, : len(row) - 1] = torch.tensor(row[:-1]), 1
            targets[number, start - 1 : len(row) - 1] = torch.tensor(row[start:])
        ids, mask, targets = (each.to(self.pipe.device) for each in (ids, mask, targets))
        # Padding is on the right, where it is read by nothing that counts
        memory = {"cache": self._repeated(rows[0][:shared], len(rows))} if shared else {"use_cache": False}
        logits = self.model(input_ids=ids[:, shared:], attention_mask=mask, **memory).logits.float()
        losses = functional.cross_entropy(logits.transpose(1, 2), targets[:, shared:], reduction="none")
        totals = -losses.double().sum(1).cpu().unflatten(0, (len(prompts), -1))
        counts = (targets != -100).sum(1).cpu().unflatten(0, (len(prompts), -1))
        return [_Scored(*pair) for pair in zip(totals, counts, strict=True)]

    def _may_share(self) -> bool:
        """Whether prompts may have a common cache, as far as can be told before there is one."""
        chosen = self.pipe._get_set_generation_params({**self.pipe._generate_kwargs, **self.generate_kwargs})
        other = ("cache_implementation", "assistant_model", "prompt_lookup_num_tokens")
        refused = not self.labels and (chosen.get("use_cache") is False or any(map(chosen.get, other)))
        if self.settings.share_prefix and refused:
            raise ValueError(f"share_prefix=True needs use_cache, and none of {', '.join(other)}")
        return self.settings.share_prefix is not False and not refused

    def _shared(self, prompts: list[_Prompt], rows: list[list[int]], most: list[int]) -> int:
        """How many ids all rows begin with, up to a limit of each, if what the model remembers of them can be shared;
        and holds what the next batch will begin with too."""
        if not self.shares:
            return 0
        shared = _common([row[:limit] for row, limit in zip(rows, most, strict=True)])
        if shared and self.held is None:
            ids = rows[0][: min(shared, *(prompt.head for prompt in prompts)) or shared]
            cache = self._read(ids, None)
            if not _repeats(cache, self.parameters):
                if self.settings.share_prefix:
                    raise ValueError(
                        f"share_prefix=True, but what a {type(self.model).__name__} remembers, in a "
                        f"{type(cache).__name__}, can't be shared by rows of a batch"
                    )
                self.shares = False
                return 0
            self.held = _Prefix(ids, cache)
        return shared

    def _read(self, ids: list[int], cache: Cache | None) -> Cache | None:
        """What the model remembers once it has read these ids too."""
        inputs = torch.tensor([ids], device=self.pipe.device)
        seen = 0 if cache is None else int(cache.get_seq_length())
        mask = torch.ones(1, seen + len(ids), dtype=torch.long, device=self.pipe.device)
        options = {"logits_to_keep": 1} if "logits_to_keep" in self.parameters else {}
        output = self.model(input_ids=inputs, attention_mask=mask, cache=cache, use_cache=True, **options)
        return getattr(output, "cache", None)

    def _repeated(self, ids: list[int], rows: int) -> Cache:
        """A cache of ids, for so many rows."""
        held = self.held
        if ids[: len(held.ids)] == held.ids:
            cache, rest = copy.deepcopy(held.cache), ids[len(held.ids) :]
        else:
            cache, rest = None, ids
        cache = self._read(rest, cache) if rest else cache
        cache.batch_repeat_interleave(rows)
        return cache


class _StopAtText(StoppingCriteria):
    """Ends a row as soon as what it has written holds one of some texts.

    Args:
        tokenizer: that decodes.
        stops: the texts.
        start: how many ids are the prompt's.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], start: int):
        self.tokenizer, self.stops, self.start = tokenizer, stops, start

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        texts = self.tokenizer.batch_decode(input_ids[:, self.start :], skip_special_tokens=True)
        ended = [any(stop in text for stop in self.stops) for text in texts]
        return torch.tensor(ended, device=input_ids.device)


def _repeats(cache: Cache | None, parameters: set[str]) -> bool:
    """Whether a cache can be repeated for rows that go on differently, with padding between the old and the new."""
    if not isinstance(cache, Cache) or not cache.layers:
        return False
    # By name: a model with its code beside it has a class of its own
    if all(type(layer).__name__ == "RecurrentCacheLayer" for layer in cache.layers):
        return True
    return "position_ids" in parameters and all(type(layer) is DynamicLayer for layer in cache.layers)


def _labels(settings: _Settings) -> dict[str, str]:
    """Texts of labels by their names; none if the model is to write."""
    labels = settings.labels
    if settings.normalize not in NORMALIZATIONS:
        raise ValueError(f"normalize={settings.normalize!r} must be one of {', '.join(NORMALIZATIONS)}")
    if labels is None:
        if settings.calibrate:
            raise ValueError("calibrate=True is for labels, and labels is None")
        return {}
    if isinstance(labels, str) or len(labels) < 2:
        raise ValueError(f"labels={labels!r} must be at least 2")
    if settings.stop is not None:
        raise ValueError(f"stop={settings.stop!r} is for what a model writes, and with labels it writes nothing")
    if not isinstance(labels, Mapping):
        labels = {label: label for label in labels}
    if len(set(labels.values())) < len(settings.labels):
        raise ValueError(f"labels={settings.labels!r} must differ")
    if settings.calibrate and not settings.content_free:
        raise ValueError(f"content_free={settings.content_free!r} must be a text, or several")
    return dict(labels)


def _stops(stop: str | Sequence[str] | None, template: PromptTemplate) -> list[str]:
    stops = [template.end] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    if stop is not None and not all(stops):
        raise ValueError(f"stop={stop!r} has an empty text, which stands everywhere")
    return [text for text in stops if text]


def _cut(text: str, stops: Sequence[str]) -> str:
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text


def _common(rows: Sequence[Sequence[int]]) -> int:
    """How many ids all rows begin with."""
    shortest = min(map(len, rows))
    return next((n for n in range(shortest) if any(row[n] != rows[0][n] for row in rows)), shortest)
