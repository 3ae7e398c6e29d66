"""Trains the tokenizer: byte-level BPE whose words are the same tokens wherever they stand.

A small model copies values out of a text into JSON.  It copies best when `Redwood City` has the same
tokens after a blank, after a quote and in a key.  So blanks belong to the glue between words (function
words, punctuation, JSON punctuation runs), never to the words that carry content, and digits, `_` and
the humps of camelCase are split.

    python -m training.tokenizer --data ../shared/data --out runtime/nano
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from sgl.runtime.nano.nano_prompts import END, START, json_text
from training.values import LISTS, rows

VOCABULARY = 8192
SPECIAL_TOKENS = [
    START,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    END,
    *(f"<|reserved_{i}|>" for i in range(10)),
]


JSON_RUNS = r"""
    {"  [{"  ["  "]  "}  "}}  "}]  "]}  }}  }]  ]}  []  {}
    ": "  ": ["  ": [{"  ": {"  ": [  ": {  ":   ", "  "], "  "}, "  "}, {"  },_"  ],_"  },_{"  ,_"
    ":"  ":["  ":[{"  ":{"  ":  ","  "],"  "},"  "},{"  },"  ],"  },{"  ,"
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def json_runs() -> list[str]:
    """The punctuation between JSON values, longest first; a lone `,` or `:` is left to plain punctuation."""
    words = [word.replace("_", " ") for word in re.split(r"\s{2,}", JSON_RUNS.strip())]
    words.append('": ')
    return sorted(set(words), key=len, reverse=True)


def split_pattern() -> str:
    """The pre-tokenizer: alternatives in order of precedence."""
    runs = "|".join(re.escape(run) for run in json_runs())
    glue = "|".join(sorted(LISTS["glue_words"], key=len, reverse=True))
    return "|".join(
        [
            r"\p{N}",
            r'\\["\\/bfnrtu]',
            runs,
            r"(?<=\p{L})'(?:s|m|t|re|ve|ll|d)(?![\p{L}\p{N}_]) ?",
            rf"(?: |(?<![\p{{L}}\p{{N}}_]))(?:{glue})(?![\p{{L}}\p{{N}}_]) ?",
            r"\p{Lu}?[\p{Ll}\p{M}]+",
            r"\p{Lu}+(?!\p{Ll})",
            r"\p{L}[\p{L}\p{M}]*",
            r"\n+",
            r" {2,}",
            r" ",
            r"[^\s\p{L}\p{N}] ?",
            r"\s",
        ]
    )


def untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(split_pattern()), behavior="isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterator[str]) -> Tokenizer:
    """A tokenizer of exactly VOCABULARY tokens; every encoded text begins with the start token."""
    tokenizer = untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    start = token_id(tokenizer, START)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", pair=f"{START} $A $B", special_tokens=[(START, start)]
    )
    return tokenizer


def corpus(data: Path, seed: int) -> Iterator[str]:
    """Prose of all public sets, and conversations of every task."""
    from training.prepare import Sources

    for row in rows(data / "gsm8k-train.jsonl.gz"):
        yield row["question"]
        yield row["answer"]
    for row in rows(data / "sgd-train.jsonl.gz"):
        for turn in row["turns"]:
            yield turn["utterance"]
            yield json_text(turn.get("service_results", []))
    sources = Sources(data, seed)
    for name, count in (("documents", 20000), ("agents", 8000), ("utterances", 13000), ("manners", 4000)):
        for _ in range(count):
            yield from (turn["content"] for turn in sources.conversation(name))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must be there."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no token {token!r}: train it with python -m training.tokenizer")
    return number


def save(tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers reads them."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": START,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": True,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tokenizer of sgl-nano.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runtime/nano"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    save(train(corpus(args.data, args.seed)), args.out)
    print(f"wrote {args.out}/tokenizer.json with {VOCABULARY} tokens")


if __name__ == "__main__":
    main()
