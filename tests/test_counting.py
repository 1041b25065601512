"""Numbers with their nouns."""

from __future__ import annotations

from headrace.counting import counted, noun, shortened


def test_a_noun_has_the_number_of_its_count():
    found = [counted(n, "role") for n in range(3)]
    assert found == ["0 roles", "1 role", "2 roles"]
    assert [counted(n, "try", "tries") for n in (1, 2)] == ["1 try", "2 tries"]
    assert [noun(n, "was", "were") for n in (0, 1, 2)] == ["were", "was", "were"]


def test_a_long_list_is_shortened():
    assert shortened([]) == ""
    assert shortened(["a", "b", "c"]) == "a, b, c"
    assert shortened(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert shortened(["a", "b"], 1) == "a and 1 more"
