"""The tests of the engine once more, of one whose model runs in a process of
its own: the same class, the same answers.
"""

from __future__ import annotations

import pytest
import test_bad_input
import test_callbacks
import test_constrained
import test_engine
import test_extremes
import test_lifecycle

from sgl.runtime import Engine
from sgl.runtime.process.remote_core import RemoteCore

reference = test_engine.reference

test_a_chain = test_engine.test_a_chain_of_extends_and_generates_runs_without_a_round_trip
test_forks_of_forks = test_engine.test_forks_of_forks_and_a_fork_in_the_middle_of_a_chain
test_dropped_tokens = test_engine.test_dropped_tokens_are_gone_from_pages_and_text
test_a_seed = test_engine.test_a_seed_decides_the_text_whatever_else_runs
test_logprobs = test_engine.test_logprobs_stand_beside_the_tokens
test_a_stop = test_engine.test_a_stop_cuts_tokens_pages_and_text_together
test_a_failing_callback = test_engine.test_a_chunk_callback_that_raises_fails_its_request_only
test_any_error_of_a_callback = test_callbacks.test_a_chunk_callback_may_raise_anything
test_any_error_at_the_end = test_callbacks.test_a_last_chunk_may_raise_anything
test_any_error_of_a_future = test_callbacks.test_a_future_s_callback_may_raise_anything
test_a_wait_for_itself = test_callbacks.test_a_callback_that_would_wait_for_itself_is_told_so
test_a_look_around = test_callbacks.test_a_callback_may_ask_for_what_is_there
test_any_error_of_a_choice = test_callbacks.test_a_choices_method_may_raise_anything
test_extreme_counts = test_extremes.test_many_tokens_are_no_limit_of_how_many
test_extreme_fields = test_extremes.test_a_field_of_a_generation
test_extreme_terms = test_extremes.test_the_terms_of_a_sequence
test_extreme_operations = test_extremes.test_an_operation_of_a_sequence
sound = test_extremes.sound
test_chunks = test_engine.test_chunks_add_up_to_the_text
test_mixed_batches = test_constrained.test_constrained_and_free_requests_share_a_batch
test_end_tokens = test_constrained.test_an_end_token_ends_what_may_end_and_a_special_token_never_slips_in
test_bad_prompts = test_bad_input.test_prompt_too_long_and_empty_prompt
test_bad_token_ids = test_bad_input.test_token_ids_outside_the_vocabulary
test_bad_options = test_bad_input.test_unknown_sampling_option_names_the_nearest
test_a_bad_schema = test_bad_input.test_a_bad_schema_fails_its_program_only
test_another_vocabulary = test_bad_input.test_a_grammar_for_another_vocabulary
test_every_kind_of_caller = test_lifecycle.test_the_same_answer_from_every_kind_of_caller


@pytest.fixture(scope="module")
def opened(tiny):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, poison_freed=True, process=True) as engine:
        yield engine


@pytest.fixture
def engine(opened):
    assert isinstance(opened._core, RemoteCore)
    yield opened
    opened.flush_cache()
    opened.check()
