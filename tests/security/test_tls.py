"""Redis and PostgreSQL over TLS, with throw-away certificates. All of `deployment` speaks nothing else."""

from __future__ import annotations

import pytest
from security.deployment import DATABASE_PASSWORD, Deployment

pytestmark = pytest.mark.timeout(300)  # of the deployment's setup, see `test_roles`


def test_a_pool_works_over_tls_from_end_to_end(deployment: Deployment):
    assert deployment.handle.study.best_trial is not None
    assert deployment.redis_front.encrypted >= 8, "coordinator, workers, clients: connections of each"
    assert deployment.postgres_front.encrypted >= 3
    assert (deployment.redis_front.plain, deployment.postgres_front.plain) == (0, 0), "nobody tried without"


def test_a_redis_with_a_certificate_of_another_authority_is_refused(deployment: Deployment):
    done = deployment.command("viewer", "status", redis=deployment.url("viewer", ca=deployment.certificates.wrong_ca))
    assert done.code == 2 and "certificate verify failed" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_redis_under_another_name_than_its_certificates_is_refused(deployment: Deployment):
    done = deployment.command("viewer", "status", redis=deployment.url("viewer", host="127.0.0.1"))
    assert done.code == 2 and "certificate" in done.err


def test_a_redis_url_without_tls_gets_no_answer_from_a_tls_port(deployment: Deployment):
    plain = deployment.url("viewer").replace("rediss://", "redis://").partition("?")[0]
    done = deployment.command("viewer", "status", redis=plain)
    assert done.code == 2 and "does not answer" in done.err
    assert deployment.redis_front.plain >= 1


def test_a_database_with_a_certificate_of_another_authority_is_refused(deployment: Deployment):
    wrong = deployment.storage.replace(str(deployment.certificates.ca), str(deployment.certificates.wrong_ca))
    done = deployment.command("viewer", "status", storage=wrong)
    assert done.code == 2 and "certificate verify failed" in done.err, done
    assert DATABASE_PASSWORD not in done.err and "database/password" not in done.err


def test_a_database_under_another_name_than_its_certificates_is_refused(deployment: Deployment):
    done = deployment.command("viewer", "status", storage=deployment.storage.replace("@localhost", "@127.0.0.1"))
    assert done.code == 2 and "certificate" in done.err


def test_a_database_that_wants_tls_does_not_get_the_password_without(deployment: Deployment):
    plain = deployment.storage.replace("sslmode=verify-full", "sslmode=disable")
    before = deployment.postgres_front.encrypted
    done = deployment.command("viewer", "status", storage=plain)
    assert done.code == 2
    assert deployment.postgres_front.plain >= 1 and deployment.postgres_front.encrypted == before
