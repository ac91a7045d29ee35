from afield.data.datasets.nico_pp import nico_pp


def test_names_with_spaces_are_one_class_each():
    assert {"fishing rod", "hot air balloon"} <= set(nico_pp.classes)
    assert list(nico_pp.classes) == sorted(nico_pp.classes)
