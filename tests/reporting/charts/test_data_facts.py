"""What the data and the network are, from records."""

from dataclasses import replace

from afield.reporting.charts.samples import describe_data
from afield.reporting.results import group_records
from tests.stores import benchmark_records


def described(records):
    (results,) = group_records(records)
    return describe_data(results).replace("\u2068", "").replace("\u2069", "")


def test_domains_have_their_samples_and_the_network_its_weights():
    network = {"backbone": "timm:x", "weights": "/a/b/x.pt", "start": "abcdefgh"}
    records = benchmark_records([[0.5] * 3], **network)
    named = [replace(record, class_names=("a", "b")) for record in records]
    assert described(named) == (
        "3 domains: art 200, photo 200, sketch 200; 2 classes; timm:x from x.pt [abcdef]."
    )


def test_of_many_domains_only_the_range_is_stated():
    domains = tuple(f"d{n:02}" for n in range(20))
    records = benchmark_records([[0.5] * 20], domains=domains)
    assert described(records).startswith("20 domains of 200 to 200 samples; small:cnn from random")


def test_texts_have_their_median_length_and_how_many_are_cut():
    records = benchmark_records([[0.5] * 3], backbone="small:text", tokens=64)
    lengths = [
        replace(record, truncated=7, median_tokens=30 + number)
        for number, record in enumerate(records)
    ]
    assert "; texts of 30 to 32 tokens (median), 7 cut at 64; small:text" in described(lengths)
    assert "; none cut at 64; small:text" in described(records)
    features = [
        replace(record, truncated=7, median_tokens=30, embedded_tokens=64)
        for record in benchmark_records([[0.5] * 3], backbone="small:mlp")
    ]
    assert "; features of texts of 30 tokens (median), 7 cut at 64; small:mlp" in described(
        features
    )
    # A merged model counts no texts.
    assert "7 cut at 64; small:text" in described([*lengths, *records])
