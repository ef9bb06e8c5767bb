"""OpenTelemetry's format, as its own package reads it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from kclient.metrics.otlp import Point, Temporality, encode_metrics

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
NUMBERS = st.integers(0, 2**64 - 1)


@given(
    st.lists(
        st.builds(
            Point,
            TEXTS,
            st.dictionaries(TEXTS, TEXTS, max_size=3),
            st.floats(allow_nan=False),
            NUMBERS,
            st.none() | st.sampled_from(Temporality),
            NUMBERS,
        ),
        max_size=5,
    ),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
)
def test_what_is_written_is_read(points: list[Point], resource: dict[str, str]) -> None:
    read = MetricsData.FromString(encode_metrics(points, resource))
    (described,) = read.resource_metrics
    assert {each.key: each.value.string_value for each in described.resource.attributes} == resource
    (scope,) = described.scope_metrics
    assert [metric.name for metric in scope.metrics] == [point.name for point in points]
    for metric, point in zip(scope.metrics, points, strict=True):
        data = metric.gauge if point.temporality is None else metric.sum
        (found,) = data.data_points
        assert (found.as_double, found.time_unix_nano, found.start_time_unix_nano) == (
            point.value,
            point.time_ns,
            point.start_ns,
        )
        assert {each.key: each.value.string_value for each in found.attributes} == point.attributes
        if point.temporality is not None:
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == point.temporality


def test_the_numbers_are_those_of_opentelemetry() -> None:
    assert AggregationTemporality.Value("AGGREGATION_TEMPORALITY_DELTA") == Temporality.DELTA
    assert AggregationTemporality.Value("AGGREGATION_TEMPORALITY_CUMULATIVE") == Temporality.CUMULATIVE
