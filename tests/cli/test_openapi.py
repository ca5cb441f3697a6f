"""`handrail openapi inspect`."""

from pathlib import Path

import pytest

from handrail.cli.main import main

SHOP = str(Path(__file__).parents[1] / "sources" / "documents" / "shop.yaml")


def test_inspect_lists_the_tools_of_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi", "inspect", SHOP, "--include", "tag:orders", "--exclude", "orderExists"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "listOrders  GET /orders  (read-only)  List the orders of a customer.",
        "createOrder  POST /orders  (consequential, idempotent)  Order something.",
        "getOrder  GET /orders/{id}  (read-only)  Look at one order.",
        "cancelOrder  DELETE /orders/{id}  (consequential)  Cancel an order.",
        "4 tools, 2 of them consequential; 0 operations skipped",
    ]


def test_inspect_says_why_an_operation_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi", "inspect", SHOP, "--include", "listStock", "--base-url", "http://127.0.0.1:9"]) == 1
    skipped, summary = capsys.readouterr().out.splitlines()
    assert skipped.startswith(
        "skipped: listStock: GET /stock: its server 127.0.0.1 is refused: 127.0.0.1 is in a private"
    )
    assert summary == "0 tools, 0 of them consequential; 1 operations skipped"

    assert main(["openapi", "inspect", "gone.yaml"]) == 1
    assert "gone.yaml cannot be read" in capsys.readouterr().err


def test_inspect_shows_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    main(["openapi", "inspect", SHOP, "--include", "getOrder", "--schemas"])

    assert '"id": {\n      "type": "string"\n    }' in capsys.readouterr().out
