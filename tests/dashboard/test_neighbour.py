"""optuna-dashboard beside our page."""

from __future__ import annotations

import optuna
import pytest

from vrampool.dashboard.neighbour import optuna_dashboard
from vrampool.storage import open_storage

pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")


@pytest.fixture
def served(serve, tmp_path):
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", create_schema=True)
    study = optuna.create_study(storage=storage, study_name="digits")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    return serve(more=optuna_dashboard(storage))


def test_it_shows_the_studies_of_the_pool_to_who_has_the_token(served):
    for path in ("/dashboard", "/dashboard/", "/static/bundle.js", "/api/studies"):
        assert served.ask(path).status == 401, path
    own = {"authorization": f"Bearer {served.token}"}
    assert "Optuna Dashboard" in served.ask("/dashboard/", **own).body.decode()
    studies = served.ask("/api/studies", **own).json["study_summaries"]
    assert [study["study_name"] for study in studies] == ["digits"]


def test_our_own_page_is_where_it_was(served):
    assert "<title>vrampool</title>" in served.ask("/").body.decode()
    assert served.ask("/pool/session").json["optuna_dashboard"] is True
    own = {"authorization": f"Bearer {served.token}"}
    assert served.ask("/sql-profiler", **own).status == 404


def test_another_site_can_make_nobody_delete_a_study(served):
    own = {"authorization": f"Bearer {served.token}"}
    assert served.ask("/api/studies/1", "DELETE", origin="https://evil.example", **own).status == 403
    assert served.ask("/api/studies/1", "DELETE").status == 401
    assert len(served.ask("/api/studies", **own).json["study_summaries"]) == 1


@pytest.mark.slow  # its bundle has 1.9 MB of script
def test_its_page_works_under_our_roof(served, open_page):
    page = open_page(served.signed_in_url)
    page.get_by_role("link", name="Optuna").click()
    page.get_by_text("digits").first.wait_for()
    open_page.errors.clear()  # its own page; what it logs is its affair
