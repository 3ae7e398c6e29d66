#!/usr/bin/env bash
# Guess: guidance 0.3.1 runs one prompt after another on a Transformers model, with transformers 5 as with transformers 4.
# Seen: with transformers 5.24 the first prompt works. The next one that differs raises ValueError: guidance crops the KV cache
# to a length, and transformers takes only a negative number of tokens to remove. A pipeline that extracts from documents fails at
# its second document; a new model object for each prompt, or transformers 4, works.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
cat >"$folder/two_prompts.py" <<'PY'
import guidance
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: index for index, letter in enumerate([*letters, "</s>"])}
made = Tokenizer(models.BPE(vocabulary, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", bos_token="</s>")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(vocabulary), **sizes))
print("guidance", guidance.__version__, "transformers", transformers.__version__)
schema = {"type": "object", "properties": {"a": {"enum": ["one", "two"]}}, "required": ["a"]}
shared = guidance.models.Transformers(model, tokenizer, echo=False, enable_monitoring=False)
seen = []
for prompt in ("The first prompt ", "Another prompt "):
    try:
        seen.append((shared + prompt + guidance.json("x", schema=schema, max_tokens=60))["x"])
    except ValueError as error:
        seen.append(f"ValueError: {error}")
    print(f"{prompt!r}: {seen[-1]}")
assert seen[0].startswith("{"), seen
assert "`crop` with a positive value" in seen[1], seen
PY
python3 -m venv "$folder/v"
"$folder/v/bin/pip" install -q --disable-pip-version-check guidance==0.3.1 transformers==5.24.0 torch==2.13.0
"$folder/v/bin/python" -W ignore "$folder/two_prompts.py"
