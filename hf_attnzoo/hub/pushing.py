"""The way of a saved model to the Hub: what goes, what stays, and what is wrong told in a line."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from os import PathLike
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token

# HTTPError is that of its HTTP library, which has changed from release to release
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open

from .card import CODE_NOTE, HERE, NO_CODE_NOTE
from .checking import card_links, check_card
from .starters import find_model, is_starter

CARD, CONFIG, WEIGHTS, INDEX = "README.md", "config.json", "model.safetensors", "model.safetensors.index.json"

# Where a class can be named that lies beside a checkpoint
_CLASS_NAMING = (CONFIG, "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")

# What a checkpoint is made of, beside its weights and its code, in transformers' names. Anything else stays: what a
# training program writes, pickles among it, is nobody else's business.
_PARTS = (
    *_CLASS_NAMING,
    "generation_config.json",
    "tokenizer.json",
    "target_tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
)
_EXTRAS = ("metrics.json", "example.png", "LICENSE")

# A link in a card is no reason to send a pickle, or a file with secrets in it
_SHOWN = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf", ".html", ".md", ".txt", ".csv", ".tsv", ".json")

# Left over from an earlier push, these would be loaded in the place of what is pushed now, or beside it
_OLD_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")
_SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")
_CLASS = re.compile(r"([A-Za-z_]\w*)\.[A-Za-z_]\w*")

# Somebody else who commits at the same time is let pass so often
_ATTEMPTS = 3


@dataclass(frozen=True)
class Push:
    """What has come of a push.

    Args:
        url: of the commit, or of the pull request.
        commit: its hash.
        files: names of all files of the checkpoint, in the repository and in the folder alike.
        left_out: what else lies in the folder.
        deleted: files of an earlier push that were removed from the repository.
        changed: whether there was anything to commit.
    """

    url: str
    commit: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    deleted: tuple[str, ...]
    changed: bool


def push_checkpoint(
    folder: str | PathLike,
    repo_id: str,
    *,
    private: bool = False,
    with_code: bool = True,
    message: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    api: HfApi | None = None,
) -> Push:
    """Bring the folder of a saved model to the Hub in one commit, once it has been checked.

    What goes is the model (configurations, weights in safetensors, in one file or in shards), its tokenizer or
    processor, the card with all files that it shows, and the code that transformers needs where hf_attnzoo isn't
    installed. What else lies there stays, above all pickles, states of training and of optimisers. In the card the
    name of the repository takes the place of the folder's.

    The token is the one that huggingface_hub finds: `HF_TOKEN`, or what `hf auth login` has kept.

    Args:
        folder: of the model, with `README.md`; or a name of `STARTERS`.
        repo_id: `user/name`, or `name` for the user whose token it is. Made if it isn't there.
        private: whether a repository that is made is seen by its owner alone.
        with_code: whether the code goes too. Without it the repository loads where hf_attnzoo is imported, and there
            alone.
        message: of the commit.
        revision: branch, made if it isn't there. Default: `None`, `main`.
        create_pr: whether to ask for the change by a pull request rather than to make it.
        api: client of the Hub. Default: `None`, that of the environment.

    Returns:
        What has come of it.

    Raises:
        FileNotFoundError: there is no such folder, or no model or card in it.
        ValueError: a configuration, weights, code or a card that are not fit for the Hub; a token that it doesn't know
            or that may not write; no such repository or revision; a public repository where `private` is asked for.
        ConnectionError: the Hub can't be reached, or the connection broke off; what has arrived isn't sent again.
    """
    folder = Path(find_model(folder))
    contents = read_checkpoint(folder, with_code=with_code)
    left_out = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir() if path.name not in contents)
    left_out = [name for name in left_out if not any(path.startswith(name) for path in contents)]
    api = HfApi() if api is None else api
    with _told(repo_id, revision, api.endpoint):
        if get_token() is None and not isinstance(api.token, str):
            raise ValueError("there is no token of the Hub: `hf auth login` keeps one, or HF_TOKEN has it")
        repo_id = _find_repo(api, repo_id, private=private, create_pr=create_pr)
        if revision is not None and not revision.startswith("refs/pr/") and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        contents[CARD] = _card_for(contents[CARD], repo_id, with_code)
        commit, deleted, before = _commit(
            api, repo_id, contents, message or f"Upload {folder.resolve().name}", revision, create_pr
        )
    return Push(
        url=commit.pr_url or commit.commit_url,
        commit=commit.oid,
        files=tuple(sorted(contents)),
        left_out=tuple(left_out),
        deleted=tuple(deleted),
        changed=commit.oid != before,
    )


def read_checkpoint(folder: str | PathLike, *, with_code: bool = True) -> dict[str, Path | bytes]:
    """See that a folder holds a model that is fit for the Hub, and say what of it goes there.

    Args:
        folder: of the model; or a name of `STARTERS`, whose code is the package's.
        with_code: whether its code goes too. Without it no configuration names that code any more.

    Returns:
        Name in the repository -> the file, or what stands in its place.

    Raises:
        FileNotFoundError, ValueError: see `push_checkpoint`.
    """
    folder = Path(find_model(folder))
    if with_code and is_starter(folder):
        with TemporaryDirectory() as scratch:
            _add_code(folder, Path(scratch))
            files = read_checkpoint(scratch)
            return {name: file.read_bytes() if isinstance(file, Path) else file for name, file in files.items()}
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not (folder / CONFIG).is_file():
        inner = folder / "model"
        hint = f"; the model is in {inner}" if (inner / CONFIG).is_file() else ""
        raise FileNotFoundError(f"{folder}: no saved model, for there is no {CONFIG}{hint}")
    _check_config(folder)
    names = [*_weights(folder), *(name for name in (*_PARTS, *_EXTRAS) if (folder / name).is_file())]
    if not (folder / CARD).is_file():
        raise FileNotFoundError(f"{folder}: no model card, for there is no {CARD}; the Hub shows it first")
    card = check_card(folder / CARD)
    shown = [Path(link) for link in card_links(card.text)]
    for path in shown:
        if path.suffix.lower() not in _SHOWN:
            raise ValueError(f"{folder / CARD}: links to {path}; of files the Hub gets those that can be looked at")
    names += [CARD, *(path.as_posix() for path in shown)]
    contents: dict[str, Path | bytes] = {name: folder / name for name in names}
    naming = {name: _read_json(folder / name) for name in _CLASS_NAMING if name in contents}
    if with_code:
        contents |= {path.name: path for path in _code(folder, naming)}
    else:
        for name, content in naming.items():
            content.pop("custom_pipelines", None)
            contents[name] = (json.dumps(_without_auto_map(content), indent=2, ensure_ascii=False) + "\n").encode()
    return contents


def _add_code(folder: Path, target: Path) -> None:
    """Save a model of ours that lies in a folder without its code again, as a run would have."""
    from transformers import AutoConfig, pipeline

    from ..registry import FAMILIES

    config = AutoConfig.from_pretrained(folder)
    family = next(family for family in FAMILIES.values() if isinstance(config, family.config_class))
    pipeline(family.pipelines[0], model=str(folder)).save_pretrained(target)
    for path in folder.iterdir():
        # The weights are as they were, in 16 bits; what may name code is as it has just been saved
        if path.name not in _CLASS_NAMING:
            copyfile(path, target / path.name)
    card = (folder / CARD).read_text(encoding="utf-8").replace(NO_CODE_NOTE, CODE_NOTE)
    (target / CARD).write_text(card, encoding="utf-8")


def _check_config(folder: Path) -> None:
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # Of JSON, of types, of a model's own checks
    except Exception as error:
        raise ValueError(f"{folder / CONFIG}: no configuration of a model ({error})") from error


def _weights(folder: Path) -> list[str]:
    """Names of the files that hold the weights, each of which can be read and has what the index says."""
    if (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        raise ValueError(f"{folder}: has both {WEIGHTS} and {INDEX}; only one of them can be the model")
    if (folder / WEIGHTS).is_file():
        _tensor_names(folder / WEIGHTS)
        return [WEIGHTS]
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder}: no weights in safetensors, and a pickle goes nowhere")
    places = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{folder / INDEX}: weight_map is {places!r}; it must say which file has which weight")
    shards: dict[str, set[str]] = {}
    for tensor, shard in places.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise ValueError(f"{folder / INDEX}: {tensor} is in {shard!r}; it must be a .safetensors of this folder")
        shards.setdefault(shard, set()).add(tensor)
    for shard, expected in shards.items():
        if not (folder / shard).is_file():
            raise FileNotFoundError(f"{folder / INDEX}: names {shard}, and there is no such file")
        missing = expected - _tensor_names(folder / shard)
        if missing:
            raise ValueError(f"{folder / shard}: has no {min(missing)}, which {INDEX} says it has")
    return [INDEX, *sorted(shards)]


def _tensor_names(path: Path) -> set[str]:
    try:
        with safe_open(path, framework="numpy") as file:
            return set(file.keys())
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole file of safetensors ({error})") from error


def _code(folder: Path, naming: dict[str, Any]) -> list[Path]:
    """The modules that configurations name, with all that those import from their folder."""
    # Copies what transformers itself copies and fetches, by the same rule
    from transformers.dynamic_module_utils import get_relative_import_files

    modules: dict[str, None] = {}
    for file, content in naming.items():
        for name in _named_classes(content):
            match = _CLASS.fullmatch(name)
            if match is None:
                raise ValueError(f"{folder / file}: names {name!r}; code must lie in the same folder, as file.Class")
            modules[f"{match[1]}.py"] = None
    if not modules and _is_ours(naming[CONFIG]):
        raise ValueError(f"{folder}: there is no code beside the weights; push it without, or save it again")
    paths: dict[Path, None] = {}
    for module in modules:
        if not (folder / module).is_file():
            raise FileNotFoundError(f"{folder}: {module} is named as code of the model, and there is no such file")
        paths[folder / module] = None
        try:
            needed = get_relative_import_files(folder / module)
        except FileNotFoundError as error:
            missing = Path(error.filename or "a file").name
            raise FileNotFoundError(f"{folder}: {module} needs {missing}, and there is no such file") from error
        for path in map(Path, needed):
            # As it is written: what a cache of the Hub has in its folders are links
            if path.parent != folder:
                raise ValueError(f"{folder}: {module} imports {path}, which is not in the same folder")
            paths[folder / path.name] = None
    return list(paths)


def _is_ours(config: dict[str, Any]) -> bool:
    from ..registry import FAMILIES

    return config.get("model_type") in {family.config_class.model_type for family in FAMILIES.values()}


def _named_classes(content: Any) -> Iterator[str]:
    """What stands in every `auto_map`, a processor's configuration has them inside, and in `custom_pipelines`."""
    if isinstance(content, list):
        for item in content:
            yield from _named_classes(item)
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key == "auto_map" and isinstance(value, dict):
            for names in value.values():
                yield from (str(name) for name in (names if isinstance(names, list) else [names]) if name is not None)
        elif key == "custom_pipelines" and isinstance(value, dict):
            yield from (str(pipe.get("impl")) for pipe in value.values() if isinstance(pipe, dict))
        else:
            yield from _named_classes(value)


