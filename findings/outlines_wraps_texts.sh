#!/usr/bin/env bash
# Guess: outlines 1.3 gives a text to the model as it is; for turns of a conversation it has outlines.inputs.Chat.
# Seen: where the tokenizer has a chat template, a text becomes a user turn of it, in a call and in a batch. A prompt that was
# rendered by a template already is wrapped a second time, and the model answers something else. Nothing says so.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
cat >"$folder/prompts.py" <<'PY'
from importlib.metadata import version

import outlines
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: index for index, letter in enumerate([*letters, "</s>"])}
made = Tokenizer(models.BPE(vocabulary, []))
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(vocabulary), **sizes))
print("outlines", version("outlines"), "transformers", transformers.__version__)


def read_by_the_model(template):
    """The texts that reach the model for a prompt in a call, and for two in a batch."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="</s>")
    tokenizer.chat_template = template
    seen, generate = [], model.generate

    def watched(*args, **kwargs):
        rows = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        seen.extend(tokenizer.decode(row, skip_special_tokens=True) for row in rows)
        return generate(*args, **kwargs)

    model.generate = watched
    try:
        loaded = outlines.from_transformers(model, tokenizer)
        loaded("Say yes.", outlines.regex("yes|no"), max_new_tokens=4)
        loaded.batch(["Say yes.", "Say yes."], outlines.regex("yes|no"), max_new_tokens=4)
    finally:
        model.generate = generate
    return seen


plain = read_by_the_model(None)
wrapped = read_by_the_model("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %} [assistant]")
print("without a chat template:", plain)
print("with one:", wrapped)
assert plain == ["Say yes."] * 3, plain
assert wrapped == ["[user] Say yes. [assistant]"] * 3, wrapped
PY
python3 -m venv "$folder/v"
"$folder/v/bin/pip" install -q --disable-pip-version-check outlines==1.3.3 transformers==5.24.0 torch==2.13.0
"$folder/v/bin/python" -W ignore "$folder/prompts.py"
