"""Runs in MLflow: a server's, or the local database that MLflow itself would use (MLFLOW_TRACKING_URI)."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from kfl.core.config import flatten
from kfl.core.errors import MissingExtraError
from kfl.report.tracker_metrics import numbers
from kfl.report.trackers import Metrics, RunFacts, Tracker, without_password
from kfl.runfolder import RoundLog

MOST_PARAMETERS = 100
"""MLflow takes this many parameters in one call."""
LONGEST_VALUE = 500
"""Characters of a parameter that every MLflow since 1.0 stores."""


class MlflowTracker(Tracker):
    """Works next to runs that the program itself has active: only its own run, by its identifier, is touched."""

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"

    def open(self, run: RunFacts, config: Mapping[str, Any]) -> int:
        """Continue the run that the folder remembers, or create one in the experiment of MLFLOW_EXPERIMENT_NAME."""
        # MLflow would ask a server that is gone seven times with growing pauses, and the training would wait.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        with _quiet():
            from mlflow import MlflowClient
        with _quiet():  # again: the import sets up MLflow's own log
            self._client = MlflowClient()
            noted = run.remembered(self.name)
            self._run_id, self._finished = str(noted.get("run_id", "")), False
            try:
                if without_password(str(noted.get("uri"))) == self._address and self._exists():
                    self._finished = noted.get("finished") is True
                    self._client.update_run(self._run_id, status="RUNNING")
                    return self._rounds()
                self._run_id = self._create(run, config)
            except ImportError as problem:  # mlflow-skinny without the packages for a local database
                raise MissingExtraError("sqlalchemy", "mlflow", "A local MLflow database") from problem
        run.remember(self.name, run_id=self._run_id, uri=self._address, finished=False)
        return 0

    @property
    def _address(self) -> str:
        """Where the tracking server or database is, without a password: this is stored and shown."""
        return without_password(self._client.tracking_uri)

    def _create(self, run: RunFacts, config: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "kfl")
        experiment = self._client.get_experiment_by_name(title)
        number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
        tags = {f"kfl.{name}": value for name, value in run.tags.items()}
        created = str(self._client.create_run(number, run_name=run.name, tags=tags).info.run_id)
        parameters = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in flatten(config).items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(created, params=parameters[start : start + MOST_PARAMETERS])
        return created

    def _exists(self) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(self._run_id).info.lifecycle_stage == "active")
        except MlflowException as problem:
            if problem.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise

    def _rounds(self) -> int:
        shown = self._client.get_metric_history(self._run_id, "devices/scheduled")
        return max((metric.step for metric in shown), default=0)

    def log(self, log: RoundLog, metrics: Metrics) -> None:
        """One call with every metric of the round."""
        self._metrics(log.round + 1, metrics)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """The summary's numbers and FINISHED; or KILLED, until the run is resumed."""
        if summary is not None and not self._finished:
            self._metrics(int(summary["rounds"]), {f"summary/{name}": v for name, v in numbers(summary).items()})
        with _quiet():
            self._client.set_terminated(self._run_id, "KILLED" if summary is None else "FINISHED")

    @property
    def where(self) -> str:
        """The store and the run."""
        return f"run {self._run_id} in {self._address}"

    def _metrics(self, step: int, values: Metrics) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in values.items()]
        with _quiet():
            self._client.log_batch(self._run_id, metrics=metrics)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the deprecation notices of MLflow's own dependencies and its news about tables it makes."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(level)
