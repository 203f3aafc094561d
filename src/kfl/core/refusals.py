"""Why something that another machine sent cannot be used: codes with facts as data, a sentence when it is shown.

Algorithms refuse uploads (`kfl.algorithms.Rejection`), the server of a fleet answers, its devices messages. Run folders
hold codes and facts; callers that show one ask `describe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, Any]
"""What a code is about: plain values that JSON can hold."""


def describe(code: str, facts: Facts) -> str:
    """The sentence for a code, without its end; the code itself where the facts do not fit it.

    >>> describe("missing_array", {"array": "means"})
    'it has no array means'
    """
    sentence = _SENTENCES.get(code)
    try:
        if isinstance(sentence, str):
            return sentence.format(**facts)
        return str(facts.get("text", code)) if sentence is None else sentence(**facts)
    except Exception:  # facts come from files that anyone may have written
        return str(facts.get("text", code))


def stored_refusal(values: Facts | str) -> tuple[str, dict[str, Any]]:
    """The code and the facts that a run folder holds, next to the `device` and the `fault` they are about.

    Before there were codes, a folder held a sentence: alone, or under `reason`. That has the code "note".

    >>> stored_refusal({"device": 3, "code": "no_answer", "deadline_s": 60.0})
    ('no_answer', {'deadline_s': 60.0})
    >>> describe(*stored_refusal({"device": 3, "fault": "late", "reason": "no answer in 60 s"}))
    'no answer in 60 s'
    """
    if isinstance(values, Mapping) and "code" in values:
        return str(values["code"]), {name: v for name, v in values.items() if name not in ("device", "fault", "code")}
    return "note", {"text": str(values.get("reason", "")) if isinstance(values, Mapping) else str(values)}


def _shape(array: str, found: list[int], expected: list[int]) -> str:
    return f"its {array} has the shape {tuple(found)}, not {tuple(expected)}"


def _too_many_samples(
    array: str, found: float | None = None, limit: float | None = None, label: int | None = None
) -> str:
    if limit is None:
        return f"its {array} has more samples than a device can hold"
    if found is None:
        return f"its {array} has more samples than the {limit:g} it said it has"
    of_class = "" if label is None else f" of class {label}"
    return f"its {array} says {found:.15g} samples{of_class}, more than the {limit:g} it said it has"


def _claim_cut(field: str, found: float | str, limit: float) -> str:
    return f"its {field} of {float(found):g} cannot be or is not allowed, and counts as {limit:g}"


_SENTENCES: dict[str, str | Callable[..., str]] = {
    "note": "{text}",
    # An upload
    "nothing_expected": "devices send nothing in {algorithm}",
    "missing_array": "it has no array {array}",
    "unexpected_array": "it has an array {array}, which was not requested",
    "shape": _shape,
    "dtype": "its {array} has the type {found}, not {expected}",
    "not_finite": "its {array} has a value that is infinite or not a number",
    "negative_count": "its {array} has a negative number of samples",
    "not_whole": "its {array} has a number of samples that is not whole",
    "too_many_samples": _too_many_samples,
    # A message of a fleet
    "no_table": "it has no table named {table}",
    "no_frame": "its table has no frame",
    "unreadable_frame": "it cannot be read: {text}",
    "too_large": "it holds {found} bytes, where {most} are enough",
    "unexpected_records": "it has records that were not requested",
    "unexpected_arrays": "it sent arrays where none were asked for",
    "version": "it speaks version {found} of the fleet protocol, and this side speaks version {expected}",
    "not_number": "its {field} is not a number",
    "not_whole_number": "its {field} is not an integer",
    "not_text": "its {field} is not a text",
    "not_list": "its {field} is not a list of integers",
    "out_of_range": "its {field} is {found}, not from {least} to {most}",
    "not_between": "its {field} is {found:g}, not above {above:g} and at most {most:g}",
    "not_samples": "its {field} has an entry that is not a number of samples",
    "samples_do_not_add_up": "its samples_per_class do not add up to {samples} samples of {classes} classes",
    "not_shape": "its input_shape is not a shape",
    "unknown_kind": "it asks for something this device does not know",
    "unknown_run": "the name of its run is not one that kfl gives",
    "unknown_algorithm": "its algorithm is not one of this device's kfl: {text}",
    "round_done": "it has done round {round} already",
    "round_lost": "it worked for round {round} before and lost the result; it does not spend the energy twice",
    "busy": "it is still busy with an earlier round",
    "no_sum": "the secure sum cannot go on: {text}",
    "sum_done": "its upload of round {round} is in a sum already, and a second sum of it would tell a difference",
    "other_sum": "it asks for a step of a secure sum that this device has no part in",
    "not_masked": "this device sends nothing that is not masked, and the server does not ask for a secure sum",
    # An answer of a device
    "device_refused": "it refused: {text}",
    "not_an_answer": "it is not an answer to a round",
    "other_round": "it answers for round {found_round} of device {found_device}",
    "changed": "its data, model or hardware changed since it said what it has; it is asked again",
    "unknown_status": "its status is {found}",
    "sum_step": "in the step {step} of the secure sum, {text}",
    "energy_not_number": "its {part} energy is not a number",
    "energy_not_finite": "its {part} energy is infinite or not a number",
    "energy_negative": "its {part} energy of {found:g} J is negative",
    "energy_too_high": "its {part} energy of {found:g} J is more than the {limit:g} J it can have spent",
    "energy_too_low": "its {part} energy of {found:g} J is less than the {limit:g} J that its work takes",
    "gain_impossible": "its gain of {found:g} is not one of a channel, from above 0 to {limit:g}",
    "time_impossible": "the {found:g} s it says it worked are not among the {limit:g} s it had",
    # A claim of a device that counts for less than it says
    "more_than_registered": "its {field} are {found}, but it is registered with {limit}, and counts with these",
    "more_than_median": "its {field} are {found}, more than {times:g} times the fleet's median; it counts with {limit}",
    "claim_cut": _claim_cut,
    "weight_capped": "its {array} give it {found:.1%} of an average, and it has {limit:.1%}",
    # No answer of a device
    "not_sent": "the message could not be sent",
    "no_answer": "no answer in {deadline_s:g} s",
    "message_expired": "its message expired before it answered",
    "answer_expired": "its answer expired before it arrived",
    "offline": "its node is offline",
    "failed": "{text}",
    "worker_died": "its worker died: {text}",
    "worker_hung": "its worker did not answer in time and was ended",
    "worker_memory": "its worker ran out of memory: {text}",
    "not_readable": "it cannot be read ({error})",
    # A device that wants to join
    "no_profile": "{text}",
    "no_such_device": "it says it is device {claimed}, but there are only devices 0 to {last}",
    "other_name": "it says it is device {claimed}, but is registered as {name}",
    "taken": "it says it is device {claimed}, which another node is",
    "other_sizes": "it has {classes} classes and {features} features, the others {other_classes} and {other_features}",
    "other_model": "its model differs from the others', which this algorithm cannot average",
}

CODES = tuple(_SENTENCES)
"""Every code that has a sentence."""