def _without_auto_map(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_auto_map(value) for key, value in content.items() if key != "auto_map"}
    return [_without_auto_map(item) for item in content] if isinstance(content, list) else content


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}; it must be an object")
    return content


def _card_for(card: Path | bytes, repo_id: str, with_code: bool) -> bytes:
    text = card.read_text(encoding="utf-8") if isinstance(card, Path) else card.decode()
    if not with_code:
        text = text.replace(CODE_NOTE, NO_CODE_NOTE)
    return text.replace(HERE, repo_id).encode()


def _find_repo(api: HfApi, repo_id: str, *, private: bool, create_pr: bool) -> str:
    """The whole name of a repository, which is made if need be."""
    if "/" not in repo_id:
        repo_id = f"{api.whoami()['name']}/{repo_id}"
    try:
        info = api.model_info(repo_id)
    except RepositoryNotFoundError:
        if create_pr:
            raise
        # Somebody may have made it since, or has one that this token may not see
        api.create_repo(repo_id, private=private or None, exist_ok=True)
        info = api.model_info(repo_id)
    if private and not info.private:
        raise ValueError(f"{repo_id}: is there already, and public; make it private in its settings first")
    return repo_id


def _commit(
    api: HfApi, repo_id: str, contents: dict[str, Path | bytes], message: str, revision: str | None, create_pr: bool
) -> tuple[CommitInfo, list[str], str]:
    """Commits, on top of whatever others commit meanwhile.

    Returns:
        The commit, the files that it deletes, and the hash of the one before.
    """
    for attempt in count(1):
        head = api.model_info(repo_id, revision=revision)
        there = {sibling.rfilename for sibling in head.siblings or ()}
        old = sorted(name for name in there - contents.keys() if name in _PARTS or _OLD_WEIGHTS.fullmatch(name))
        # Anew for each attempt: they remember what the head before had
        operations = [
            *(CommitOperationAdd(name, content) for name, content in contents.items()),
            *(CommitOperationDelete(name) for name in old),
        ]
        try:
            commit = api.create_commit(
                repo_id,
                operations,
                commit_message=message,
                revision=revision,
                create_pr=create_pr,
                parent_commit=head.sha,
            )
        except HfHubHTTPError as error:
            if error.response.status_code != 412 or attempt == _ATTEMPTS:
                raise
        else:
            return commit, old, head.sha


