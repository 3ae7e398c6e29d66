"""`sgl quantize`: writes a model with weights of four or eight bits that other engines read too, and measures the
loss."""

from __future__ import annotations

import argparse
import difflib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgl.runtime.calibration import CalibrationTextPiece
    from sgl.runtime.calibration.quantize_checkpoint import QuantizeReport

_ABOUT = """\
Writes MODEL as the directory OUT with quantized weights, in compressed-tensors' layout. The layers are quantized; embedding
and head stay as they are.

  int4        each group of inputs rounded to 16 steps between its ends, with a whole zero
  int4_gptq   the same, with each column's error compensated by the others (GPTQ); needs --calibration
  int8        a scale for each output
  fp8         floats of 8 bits (e4m3), a scale for each output
  fp8_block   the same, a scale for each 128 x 128
  nvfp4       floats of 4 bits (e2m1), a scale in e4m3 for each 16 inputs
  mxfp4       the same, a power of two for each 32 inputs

Texts come from a text file, or from each line of a .jsonl: a text, messages, token ids, or an object with "text", "messages"
or "ids". They can also come from a function of a Python file, FILE.py:FUNCTION: it is called with an engine of MODEL and runs
programs on it (program.run_batch(inputs, backend=engine)). --heldout measures the loss on texts that were not used for
calibration, and for a function also on the answers alone.
"""  # noqa: E501
GROUPED, GROUP = ("int4", "int4_gptq"), 64
FUNCTION_OF = ".py:"  # between a file and the name of its function


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "quantize", help="write a model with weights of four or eight bits, and measure the loss", description=_ABOUT
    )
    parser.add_argument("model", metavar="MODEL", help="a model directory or hub id")
    parser.add_argument("out", metavar="OUT", type=Path, help="the directory to write, which must not exist")
    parser.add_argument("--weights", default="int4", help="one of the kinds above (default: int4)")
    parser.add_argument("--group", type=int, help="inputs that share a scale, of int4 and int4_gptq (default: 64)")
    parser.add_argument(
        "--calibration", metavar="FILE", help="texts like those that the model will process, or FILE.py:FUNCTION"
    )
    parser.add_argument(
        "--heldout", metavar="FILE", help="other such texts to measure the loss on, or FILE.py:FUNCTION"
    )
    parser.add_argument("--device", default="cpu", help="where layers are computed: cpu, cuda, ... (default: cpu)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Status 1 where nothing was written."""
    from sgl.runtime.errors import RuntimeFailure

    try:
        print(quantize_summary(_quantized(options)), end="")
    except RuntimeFailure as error:
        print(f"sgl quantize: {error}", file=sys.stderr)
        return 1
    return 0


def _quantized(options: argparse.Namespace) -> QuantizeReport:
    from sgl.runtime.calibration.quantize_checkpoint import quantize
    from sgl.runtime.calibration.quantized_layouts import quantized_layout_for
    from sgl.runtime.errors import ConfigError
    from sgl.runtime.executor.device_choice import named_device
    from sgl.runtime.loading import resolve_model

    group = options.group
    if group is not None and options.weights not in GROUPED:
        raise ConfigError(f"--group is for --weights {' and '.join(GROUPED)}, here: {options.weights}; leave it out")
    group = GROUP if group is None else group
    if options.calibration is not None and not quantized_layout_for(options.weights, group).calibrated:
        raise ConfigError(
            f"--calibration: nothing uses it with --weights {options.weights}; leave it out, or take int4_gptq"
        )
    origin = resolve_model(options.model)
    calibration, held_out = (
        _pieces(origin, calibration_source, options.device)
        for calibration_source in (options.calibration, options.heldout)
    )
    return quantize(
        origin,
        options.out,
        options.weights,
        group=group,
        device=named_device(options.device),
        calibration=[piece.ids for piece in calibration],
        held_out=held_out,
    )


def _pieces(origin: Path, calibration_source: str | None, device: str) -> list[CalibrationTextPiece]:
    """Of a file of texts, or of what a function runs."""
    from sgl.runtime.build.engine_config import EngineConfig
    from sgl.runtime.calibration import LENGTH, pieces, read_calibration_texts
    from sgl.runtime.engine import recorded
    from sgl.runtime.loading import load_config
    from sgl.runtime.text.tokenizer import Tokenizer

    if calibration_source is None:
        return []
    if FUNCTION_OF in calibration_source:
        texts: Any = recorded(origin, EngineConfig.from_options({"device": device}), _function(calibration_source))
    else:
        texts = read_calibration_texts(Path(calibration_source))
    return pieces(Tokenizer.load(origin), texts, min(LENGTH, load_config(origin).max_position))


def _function(calibration_source: str) -> Callable[[Any], object]:
    """Raises ConfigError for a missing file, and for a name that is not a function in it."""
    from sgl.runtime.errors import ConfigError

    path, _, name = calibration_source.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"{path} of {calibration_source} is no file; give FILE.py:FUNCTION")
    sys.path.insert(0, str(Path(path).resolve().parent))
    found = runpy.run_path(path, run_name="__sgl_quantize__")
    if name not in found or not callable(found[name]):
        near = difflib.get_close_matches(name, [other for other, value in found.items() if callable(value)], 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"{path} has no function {name}; {hint}give one that takes an engine and runs programs with backend=engine"
        )
    if hasattr(found[name], "run_batch"):
        raise ConfigError(
            f"{name} in {path} is a program; name a function that takes an engine and runs it: "
            f"{name}.run_batch(inputs, backend=engine)"
        )
    function: Callable[[Any], object] = found[name]
    return function


def quantize_summary(report: QuantizeReport) -> str:
    """The report for people."""
    lines = [
        f"weights     {report.bits:.2f} bits each with scales and zeros, {report.weights:,} in {report.projections} "
        "projections",
        f"bytes       {report.bytes_before:,} -> {report.bytes:,}",
    ]
    if report.calibrated:
        lines.append(f"calibrated  by {report.calibrated:,} tokens")
    if (losses := report.losses) is not None:
        lines += [
            f"held out    {losses.tokens:,} tokens: KL {losses.divergence:.5f} in the mean, "
            f"{losses.divergence_99:.5f} at the 99th percentile",
            f"            same top token {losses.same_top:.1%}; perplexity {losses.perplexity_before:.4f} -> "
            f"{losses.perplexity:.4f}",
        ]
        if (answers := report.answers) is not None:
            lines.append(
                f"answers     {answers.tokens:,} of them: KL {answers.divergence:.5f}, {answers.divergence_99:.5f}; "
                f"same top token {answers.same_top:.1%}"
            )
    else:
        lines.append("held out    nothing: with --heldout FILE it is measured what was lost")
    return "\n".join([*lines, f"seconds     {report.seconds:.1f}", ""])
