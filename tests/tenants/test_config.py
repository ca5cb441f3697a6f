"""A tenant's configuration: what it takes, what it refuses, and what it never shows."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from handrail.errors import ConfigError
from handrail.tenants import OpeningHours, TenantConfig, Texts
from tests.tenants.samples import SALES, SUPPORT, acme, refer


@pytest.mark.proves("PH-12", "PH-13")
def test_a_configuration_has_features_with_destinations() -> None:
    cfg = acme()
    feature = cfg.features.refer

    assert cfg.tenant_id == "acme-corp"
    assert (feature.enabled, feature.require_confirmation) == (True, True)
    assert feature.handoff_phrase == "Je vous transfère vers {{label}}"
    support = feature.destinations[0]
    assert (support.destination_id, support.label, support.enabled, support.priority) == (
        "support",
        "Service Technique",
        True,
        5,
    )
    assert support.description_for_model == "For technical support and troubleshooting"


@pytest.mark.proves("PH-14")
@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("+14155552000", "tel:+14155552000"),
        ("+1 (415) 555-2000", "tel:+14155552000"),
        ("tel:+14155552000", "tel:+14155552000"),
        ("sip:sales@acme.example", "sip:sales@acme.example"),
        ("SIPS:sales@acme.example:5061;transport=tls", "sips:sales@acme.example:5061;transport=tls"),
    ],
)
def test_a_target_becomes_a_tel_or_sip_address(given: str, target: str) -> None:
    cfg = acme(features={"refer": refer(destinations=[{**SALES, "target_uri": given}])})

    assert cfg.features.refer.destinations[0].target_uri == target


@pytest.mark.proves("PH-14", "PH-D19")
@pytest.mark.parametrize(
    "target",
    [
        "sip:[email protected]",
        "",
        "4155552000",
        14155552000,
        "http://acme.example",
        "sip:sales@acme.example\r\nX-Evil: 1",
        "sip:sales@acme.example?Replaces=1",
        "sip:a@b,sip:c@d",
        "sip:@acme.example",
        "tel:abc",
        "javascript:+14155552000",
        "+1415555200012345",
        None,
    ],
)
def test_another_target_is_refused_with_its_field_and_without_its_value(target: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        acme(features={"refer": refer(destinations=[{**SALES, "target_uri": target}])})

    assert "features.refer.destinations.0.target_uri" in str(caught.value)
    if isinstance(target, str) and len(target) > 8:
        assert target not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tenant_id": "a b"}, "tenant_id"),
        ({"surprise": 1}, "surprise"),
        ({"numbers": [33100000000]}, "quotes"),
        ({"numbers": ["0100000000"]}, "numbers.0"),
        ({"numbers": ["+33100000000", "+33 1 00 00 00 00"]}, "unique"),
        ({"secrets": {"crm": "hunter2"}}, "secrets"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"policy": [{"deni": "pay"}]}, "deni"),
        ({"texts": {"end_call.goodby": "Ciao"}}, "end_call.goodby"),
        ({"texts": {"transfer.unknown": "{destination.__class__}"}}, "may use"),
        ({"texts": {"say.greeting": "{text:>1000000000}"}}, "without a format"),
        ({"texts": {"say.greeting": "{text:{text}}"}}, "without a format"),
        ({"features": {"refer": refer(destinations=[SALES, SALES])}}, "unique"),
        ({"features": {"refer": refer(destinations=[{**SALES, "fallback": "nobody"}])}}, "fallback"),
        ({"features": {"refer": refer(handoff_phrase="To {{lable}}.")}}, "features.refer.handoff_phrase"),
        ({"features": {"refer": refer(handoff_phrase="To {label}.")}}, "no braces but those of {{label}}"),
        ({"features": {"refer": refer(unknown=1)}}, "features.refer.unknown"),
        ({"opening_hours": {"mon": "9-17"}}, "opening_hours.mon"),
        ({"limits": {"max_duration": 4000}}, "limits.max_duration"),
        ({"mcp_servers": [{"name": "crm"}]}, "url or command"),
        ({"guidelines": [{"action": "Help."}]}, "guidelines.0"),
        ({"guidelines": [{"condition": " "}]}, "must have a condition"),
        ({"guidelines": [{"condition": "c", "criticality": "urgent"}]}, "guidelines.0.criticality"),
        ({"guidelines": [{"condition": "c"}, {"condition": "d", "tool": ["x"]}]}, "guidelines.1.tool"),
        ({"guidelines": [{"condition": "c", "tools": [""]}]}, "guidelines.0.tools.0"),
        ({"guidelines": [{"condition": "c", "tools": "refund"}]}, "guidelines.0.tools"),
        ({"guidelines": ["be kind"]}, "guidelines.0"),
        ({"guidelines": [{"condition": "c", "id": "g"}, {"condition": "d", "id": "g"}]}, "unique"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        acme(**changes)

    assert field in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_configuration_shows_no_values_of_its_own() -> None:
    cfg = acme(instructions="our discount is 40%", secrets={"crm": "env:CRM"})

    assert repr(cfg) == f"TenantConfig(tenant_id='acme-corp', version='{cfg.version}')"
    assert str(cfg) == repr(cfg)
    assert "sip:" not in repr(cfg.features.refer)
    assert cfg.to_log_dict() == {"tenant_id": "acme-corp", "version": cfg.version, "enabled": True}


def test_equal_configurations_have_one_version_and_a_change_has_another() -> None:
    assert acme().version == acme().version
    assert acme().version != acme(greeting="Bonjour").version
    assert acme().version != acme(enabled=False).version


def test_rules_of_a_tenant_name_it_as_their_source() -> None:
    cfg = acme(policy=[{"deny": "request_transfer", "where": {"destination_id": "sales"}, "reason": "on holiday"}])

    assert [(str(rule), rule.source) for rule in cfg.rules()] == [
        ("deny('request_transfer', where={'destination_id': 'sales'})", "tenant:acme-corp")
    ]


@pytest.mark.parametrize(
    ("at", "is_open"),
    [
        ("2026-11-16T08:30:00+01:00", True),  # a Monday in Paris
        ("2026-11-16T07:30:00+00:00", True),
        ("2026-11-16T12:00:00+01:00", False),
        ("2026-11-16T13:00:00+01:00", True),
        ("2026-11-17T09:00:00+01:00", False),
        ("2026-11-23T09:00:00+01:00", False),  # a holiday
        ("2026-11-21T23:59:59+01:00", True),
    ],
)
def test_hours_are_those_of_the_time_zone(at: str, is_open: bool) -> None:
    hours = OpeningHours.model_validate(
        {"mon": ["08:00-12:00", "13:00-17:00"], "sat": "00:00-24:00", "closed_on": ["2026-11-23"]}
    )

    assert hours.is_open(datetime.fromisoformat(at), timezone="Europe/Paris") is is_open
    assert OpeningHours.always().is_open(datetime.now(UTC))


@pytest.mark.proves("PH-D16")
def test_every_locale_has_the_same_texts_with_the_same_fields() -> None:
    english = Texts("en")._texts
    for language in ("de", "es", "fr", "it", "nl", "pt"):
        texts = Texts(language)._texts
        assert list(texts) == list(english)
        assert len({*texts.values()} - {*english.values()}) > 40  # They are not English.
        for key in english:
            assert Texts(language, own={key: english[key]})
            assert Texts("en", own={key: texts[key]})
    assert Texts("fr-CA").locale == "fr"
    with pytest.raises(ConfigError, match="balanced"):
        Texts("en", own={"end_call.goodbye": "{"})


@pytest.mark.parametrize("locale", ["zz", "pl", "ja-JP"])
def test_a_locale_without_texts_is_an_error_when_the_tenant_is_built(locale: str) -> None:
    with pytest.raises(ValidationError, match=f"got '{locale}': there are no texts for it"):
        acme(locale=locale)


def test_the_page_configuration_is_taken_as_it_stands_but_for_its_mangled_address() -> None:
    page: dict[str, Any] = {"tenant_id": "acme-corp", "features": {"refer": refer(destinations=[SALES, SUPPORT])}}

    cfg = TenantConfig.model_validate(page)

    assert [destination.destination_id for destination in cfg.features.refer.destinations] == ["sales", "support"]


def test_a_tenant_has_as_many_rules_as_can_be_decided_with_each_call() -> None:
    rules = [{"deny": "pay", "where": {"amount": {"above": number}}} for number in range(1_001)]

    assert len(TenantConfig(tenant_id="a", policy=rules[:1_000]).rules()) == 1_000
    with pytest.raises(ValidationError, match="at most 1000 items"):
        TenantConfig(tenant_id="a", policy=rules)
    with pytest.raises(ValidationError, match="must have at most 2,000 names and patterns in lists, got 2,001"):
        TenantConfig(tenant_id="a", policy=[{"deny": ["pay"] * 2_000}, {"ask": ["pay"]}])