@contextmanager
def _told(repo_id: str, revision: str | None, endpoint: str) -> Iterator[None]:
    """Errors of the Hub and of the way there in a line that says what to do, without anything secret in it."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise ConnectionError(f"{endpoint} is not asked while HF_HUB_OFFLINE is set: unset it") from error
    except RevisionNotFoundError as error:
        raise ValueError(f"{repo_id}: has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise ValueError(f"{repo_id}: no such repository at {endpoint}, or none that this token may see") from error
    except HfHubHTTPError as error:
        raise ValueError(_answer(repo_id, error, endpoint)) from error
    except HTTPError as error:
        kind = type(error).__name__
        raise ConnectionError(f"{endpoint} can't be reached ({kind}): push to {repo_id} again later") from error
    except RuntimeError as error:
        # What huggingface_hub makes of an error while a large file is on its way
        cause = error.__cause__
        if not isinstance(cause, (OSError, HTTPError)):
            raise
        said = _answer(repo_id, cause, endpoint) if isinstance(cause, HfHubHTTPError) else type(cause).__name__
        raise ConnectionError(
            f"{repo_id}: the upload broke off ({said}) and nothing has changed there; push again, and files that have "
            "arrived are not sent again"
        ) from error


def _answer(repo_id: str, error: HfHubHTTPError, endpoint: str) -> str:
    status = error.response.status_code
    if status == 401:
        return f"{endpoint} does not take this token (401): get another by `hf auth login`, or set HF_TOKEN to it"
    if status == 403:
        return f"{repo_id}: this token may not write there (403): it needs to be one with write access to it"
    if status == 412:
        return f"{repo_id}: others keep committing to it at the same time (412): push again later"
    said = error.server_message or error.response.reason_phrase
    return f"{repo_id}: the Hub answered {status}, {_redacted(said)}"


def _redacted(text: str) -> str:
    """A text of the Hub's without tokens, and without addresses, which may be signed."""
    token = get_token()
    if token:
        text = text.replace(token, "***")
    return re.sub(r"hf_\w+", "***", re.sub(r"\bhttps?://\S+", "...", text))
