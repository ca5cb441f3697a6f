"""Which tenants there are: in memory, and from files whose errors name file, line and field."""

from pathlib import Path

import pytest

from handrail.errors import ConfigError
from handrail.tenants import TenantConfig, TenantDirectory
from tests.tenants.samples import acme

ACME = """\
tenant_id: acme-corp
numbers: ["+33100000000"]
locale: fr
features:
  refer:
    enabled: true
    destinations:
      - destination_id: sales
        target_uri: "+14155552000"
      - destination_id: support
        target_uri: sip:support@acme.example
policy:
  - deny: request_transfer
    where: {destination_id: sales}
"""


async def test_a_tenant_is_found_by_a_dialled_number_in_any_form() -> None:
    tenants = TenantDirectory([acme()])

    assert await tenants.find("+33 1 00 00 00 00") == acme()
    assert await tenants.find("+33100000001") is None
    assert await tenants.find("anonymous; DROP") is None
    assert await tenants.get("acme-corp") == acme()
    assert await tenants.list() == list(tenants) == [acme()]


@pytest.mark.parametrize("other", [acme(), acme(tenant_id="other")])
def test_neither_an_id_nor_a_number_can_belong_to_two(other: TenantConfig) -> None:
    with pytest.raises(ConfigError, match=r"unique|belongs to 'acme-corp' already"):
        TenantDirectory([acme(), other])
    tenants = TenantDirectory([acme()])
    if other.tenant_id == "other":
        with pytest.raises(ConfigError):
            tenants.put(other)
        assert len(tenants) == 1


async def test_a_change_leaves_what_a_call_holds_as_it_was() -> None:
    tenants = TenantDirectory([acme()])
    held = await tenants.find("+33100000000")

    tenants.put(acme(enabled=False))

    assert held is not None
    assert held.enabled
    found = await tenants.find("+33100000000")
    assert found is not None
    assert not found.enabled
    assert not await tenants.is_removed("acme-corp")
    assert tenants.remove("acme-corp")
    assert await tenants.find("+33100000000") is None
    assert await tenants.is_removed("acme-corp")
    assert not await tenants.is_removed("another")
    tenants.put(acme())
    assert not await tenants.is_removed("acme-corp")


async def test_files_are_read_in_yaml_and_json_and_again(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ACME)
    (tmp_path / "b.json").write_text('{"tenant_id": "b", "greeting": "\\ud83d\\ude00"}')
    (tmp_path / "README.md").write_text("not a tenant")
    tenants = TenantDirectory.from_files(tmp_path)

    assert [tenant.tenant_id for tenant in tenants] == ["acme-corp", "b"]
    assert [rule.source for rule in next(iter(tenants)).rules()] == ["tenant:acme-corp"]

    (tmp_path / "b.json").write_text('{"tenant_id": ')
    with pytest.raises(ConfigError, match=r"b\.json:1: this is not JSON"):
        tenants.reload()
    (tmp_path / "b.json").write_text('{"tenant_id": "b", "retention_days": %s}' % ("9" * 5_000))
    with pytest.raises(ConfigError, match=r"b\.json: this JSON cannot be read"):
        tenants.reload()
    assert len(tenants) == 2

    (tmp_path / "b.json").unlink()
    tenants.reload()
    assert [tenant.tenant_id for tenant in tenants] == ["acme-corp"]
    assert await tenants.is_removed("b")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("a.yaml", "locale: fr", "locale: fr\nlocal: fr", r"a\.yaml:4: local: unknown field; did you mean 'locale'"),
        ("a.yaml", "locale: fr", "opening_hours: {monday: 9-17}", r"opening_hours\.monday: unknown .*mean 'mon'"),
        ("a.yaml", "locale: fr", "opening_hours: {lundi: 9-17}", r"\.lundi: unknown field; it has: mon, tue, wed"),
        ("a.yaml", "locale: fr", "audio: {modl: x}", r"audio\.modl: unknown field; it has: turn_detection, noise"),
        ("a.yaml", "policy:", "mcp_servers: crm\npolicy:", r"a\.yaml:12: mcp_servers: must be a list, such as"),
        ("a.yaml", '"+14155552000"', "+14155552000", r"a\.yaml:9: .*destinations\.0\.target_uri: .*quotes"),
        ("a.yaml", "sip:support@acme.example", "javascript:x", r"a\.yaml:11: .*\.1\.target_uri"),
        ("a.yaml", "destination_id: support", "destination_id: sales", r"a\.yaml:5: .*destination_id must be"),
        ("a.yaml", "        target_uri: sip:support@acme.example\n", "", r"a\.yaml:10: .*target_uri: Field required"),
        ("a.yaml", "locale: fr", "locale: fr\nlocale: en", r"a\.yaml:4: the key 'locale' is here twice"),
        ("a.yaml", "deny:", "deni:", r"a\.yaml:1: tenant: rule 1 of tenant:acme-corp: a rule does not have `deni`"),
        ("a.yaml", "policy:", "policy: &p\n  - *p", r"a\.yaml:\d+: (it refers to itself|this is not YAML)"),
        ("a.yaml", ACME, "- 1", r"a\.yaml:1: a tenant must be a mapping"),
        ("a.yaml", ACME, "", r"a\.yaml:1: the file is empty"),
        ("a.yaml", ACME, "!!python/object/apply:os.system ['true']", r"a\.yaml:1"),
        ("a.json", ACME, '{\n"tenant_id": "a",\n"enabled": "maybe"}', r"a\.json:3: enabled: "),
        ("a.json", ACME, '{"tenant_id": "a", "tenant_id": "b"}', r"a\.json: the key 'tenant_id' is in one"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_field(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    assert old in ACME
    (tmp_path / name).write_text(ACME.replace(old, new))

    with pytest.raises(ConfigError, match=message):
        TenantDirectory.from_files(tmp_path)


def test_a_place_that_is_none_and_a_file_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        TenantDirectory.from_files(tmp_path / "nowhere")
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"a\.yaml: the file cannot be read"):
        TenantDirectory.from_files(tmp_path)


def test_one_file_that_is_wrong_costs_its_own_tenant_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"tenant_id: {name}\ngreeting: Hello\n")
    (tmp_path / "c.yaml").write_text("tenant_id: c\ngreting: Hello\n")

    tenants = TenantDirectory.from_files(tmp_path, strict=False)
    assert [tenant.tenant_id for tenant in tenants] == ["a", "b"]
    [problem] = tenants.problems
    assert "c.yaml:2: greting: unknown field; did you mean 'greeting'" in problem

    (tmp_path / "c.yaml").write_text("tenant_id: c\n")
    (tmp_path / "a.yaml").write_text("tenant_id: a\nlocale: zz\n")
    tenants.reload()
    assert {tenant.tenant_id: tenant.greeting for tenant in tenants} == {"a": "Hello", "b": "Hello", "c": ""}
    assert "a.yaml" in tenants.problems[0]
