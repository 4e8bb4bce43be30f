"""Sizes of a Spark job and of the application that runs it. They fit each other, or synthesis fails with the sum."""

from __future__ import annotations

from dataclasses import dataclass

_WORKERS = (1, 2, 4, 8, 16)  # vCPU
_GB = 4  # of memory for each vCPU: allowed for each size of a worker
_QUEUE_MINUTES = range(15, 721)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSizes:
    """Values of the context: `spark_capacity`, `spark_worker`, `spark_executors`, `spark_release`,
    `spark_queue_minutes`.

    Args:
        capacity: vCPU that the application has at most, for all jobs that run at the same time.
        worker: vCPU of the driver, and of each executor.
        executors: the most executors of one job.
        release: the release label of EMR Serverless.
        queue_minutes: how long a job waits for capacity before it fails.
    """

    capacity: int = 16
    worker: int = 4
    executors: int = 3
    release: str = "emr-spark-8.0.0"
    queue_minutes: int = 360

    def __post_init__(self) -> None:
        if self.worker not in _WORKERS:
            raise ValueError(f"-c spark_worker={self.worker}: give one of {', '.join(map(str, _WORKERS))}")
        if self.executors < 1:
            raise ValueError(f"-c spark_executors={self.executors}: give a number from 1")
        if self.queue_minutes not in _QUEUE_MINUTES:
            raise ValueError(f"-c spark_queue_minutes={self.queue_minutes}: give a number from 15 to 720")
        if not self.runs:
            needs = f"a driver and {self.executors} executors of {self.worker} vCPU, {self.job} vCPU together"
            raise ValueError(
                f"-c spark_capacity={self.capacity}: a job has {needs}. Give a larger spark_capacity, or a smaller "
                "spark_worker or spark_executors"
            )

    @property
    def job(self) -> int:
        """The vCPU of one job."""
        return self.worker * (1 + self.executors)

    @property
    def runs(self) -> int:
        """The number of jobs that run at the same time with all of their executors. More jobs wait."""
        return self.capacity // self.job

    @property
    def memory(self) -> int:
        """The memory of the application in GB."""
        return _GB * self.capacity

    def properties(self) -> dict[str, str]:
        """Return the properties of a job. Most memory is overhead: rows are in memory of Lance and Python, never on the
        Java heap.
        """
        heap = max(1, 3 * self.worker // 4)
        sizes = {
            f"spark.{kind}.{name}": value
            for kind in ("driver", "executor")
            for name, value in (
                ("cores", str(self.worker)),
                ("memory", f"{heap}g"),
                ("memoryOverhead", f"{_GB * self.worker - heap}g"),
            )
        }
        return {**sizes, "spark.dynamicAllocation.maxExecutors": str(self.executors)}
