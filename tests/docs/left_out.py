"""Shell lines on pages that no test runs, and why. The list should stay short."""

from __future__ import annotations

from tests.docs.pages import Line

NOT_RUN = {
    "sudo": "changes the machine, as root",
    "apt-get": "changes the machine, as root",
    "protoc": "a compiler of its own; the tests make the same descriptors with protobuf's own",
    "spark-pipelines": "packages/spark/tests/pipelines runs this folder, with the variables set",
    "python -m tests.fuzz": "its input is one that broke a target once",
    "airflow triggerer": "runs until Ctrl-C; packages/airflow/tests/test_triggerer.py starts some",
    "celery -A shop": "runs until Ctrl-C; packages/celery/tests/test_workers.py starts workers",
    "pytest": "tests/docs/test_testing.py runs the files that the page has its reader write",
    "nats-server": "needs three machines; cluster/tests/test_serve.py starts such servers",
    "penstock serve --data ./my-realm": "tests/docs/test_tour.py starts a server as this one",
    "penstock serve --data /var/lib/penstock --cluster": "needs a running engine; so does that",
    "penstock cluster node": "needs three machines; cluster/tests/test_cluster_node.py has them",
    "penstock cluster status": "needs a running engine; cluster/tests/test_serve.py looks at one",
    "penstock cluster doctor": "needs a running engine; cluster/tests/test_serve.py looks at one",
    "penstock cluster import": "needs a running engine; cluster/tests/test_serve.py imports there",
    "penstock cluster export": "needs a running engine; cluster/tests/test_serve.py exports there",
    "penstock cluster backup": "needs a running engine; cluster/tests/test_serve.py backs up there",
    "penstock cluster restore": "needs a running engine; cluster/tests/test_serve.py has one",
    "penstock cluster upgrade": "needs a running engine; cluster/tests/test_upgrading.py has one",
    "penstock channel create readings --local": "needs nodes; cluster/tests/test_serve_local.py",
    "penstock channel list --url penstock://a": "needs nodes; that test lists there",
    "penstock publish readings 21.5 --url penstock://b:9001": "needs nodes; so does that",
    "penstock channel create orders --url penstock://a": "needs nodes; that test joins to it",
    "penstock join create readings orders": "needs nodes; that test makes it",
    "penstock join list --url penstock://b:9001": "needs nodes; so does that",
    "penstock serve --data ./n2 --cluster": "needs an engine; cluster/tests/test_serve_history.py",
    "penstock browse orders --url penstock://b:9002": "needs nodes; that test reads history",
    "kubectl": "needs Kubernetes",
    "penstock bridge": "needs another broker; packages/tools/tests/bridge has one",
    "helm install": "needs Kubernetes; tests/operate/test_kubernetes.py renders such releases",
    "penstock cluster demo": "starts seven processes; packages/tools/tests/demo does",
    "penstock reply": "replies until Ctrl-C; packages/server/tests/cli/test_requesting.py has one",
    "penstock request": "needs somebody who replies; so does that",
    "penstock store copy --to s3://": "needs an object store; tests/integration has one",
    "penstock pipeline list var/": "about what `make run` leaves behind, which ends with a check",
}
"""The reasons, by the beginning of a line after the variables that it sets."""


def reason_not_to_run(line: Line) -> str:
    """Return why no test runs the line; empty if tests run it."""
    text = " ".join(line.parts[len(line.variables) :])
    return next((why for begin, why in NOT_RUN.items() if text.startswith(begin)), "")
