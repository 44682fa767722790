"""Sessions on a card keep the promises that the emulated device keeps."""

import pytest

from tests.cuda import promises
from tests.cuda.card import needs_card
from tests.session.failing import CASES
from tests.whole_models import MODELS, check_model

DEVICE = "cuda"
pytestmark = needs_card


@pytest.mark.parametrize("name", promises.OPTIMIZERS)
def test_training_has_the_numbers_of_the_cpu(name):
    promises.training_has_the_numbers_of_the_cpu(DEVICE, name)


@pytest.mark.parametrize(("first", "second"), [("cpu", DEVICE), (DEVICE, "cpu")])
def test_a_checkpoint_of_one_device_goes_on_on_another(first, second, tmp_path):
    promises.a_checkpoint_goes_on_on_another_device(first, second, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_failed_step_changes_nothing_and_names_op_label_line_and_place(name):
    promises.a_failed_step_changes_nothing(DEVICE, name)


def test_an_index_outside_its_axis_is_told_when_the_results_are_read():
    promises.an_index_outside_its_axis_is_told_when_results_are_read(DEVICE)


def test_inference_computes_what_depends_on_parameters_once_and_anew_when_they_change():
    promises.what_depends_on_parameters_is_computed_once_and_anew_when_they_change(DEVICE)


def test_a_step_in_16_bits_casts_no_weight_and_computes_again_what_is_cheap():
    promises.a_step_in_16_bits_casts_no_weight_and_computes_again_what_is_cheap(DEVICE)


def test_states_stay_on_the_device_and_can_be_read_and_written():
    promises.states_stay_and_can_be_read_and_written(DEVICE)


def test_states_that_take_each_others_values_swap_them():
    promises.states_swap(DEVICE)


def test_inputs_of_all_sizes_arrive_and_change():
    promises.inputs_of_all_sizes_arrive_and_change(DEVICE)


def test_steps_that_are_not_waited_for_have_their_own_inputs():
    promises.steps_that_are_not_waited_for_have_their_own_inputs(DEVICE)


def test_training_and_inference_share_their_parameters_on_the_device():
    promises.training_and_inference_share_parameters(DEVICE)


def test_sessions_of_several_threads_have_the_numbers_of_one():
    promises.sessions_of_several_threads_have_the_numbers_of_one(DEVICE)


def test_a_session_runs_in_another_thread_than_it_was_built_in():
    promises.a_session_runs_in_another_thread_than_it_was_built_in(DEVICE)


def test_a_step_is_one_graph_and_kernels_do_not_grow_with_depth():
    promises.a_step_is_one_graph_and_kernels_do_not_grow_with_depth(DEVICE)


def test_kernels_are_timed_one_by_one():
    promises.kernels_are_timed_one_by_one(DEVICE)


def test_the_second_build_writes_no_kernel(tmp_path, monkeypatch):
    promises.the_second_build_writes_no_kernel(DEVICE, tmp_path, monkeypatch)


@pytest.mark.slow
def test_fifty_sessions_that_come_and_go_leave_nothing_on_the_device():
    promises.sessions_that_come_and_go_leave_nothing(DEVICE, 25)


def test_sessions_that_come_and_go_leave_nothing_on_the_device():
    promises.sessions_that_come_and_go_leave_nothing(DEVICE, 4)


def test_a_session_gives_its_memory_back_with_its_last_reference():
    promises.a_session_gives_its_memory_back_with_its_last_reference(DEVICE)


def test_a_value_that_outlives_its_session_can_still_be_read():
    promises.a_value_outlives_its_session(DEVICE)


def test_a_function_of_numpy_arrays_is_refused_by_the_name_of_its_op():
    promises.a_function_of_numpy_arrays_is_refused_by_the_name_of_its_op(DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_the_reference_computes(name):
    check_model(name, DEVICE, "cuda")
