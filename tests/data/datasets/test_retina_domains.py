from afield.data.datasets.retina_domains import retina_domains


def test_classes_are_in_the_order_of_the_grades_and_not_of_their_names():
    grades = ("nodr", "mild_npdr", "moderate_npdr", "severe_npdr", "pdr")
    assert retina_domains.classes == grades != tuple(sorted(grades))
