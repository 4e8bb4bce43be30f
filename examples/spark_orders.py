"""Join two tables in Spark and write the result to a third one: each run of a day writes each row once.

spark-submit --archives env.tar.gz#env --conf spark.pyspark.python=./env/bin/python spark_orders.py \
    s3://BUCKET/tables/orders s3://BUCKET/tables/customers s3://BUCKET/tables/totals 20240131

On EMR Serverless the state machine `spark` of a deployment runs it: see docs/how-to/spark.md.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import lancelsm.spark


def totals(spark: SparkSession, orders: str, customers: str, target: str, day: int) -> lancelsm.spark.WrittenRows:
    """Write what each customer has paid. All tasks read one view of each table."""
    paid = spark.read.format("lancelsm").options(columns="customer,total", where="state = 'paid'").load(orders)
    known = spark.read.format("lancelsm").load(customers)
    sums = paid.groupBy("customer").sum("total").withColumnRenamed("sum(total)", "total")
    frame = known.join(sums, known.id == sums.customer).select("id", "name", "total")
    return lancelsm.spark.write(frame, target, txn_app="totals", txn_version=day)


if __name__ == "__main__":
    session = SparkSession.builder.appName("totals").getOrCreate()
    print(totals(session, *sys.argv[1:4], int(sys.argv[4])))
