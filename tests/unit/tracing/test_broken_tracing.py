"""Whatever a provider, a processor of spans or a propagator does: records are sent, read and processed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator, default_getter, default_setter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from kclient import Consumer, Producer
from kclient.errors import ConfigError, MissingExtraError
from kclient.testing import memory_broker
from kclient.tracing.resolve import resolve_tracing
from tests.traced import Spans, propagating_by

pytestmark = pytest.mark.anyio


class Broken(TextMapPropagator):
    """Raises, or gives something else than it should."""

    def __init__(self, inject: Callable[[Any, Any], object], extract: Callable[[], Any]) -> None:
        self._inject = inject
        self._extract = extract

    def inject(self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter) -> None:
        self._inject(carrier, setter)

    def extract(self, carrier: Any, context: Context | None = None, getter: Getter[Any] = default_getter) -> Context:
        found: Context = self._extract()
        return found

    @property
    def fields(self) -> set[str]:
        return set()


def fail(*_: object) -> Any:
    raise RuntimeError("broken on purpose")


async def there_and_back(provider: Any) -> None:
    with memory_broker() as broker:
        async with Producer(bootstrap_servers=broker, tracing=provider) as producer:
            await (await producer.send("t", b"1", headers=[("a", b"b")]))
            await (await producer.send_batch("t", [b"2"]))
        async with Consumer(
            "t", bootstrap_servers=broker, group_id="g", auto_offset_reset="earliest", tracing=provider
        ) as consumer:
            with anyio.fail_after(20):
                records = await consumer.poll(10)
            assert [record.value for record in records] == [b"1", b"2"]
            with consumer.processing(records[0]):
                pass
            with consumer.processing(records):
                pass
            await consumer.commit()


BROKEN = [
    pytest.param(fail, fail, id="raises"),
    pytest.param(lambda carrier, setter: setter.set(carrier, 5, object()), lambda: "nothing", id="garbage"),
    pytest.param(lambda carrier, setter: setter.set(carrier, "k", "\ud800"), lambda: None, id="no text"),
    pytest.param(lambda carrier, setter: carrier.update(k=1), lambda: 5, id="past the setter"),
]


@pytest.mark.parametrize(("inject", "extract"), BROKEN)
async def test_a_broken_propagator(
    inject: Callable[[Any, Any], object], extract: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()
    with propagating_by(Broken(inject, extract)), caplog.at_level(logging.DEBUG, "kclient.tracing"):
        await there_and_back(spans.provider)
    assert not spans.open
    assert "putting the trace context into headers failed, and is left out" in caplog.text


async def test_a_provider_that_raises_or_gives_garbage() -> None:
    class Tracer:
        start_span = staticmethod(fail)

    class Garbage:
        def start_span(self, *_: object, **__: object) -> object:
            return 5

    class Provider:
        def __init__(self, tracer: object) -> None:
            self.get_tracer = lambda *_, **__: tracer

    for tracer in (Tracer(), Garbage(), None):
        await there_and_back(Provider(tracer))
    await there_and_back(NoOpTracerProvider())


async def test_a_processor_that_raises() -> None:
    class Raises(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            fail()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Raises())
    await there_and_back(provider)


async def test_what_is_no_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (5, "on", True):
        with pytest.raises(ConfigError, match=r"tracing = .*: expected an opentelemetry\.trace\.TracerProvider"):
            Producer(bootstrap_servers="memory:none", tracing=wrong)
    for no_provider in (object(), TracerProvider):
        with pytest.raises(ConfigError, match="has no get_tracer"):
            Consumer(bootstrap_servers="memory:none", tracing=no_provider)

    class Fails:
        get_tracer = staticmethod(fail)

    with pytest.raises(ConfigError, match=r"get_tracer of .* raised RuntimeError"):
        resolve_tracing(Fails(), "c")
    monkeypatch.setitem(sys.modules, "kclient.tracing.spans", None)
    with pytest.raises(
        MissingExtraError, match=r"tracing needs the package opentelemetry-api: pip install '.*\[otel\]'"
    ):
        resolve_tracing("otel", "c")


def test_the_global_provider_may_be_set_later() -> None:
    assert resolve_tracing("otel", "c") is not None
    assert resolve_tracing(None, "c") is None
