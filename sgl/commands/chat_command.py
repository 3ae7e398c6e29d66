"""`sgl chat`: talk to a model in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .model_arguments import add_model_arguments, model_and_options

_ABOUT = """\
Loads a model in this process and chats with it. Ctrl-C stops an answer; Ctrl-D or /exit ends the chat.
Piped input is answered line by line.

  sgl chat                                                 the bundled model
  sgl chat path/to/model --system "You are brief." kv_memory=2GB
  sgl chat --json-schema booking.schema.json < mails.txt   every answer is JSON of that schema
"""

_HELP = """\
/new              forget this conversation          /system TEXT      another system prompt, from the beginning
/temperature T    how freely it chooses; 0: not    /tokens N         the longest answer
/undo             take the last exchange back       /save FILE        the conversation as JSON
/help             this                              /exit             end"""

INTERRUPTED = 130
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("chat", help="chat with a model in the terminal", description=_ABOUT)
    add_model_arguments(parser)
    parser.add_argument("--system", default="You are a helpful assistant.", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.7,
        metavar="T",
        help="sampling temperature; 0 always takes the most likely token (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="limit of each answer (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="seed for reproducible answers")
    constraint = parser.add_mutually_exclusive_group()
    constraint.add_argument("--json-schema", type=Path, metavar="FILE", help="answer with JSON of this schema")
    constraint.add_argument("--regex", metavar="PATTERN", help="answer with text that matches this regex")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Talk until the input ends; returns the exit status."""
    from sgl.grammars import GrammarError
    from sgl.runtime.errors import RuntimeFailure

    try:
        _chat(options)
    except (RuntimeFailure, GrammarError, OSError, ValueError) as error:
        print(f"sgl chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _chat(options: argparse.Namespace) -> None:
    from sgl.runtime.engine import Engine
    from sgl.runtime.sampling.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed)
    model, engine_options = model_and_options(options.words)
    with Engine(model, **engine_options) as engine:
        params.validate(engine.tokenizer.vocab_size)
        talk = ChatSession(engine, params, options.system, _grammar(engine, options))
        if sys.stdin.isatty():
            print(f"{Path(engine.model_path).name} on {engine.info()['device']}; /help lists the commands")
        for line in _lines():
            if not talk.hear(line):
                break


def _grammar(engine: Any, options: argparse.Namespace) -> Any:
    from sgl.grammars import compile_json_schema, compile_regex

    if options.json_schema is not None:
        schema = json.loads(options.json_schema.read_text(encoding="utf-8"))
        return compile_json_schema(schema, engine.vocabulary)
    return None if options.regex is None else compile_regex(options.regex, engine.vocabulary)


def _lines() -> Iterator[str]:
    """What the user says, with a prompt and an editable line where somebody sits there."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    try:
        import readline  # noqa: F401
    except ImportError:
        pass
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


@dataclass
class ChatSession:
    """One conversation."""

    engine: Any
    params: Any
    system: str
    grammar: Any = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def hear(self, line: str) -> bool:
        """Answer a message or obey a command. False: that was the end."""
        from sgl.runtime.errors import RuntimeFailure

        word, _, rest = line[1:].partition(" ")
        if line.startswith("/") and word == "exit":
            return False
        try:
            if line.startswith("/"):
                self._obey(word, rest.strip())
            elif line.strip():
                self.answer(line)
        except (RuntimeFailure, ValueError, OSError) as error:
            print(f"{error}" + ("" if line.startswith("/") else " (/new starts a new conversation)"))
        return True

    def _obey(self, word: str, rest: str) -> None:
        command = _COMMANDS.get(word)
        if command is None:
            raise ValueError(
                f"there is no command /{word}; /help lists them; to send a message that begins with /, put a blank "
                "before it"
            )
        command(self, rest)

    def answer(self, text: str) -> None:
        """Print the answer as it comes; Ctrl-C keeps what there is of it."""
        self.messages.append({"role": "user", "content": text})
        writer = ChatPrinter()
        sequence = self.engine.open()
        try:
            sequence.extend(self.engine.tokenizer.encode_chat(self._turns(), add_generation_prompt=True))
            generated = sequence.generate(self.params, self.grammar, writer.take)
            writer.end(generated.result())
        except KeyboardInterrupt:
            writer.stop()
            sequence.abort()
            print(flush=True)
        except BaseException:
            self.messages.pop()
            raise
        finally:
            sequence.close()
        self.messages.append({"role": "assistant", "content": "".join(writer.texts)})

    def _turns(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    # commands

    def new(self, rest: str) -> None:
        self.messages.clear()

    def undo(self, rest: str) -> None:
        del self.messages[-2:]

    def set_system(self, rest: str) -> None:
        self.system = rest
        self.messages.clear()

    def set_temperature(self, rest: str) -> None:
        self._change(temperature=float(rest))

    def set_tokens(self, rest: str) -> None:
        self._change(max_tokens=int(rest))

    def _change(self, **options: Any) -> None:
        changed = replace(self.params, **options)
        changed.validate(self.engine.tokenizer.vocab_size)
        self.params = changed

    def save(self, rest: str) -> None:
        path = Path(rest or "conversation.json")
        path.write_text(json.dumps(self._turns(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        print(f"saved to {path}")

    def help(self, rest: str) -> None:
        print(_HELP)


_COMMANDS: dict[str, Callable[[ChatSession, str], None]] = {
    "new": ChatSession.new,
    "undo": ChatSession.undo,
    "system": ChatSession.set_system,
    "temperature": ChatSession.set_temperature,
    "tokens": ChatSession.set_tokens,
    "save": ChatSession.save,
    "help": ChatSession.help,
}


class ChatPrinter:
    """Prints pieces as they come, then, for people, what they cost."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._started = time.perf_counter()
        self._first: float | None = None
        self._writing, self._stopped = threading.Lock(), False

    def stop(self) -> None:
        """Nothing more of the answer is printed: the next prompt is already shown."""
        with self._writing:
            self._stopped = True

    def take(self, chunk: Any) -> None:
        """On the scheduler's thread: a terminal takes what little there is at once."""
        with self._writing:
            if chunk.text and not self._stopped:
                self._first = self._first or time.perf_counter()
                self.texts.append(chunk.text)
                print(chunk.text, end="", flush=True)

    def end(self, generation: Any) -> None:
        print()
        if not sys.stdout.isatty():
            return
        first = (self._first or time.perf_counter()) - self._started
        rate = generation.completion_tokens / max(generation.e2e_latency, 1e-9)
        ending = ", cut at the limit (/tokens N)" if generation.finish_reason["type"] == "length" else ""
        print(
            f"{DIM}{generation.completion_tokens} tokens, the first after {1000 * first:.0f} ms, {rate:,.0f} tokens/s, "
            f"{generation.cached_tokens} of {generation.prompt_tokens} prompt tokens from the cache{ending}{PLAIN}"
        )
