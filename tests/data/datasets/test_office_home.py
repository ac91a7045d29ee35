from afield.data.datasets.office_home import office_home


def test_classes_are_in_the_order_of_an_image_folder():
    assert list(office_home.classes) == sorted(office_home.classes)


def test_the_domain_with_a_space_is_needed_with_it():
    assert "office_home/Real World" in office_home.needs
